/* B = A x transpose(A) for a square, row-major matrix of 64-bit integers. */
#include "dandelion.h"

/* Side of a square matrix with this many elements: the integer square root.
 *
 * The single-precision root may be too small or too large, so it is corrected with integers. */
DEVICE u64 side_of(u64 elements)
{
    u64 side = (u64)sqrtf((f32)elements);
    while (side * side > elements) {
        side--;
    }
    while ((side + 1) * (side + 1) <= elements) {
        side++;
    }
    return side;
}

/* B[row, column] = sum over i of A[row, i] * A[column, i], modulo 2^64.
 *
 * Work items stride over the matrix by the size of the grid, so every grid computes the whole
 * result, also if the side is not a multiple of the block. Sums are unsigned since they may wrap:
 * signed overflow would be undefined.
 */
KERNEL void matmul(GLOBAL const i64 *A, u64 a_bytes, GLOBAL i64 *B)
{
    u64 side = side_of(a_bytes / sizeof(i64));
    u64 row_step = GLOBAL_SIZE(1);
    u64 column_step = GLOBAL_SIZE(0);
    for (u64 row = GLOBAL_ID(1); row < side; row += row_step) {
        for (u64 column = GLOBAL_ID(0); column < side; column += column_step) {
            u64 sum = 0;
            for (u64 i = 0; i < side; i++) {
                sum += (u64)A[row * side + i] * (u64)A[column * side + i];
            }
            B[row * side + column] = (i64)sum;
        }
    }
}

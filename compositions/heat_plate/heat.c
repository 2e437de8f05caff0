/* Heat on a plate, by Jacobi's method: each inner point becomes the mean of its four neighbours. */
#include "dandelion.h"

/* The four neighbours are added in this order: above, below, left, right. */
KERNEL void sweep(GLOBAL const f32 *plate, GLOBAL f32 *swept, u64 rows, u64 columns, u64 bytes)
{
    u64 column = GLOBAL_ID(0), row = GLOBAL_ID(1), i = row * columns + column;
    if (row >= rows || column >= columns || (i + 1) * sizeof(f32) > bytes)
        return;
    if (row == 0 || column == 0 || row + 1 == rows || column + 1 == columns
        || (i + columns + 1) * sizeof(f32) > bytes)
        swept[i] = plate[i];
    else
        swept[i] = 0.25f * (plate[i - columns] + plate[i + columns] + plate[i - 1] + plate[i + 1]);
}

/* Bits of positive numbers are ordered as the numbers are, so the largest is found exactly. */
KERNEL void largest_change(GLOBAL const f32 *after, GLOBAL const f32 *before, GLOBAL u32 *largest,
                           u64 count)
{
    LOCAL u32 of_block;
    u64 i = GLOBAL_ID(0);
    if (LOCAL_ID(0) == 0)
        of_block = 0;
    BARRIER();
    if (i < count)
        ATOMIC_MAX_U32(&of_block, AS_U32(fabsf(after[i] - before[i])));
    BARRIER();
    if (LOCAL_ID(0) == 0)
        ATOMIC_MAX_U32(largest, of_block);
}

KERNEL void decide(GLOBAL const f32 *largest, GLOBAL const f32 *tolerance, GLOBAL u32 *going)
{
    going[0] = largest[0] > tolerance[0];
}

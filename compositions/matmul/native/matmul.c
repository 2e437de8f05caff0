/* B = A x transpose(A) for a square, row-major matrix of 64-bit integers: a native function beside
 * the blueprint, with the same sets. `cfg` is the size of a GPU's grid and is not used here. */
#include "dandelion_sets.h"

enum { NOT_ONE_MATRIX = 2, NOT_SQUARE = 3, TILE = 32 };

/* Sums are unsigned since they may wrap: signed overflow would be undefined. */
static int32_t dandelion_main(void)
{
    const struct dandelion_buffer *cfg = dandelion_input(0, 0), *in = dandelion_input(1, 0);
    if (!in || dandelion_count(1) != 1) {
        return NOT_ONE_MATRIX;
    }
    size_t count = in->data_len / sizeof(uint64_t), side = 0;
    while ((side + 1) * (side + 1) <= count) {
        side++;
    }
    if (side * side * sizeof(uint64_t) != in->data_len) {
        return NOT_SQUARE;
    }
    const uint64_t *a = in->data;
    uint64_t *b = dandelion_alloc(in->data_len);
    for (size_t top = 0; top < side; top += TILE) { /* a tile of rows stays in the cache */
        size_t bottom = top + TILE < side ? top + TILE : side;
        for (size_t column = 0; column < side; column++) {
            const uint64_t *right = a + column * side;
            for (size_t row = top; row < bottom; row++) {
                const uint64_t *left = a + row * side;
                uint64_t sum = 0;
                for (size_t i = 0; i < side; i++) {
                    sum += left[i] * right[i];
                }
                b[row * side + column] = sum;
            }
        }
    }
    /* As on a GPU, the item is named after that of the first input. */
    const struct dandelion_buffer *named = cfg ? cfg : in;
    return dandelion_output(0, named->name, named->name_len, b, in->data_len, named->key);
}

/* One layer of a convolutional network on a batch of single-channel images, row-major.
 *
 * Dimensions 0, 1, 2 of the grid are column, row and image. Width and height come from the
 * blueprint, but the caller chooses the size of an image set, so each kernel also checks its work
 * item against the size of the buffer that it writes.
 */
#include "dandelion.h"

#define FILTER_SIDE 5
#define MARGIN (FILTER_SIDE / 2)

/* Whether image `image` of `elements` values is within a buffer of `bytes`. */
DEVICE int holds(u64 bytes, u64 image, u64 elements)
{
    return (image + 1) * elements * sizeof(f32) <= bytes;
}

/* Correlate with a 5 x 5 filter; beyond the border the image is zero.
 *
 * Terms are added one by one, filter rows first, then columns; terms beyond the border are skipped,
 * which equals adding zero.
 */
KERNEL void convolution(GLOBAL const f32 *images, u64 image_bytes, GLOBAL const f32 *filter,
                        GLOBAL f32 *result, i64 width, i64 height)
{
    i64 column = GLOBAL_ID(0);
    i64 row = GLOBAL_ID(1);
    u64 image = GLOBAL_ID(2);
    u64 elements = (u64)width * (u64)height;
    if (column >= width || row >= height || !holds(image_bytes, image, elements)) {
        return;
    }
    GLOBAL const f32 *source = images + image * elements;
    f32 sum = 0.0f;
    for (i64 y = 0; y < FILTER_SIDE; y++) {
        i64 source_row = row + y - MARGIN;
        if (source_row < 0 || source_row >= height) {
            continue;
        }
        for (i64 x = 0; x < FILTER_SIDE; x++) {
            i64 source_column = column + x - MARGIN;
            if (source_column < 0 || source_column >= width) {
                continue;
            }
            sum += source[source_row * width + source_column] * filter[y * FILTER_SIDE + x];
        }
    }
    result[image * elements + (u64)(row * width + column)] = sum;
}

/* Replace negative values by zero; NaN stays NaN. */
KERNEL void relu(GLOBAL const f32 *values, u64 value_bytes, GLOBAL f32 *result, i64 width,
                 i64 height)
{
    i64 column = GLOBAL_ID(0);
    i64 row = GLOBAL_ID(1);
    u64 image = GLOBAL_ID(2);
    u64 elements = (u64)width * (u64)height;
    if (column >= width || row >= height || !holds(value_bytes, image, elements)) {
        return;
    }
    u64 place = image * elements + (u64)(row * width + column);
    f32 value = values[place];
    result[place] = value < 0.0f ? 0.0f : value;
}

/* Keep the largest value of each 2 x 2 square; an odd last row or column is dropped.
 *
 * `width` and `height` are those of the source; the result has half of each, rounded down.
 */
KERNEL void max_pool(GLOBAL const f32 *values, u64 value_bytes, GLOBAL f32 *result, i64 width,
                     i64 height)
{
    i64 column = GLOBAL_ID(0);
    i64 row = GLOBAL_ID(1);
    u64 image = GLOBAL_ID(2);
    i64 pooled_width = width / 2;
    i64 pooled_height = height / 2;
    u64 elements = (u64)width * (u64)height;
    if (column >= pooled_width || row >= pooled_height || !holds(value_bytes, image, elements)) {
        return;
    }
    GLOBAL const f32 *corner = values + image * elements + (u64)(2 * row * width + 2 * column);
    f32 upper = corner[0] > corner[1] ? corner[0] : corner[1];
    f32 lower = corner[width] > corner[width + 1] ? corner[width] : corner[width + 1];
    u64 pooled_elements = (u64)pooled_width * (u64)pooled_height;
    result[image * pooled_elements + (u64)(row * pooled_width + column)] =
        upper > lower ? upper : lower;
}

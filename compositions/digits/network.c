/* A small network for one 8 x 8 image: convolution, ReLU, max-pool, and two dense layers.
 *
 * Buffers are row-major float32: image [side, side], maps [filters, side, side], dense weights
 * [outputs, inputs]. A convolution adds its terms in index order, then the bias; the order of a
 * dense layer's sum is stated there.
 */
#include "dandelion.h"

#define FILTER_SIDE 3
#define MARGIN (FILTER_SIDE / 2)

/* Work items of a block of `dense`; a power of two, and the block size of its launches. */
#define LANES 64

/* Correlate the image with each filter; beyond the border the image is zero.
 *
 * Dimensions 0, 1, 2 of the grid are column, row and filter.
 */
KERNEL void convolution(GLOBAL const f32 *image, GLOBAL const f32 *weights,
                        GLOBAL const f32 *bias, GLOBAL f32 *maps, i64 side, i64 filters)
{
    i64 column = GLOBAL_ID(0);
    i64 row = GLOBAL_ID(1);
    i64 filter = GLOBAL_ID(2);
    if (column >= side || row >= side || filter >= filters) {
        return;
    }
    GLOBAL const f32 *taps = weights + filter * FILTER_SIDE * FILTER_SIDE;
    f32 sum = 0.0f;
    for (i64 y = 0; y < FILTER_SIDE; y++) {
        i64 source_row = row + y - MARGIN;
        if (source_row < 0 || source_row >= side) {
            continue;
        }
        for (i64 x = 0; x < FILTER_SIDE; x++) {
            i64 source_column = column + x - MARGIN;
            if (source_column < 0 || source_column >= side) {
                continue;
            }
            sum += image[source_row * side + source_column] * taps[y * FILTER_SIDE + x];
        }
    }
    maps[(filter * side + row) * side + column] = sum + bias[filter];
}

/* Replace negative values by zero, in place; NaN stays NaN. */
KERNEL void relu(GLOBAL f32 *values, u64 bytes)
{
    u64 i = GLOBAL_ID(0);
    if (i < bytes / sizeof(f32) && values[i] < 0.0f) {
        values[i] = 0.0f;
    }
}

/* Keep the largest value of each 2 x 2 square of each map; `side` is that of the source, even. */
KERNEL void max_pool(GLOBAL const f32 *maps, GLOBAL f32 *pooled, i64 side, i64 filters)
{
    i64 column = GLOBAL_ID(0);
    i64 row = GLOBAL_ID(1);
    i64 filter = GLOBAL_ID(2);
    i64 half_side = side / 2;
    if (column >= half_side || row >= half_side || filter >= filters) {
        return;
    }
    GLOBAL const f32 *corner = maps + (filter * side + 2 * row) * side + 2 * column;
    f32 upper = corner[0] > corner[1] ? corner[0] : corner[1];
    f32 lower = corner[side] > corner[side + 1] ? corner[side] : corner[side + 1];
    pooled[(filter * half_side + row) * half_side + column] = upper > lower ? upper : lower;
}

/* outputs[o] = sum over i of inputs[i] * weights[o, i], plus bias[o].
 *
 * A block of LANES work items computes one output: lane l adds the terms l, l + LANES, l + 2 LANES
 * and so on, then halves of the lanes are added until one sum is left. The reads of a block are
 * contiguous, and the error of the sum grows with its depth, not with its length.
 */
KERNEL void dense(GLOBAL const f32 *inputs, GLOBAL const f32 *weights, GLOBAL const f32 *bias,
                  GLOBAL f32 *outputs, i64 input_count, i64 output_count)
{
    LOCAL f32 partial[LANES];
    i64 output = GROUP_ID(0);
    i64 lane = LOCAL_ID(0);
    f32 sum = 0.0f;
    if (output < output_count) {
        for (i64 i = lane; i < input_count; i += LANES) {
            sum += inputs[i] * weights[output * input_count + i];
        }
    }
    if (lane < LANES) {
        partial[lane] = sum;
    }
    BARRIER();
    for (i64 half_count = LANES / 2; half_count > 0; half_count /= 2) {
        if (lane < half_count) {
            partial[lane] += partial[lane + half_count];
        }
        BARRIER();
    }
    if (lane == 0 && output < output_count) {
        outputs[output] = partial[0] + bias[output];
    }
}

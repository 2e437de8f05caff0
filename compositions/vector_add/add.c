/* Vector addition in single precision: one work item adds one pair. */
#include "dandelion.h"

/* sum[i] = a[i] + b[i], b being the constant (a keyword in OpenCL C).
 *
 * The launch rounds the number of work items up to whole blocks, and the two inputs come from
 * different sources (call and registration), so the shortest of the three buffers is the bound.
 */
KERNEL void add(GLOBAL const f32 *a, u64 a_bytes, GLOBAL const f32 *b, u64 b_bytes,
                GLOBAL f32 *sum, u64 sum_bytes)
{
    u64 i = GLOBAL_ID(0);
    u64 end = i * sizeof(f32) + sizeof(f32);
    if (end <= a_bytes && end <= b_bytes && end <= sum_bytes) {
        sum[i] = a[i] + b[i];
    }
}

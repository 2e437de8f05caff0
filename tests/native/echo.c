/* Passes every item of its first input set on to its first output set. */
#include "dandelion_sets.h"

static int32_t dandelion_main(void)
{
    int32_t failed = 0;
    for (size_t at = 0; at < dandelion_count(0) && !failed; at++) {
        const struct dandelion_buffer *in = dandelion_input(0, at);
        failed = dandelion_output(0, in->name, in->name_len, in->data, in->data_len, in->key);
    }
    return failed;
}

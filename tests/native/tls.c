/* Thread-local storage as the original's runtime sets it up: a static block, and one arch_prctl, or
 * with WRFSBASE its replacement in executables for the KVM backend. */
#include "dandelion_sets.h"

static __thread int counter;
static __thread unsigned char letters[3];

static struct {
    unsigned char block[240];
    void *self; /* what FS points to, behind the block */
} __attribute__((aligned(64))) storage;

static int32_t dandelion_main(void)
{
    storage.self = &storage.self;
#ifdef WRFSBASE
    __asm__ volatile("wrfsbase %0" : : "r"(&storage.self) : "memory");
#else
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(158), "D"(0x1002), "S"(&storage.self)
                     : "rcx", "r11", "memory");
    if (result) {
        return 20;
    }
#endif
    const struct dandelion_buffer *in = dandelion_input(0, 0);
    const unsigned char *bytes = in->data;
    for (dandelion_word at = 0; at < in->data_len; at++) {
        counter++;
        letters[at % 3] = bytes[at];
    }
    unsigned char *out = dandelion_alloc(4);
    out[0] = (unsigned char)('0' + counter);
    memcpy(out + 1, letters, 3);
    return dandelion_output(0, "tls", 3, out, 4, 0);
}

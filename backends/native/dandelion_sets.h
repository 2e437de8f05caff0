/* A function of sets in C, for native functions (x86-64) and WebAssembly (32-bit): one header, no C
 * library, no start-up files.
 *
 *     #include "dandelion_sets.h"
 *     int32_t dandelion_main(void) {
 *         const struct dandelion_buffer *in = dandelion_input(0, 0);
 *         return dandelion_output(0, "copy", 4, in->data, in->data_len, in->key);
 *     }
 *
 * native:  cc -O2 -static -nostdlib -ffreestanding -fno-stack-protector -fno-pie -no-pie ...
 * wasm:    clang --target=wasm32 -O2 -nostdlib -ffreestanding -Wl,--no-entry
 *              -Wl,--export=run,--export=__dandelion_system_data,--export=memory ...
 *
 * Include it in exactly one file. The exit code is the return value of `dandelion_main`.
 */
#ifndef DANDELION_SETS_H
#define DANDELION_SETS_H

#include <stddef.h>
#include <stdint.h>

typedef uintptr_t dandelion_word;

struct dandelion_set {
    const char *name;
    dandelion_word name_len;
    dandelion_word first; /* index of its first buffer */
};

struct dandelion_buffer {
    const char *name;
    dandelion_word name_len;
    const void *data;
    dandelion_word data_len;
    dandelion_word key;
};

struct dandelion_system {
    int32_t exit_code;
    dandelion_word heap_begin, heap_end;
    dandelion_word input_count;
    struct dandelion_set *inputs;
    dandelion_word output_count;
    struct dandelion_set *outputs;
    struct dandelion_buffer *input_buffers;
    struct dandelion_buffer *output_buffers;
};

/* The host finds it by its name and fills it in. */
__attribute__((used, visibility("default"))) struct dandelion_system __dandelion_system_data = {
    .exit_code = 256};

enum { DANDELION_OUTPUT_LIMIT = 4096, DANDELION_OUT_OF_MEMORY = 259 };

static struct dandelion_buffer dandelion_outputs[DANDELION_OUTPUT_LIMIT];
static uint32_t dandelion_set_of[DANDELION_OUTPUT_LIMIT];
static uint32_t dandelion_output_number;

void *memcpy(void *to, const void *from, size_t size)
{
    unsigned char *target = to;
    const unsigned char *source = from;
    while (size--) {
        *target++ = *source++;
    }
    return to;
}

void *memset(void *to, int value, size_t size)
{
    unsigned char *target = to;
    while (size--) {
        *target++ = (unsigned char)value;
    }
    return to;
}

_Noreturn static void dandelion_leave(int32_t code);

/* Allocate memory from the heap, aligned to 16; it cannot be freed. */
static void *dandelion_alloc(size_t size)
{
    struct dandelion_system *system = &__dandelion_system_data;
    dandelion_word at = (system->heap_begin + 15) & ~(dandelion_word)15;
    if (at > system->heap_end || size > system->heap_end - at) {
#ifdef __wasm__
        dandelion_word pages = (size + 65535) / 65536 + 1;
        if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1) {
            dandelion_leave(DANDELION_OUT_OF_MEMORY);
        }
        system->heap_end = __builtin_wasm_memory_size(0) * 65536;
#else
        dandelion_leave(DANDELION_OUT_OF_MEMORY);
#endif
    }
    system->heap_begin = at + size;
    return (void *)at;
}

/* Number of items of an input set. */
static inline size_t dandelion_count(size_t set)
{
    const struct dandelion_set *sets = __dandelion_system_data.inputs;
    return set < __dandelion_system_data.input_count ? sets[set + 1].first - sets[set].first : 0;
}

/* An item of an input set; NULL if there is none. */
static inline const struct dandelion_buffer *dandelion_input(size_t set, size_t index)
{
    const struct dandelion_system *system = &__dandelion_system_data;
    if (index >= dandelion_count(set)) {
        return NULL;
    }
    return &system->input_buffers[system->inputs[set].first + index];
}

/* Add an item to an output set. Name and data must not change. Returns 0 or an exit code. */
static inline int32_t dandelion_output(size_t set, const char *name, size_t name_len,
                                       const void *data, size_t data_len, dandelion_word key)
{
    uint32_t at = dandelion_output_number;
    if (at == DANDELION_OUTPUT_LIMIT || set >= __dandelion_system_data.output_count) {
        return 1;
    }
    dandelion_outputs[at] = (struct dandelion_buffer){name, name_len, data, data_len, key};
    dandelion_set_of[at] = (uint32_t)set;
    dandelion_output_number = at + 1;
    return 0;
}

/* Write the outputs, grouped by set. */
static void dandelion_finish(int32_t code)
{
    struct dandelion_system *system = &__dandelion_system_data;
    static struct dandelion_buffer grouped[DANDELION_OUTPUT_LIMIT];
    uint32_t number = 0;
    for (dandelion_word set = 0; set < system->output_count; set++) {
        system->outputs[set].first = number;
        for (uint32_t at = 0; at < dandelion_output_number; at++) {
            if (dandelion_set_of[at] == set) {
                grouped[number++] = dandelion_outputs[at];
            }
        }
    }
    system->outputs[system->output_count].first = number;
    system->output_buffers = grouped;
    system->exit_code = code;
}

static int32_t dandelion_main(void);

#ifdef __wasm__
_Noreturn static void dandelion_leave(int32_t code)
{
    dandelion_finish(code);
    __builtin_trap(); /* the host reads the exit code */
}

void run(void)
{
    dandelion_finish(dandelion_main());
}
#else
_Noreturn static void dandelion_leave(int32_t code)
{
    dandelion_finish(code);
    for (;;) {
        __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
    }
}

__attribute__((used)) static void dandelion_begin(void)
{
    dandelion_leave(dandelion_main());
}

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tcall dandelion_begin\n");
#endif

#endif

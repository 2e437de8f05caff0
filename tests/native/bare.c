/* The binary interface, word by word, without any header: doubles the bytes of its input.
 *
 * It has no segment of constants beside its code, writes its name to the heap, and checks the
 * guaranteed state at its start: clear registers, an aligned stack at the end of its memory. */
typedef unsigned long word;

struct set {
    char *ident;
    word ident_len, offset;
};

struct buffer {
    char *ident;
    word ident_len;
    unsigned char *data;
    word data_len, key;
};

struct system {
    int exit_code;
    word heap_begin, heap_end, input_sets_len;
    struct set *input_sets;
    word output_sets_len;
    struct set *output_sets;
    struct buffer *input_bufs, *output_bufs;
};

#ifndef EXIT
#define EXIT "syscall"
#endif

struct system __dandelion_system_data = {.exit_code = 256};

static _Noreturn void leave(int code)
{
    __dandelion_system_data.exit_code = code;
    __asm__ volatile(EXIT : : "a"(60), "D"(code) : "memory");
    __builtin_unreachable();
}

__attribute__((used)) static void begin(word *stack, word registers)
{
    struct system *system = &__dandelion_system_data;
    if (system->exit_code != -1 || registers) {
        leave(10);
    }
    if ((word)stack % 16 || (word)stack <= system->heap_end) {
        leave(11);
    }
    if (system->input_sets_len != 2 || system->output_sets_len != 1 || system->output_bufs) {
        leave(12);
    }
    struct set *sets = system->input_sets;
    if (sets[0].offset != 0 || sets[1].offset != 1 || sets[2].offset != 1 || sets[2].ident_len) {
        leave(13);
    }
    if (sets[1].ident_len || sets[0].ident_len != 1 || sets[0].ident[0] != 'x') {
        leave(14);
    }
    struct buffer *in = system->input_bufs;
    if ((word)in->data % 128 || (word)in->data < 0x10000) {
        leave(15);
    }
    if (system->output_sets[0].ident_len != 1 || system->output_sets[0].ident[0] != 'y') {
        leave(16);
    }
    struct buffer *out = (struct buffer *)system->heap_begin;
    unsigned char *data = (unsigned char *)(out + 1);
    for (word at = 0; at < in->data_len; at++) {
        data[at] = (unsigned char)(2 * in->data[at]);
    }
    *out = (struct buffer){in->ident, in->ident_len, data, in->data_len, in->key + 1};
    system->output_bufs = out;
    system->output_sets[0].offset = 0;
    system->output_sets[1].offset = 1;
    leave(0);
}

__asm__(".globl _start\n_start:\n"
        "\tmov %rsp, %rdi\n"
        "\tor %rax, %rsi\n\tor %rbx, %rsi\n\tor %rcx, %rsi\n\tor %rdx, %rsi\n\tor %rbp, %rsi\n"
        "\tor %r8, %rsi\n\tor %r9, %rsi\n\tor %r10, %rsi\n\tor %r11, %rsi\n\tor %r12, %rsi\n"
        "\tor %r13, %rsi\n\tor %r14, %rsi\n\tor %r15, %rsi\n"
        "\tcall begin\n");

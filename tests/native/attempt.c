/* Attacks of hostile code. The first input selects one, as text: `WORD [number ...]`. */
#include "dandelion_sets.h"

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static const char *text;
static size_t text_len, at;
static uint64_t numbers[8];

static void parse(void)
{
    size_t count = 0;
    while (at < text_len && text[at] != ' ') {
        at++;
    }
    while (at < text_len && count < 8) {
        at++;
        uint64_t value = 0;
        while (at < text_len && text[at] != ' ') {
            value = value * 10 + (uint64_t)(text[at++] - '0');
        }
        numbers[count++] = value;
    }
}

static int is(const char *word)
{
    size_t length = 0;
    while (word[length]) {
        if (length >= text_len || text[length] != word[length]) {
            return 0;
        }
        length++;
    }
    return length == text_len || text[length] == ' ';
}

static uint64_t deep(volatile char *above)
{
    volatile char frame[4096];
    frame[0] = above ? above[0] : 1;
    return deep(frame) + (uint64_t)frame[0];
}

static void on_stack(uint64_t stack)
{
    __asm__ volatile("mov %0, %%rsp\n\tud2" : : "r"(stack) : "memory");
}

static void clobber(void)
{
    /* Direction flag set, stack pointer invalid: a handler must not depend on them. */
    __asm__ volatile("std\n\tmov $1, %%rsp\n\tmov $39, %%eax\n\tsyscall" : : : "memory");
}

static int32_t dandelion_main(void)
{
    struct dandelion_system *system = &__dandelion_system_data;
    const struct dandelion_buffer *in = dandelion_input(0, 0);
    text = in->data;
    text_len = in->data_len;
    parse();
    uint64_t *n = numbers;
    volatile unsigned char *memory = (unsigned char *)n[0];
    if (is("call")) {
        call((long)n[0], (long)n[1], (long)n[2], (long)n[3], (long)n[4], (long)n[5], (long)n[6]);
    } else if (is("read")) {
        return memory[0] ? 1 : 2;
    } else if (is("write")) {
        memory[0] = 1;
    } else if (is("jump")) {
        ((void (*)(void))n[0])();
    } else if (is("int80")) {
        __asm__ volatile("int $0x80" : : "a"(n[0]), "b"(n[1]), "c"(0), "d"(0) : "memory");
    } else if (is("sysenter")) {
        __asm__ volatile("sysenter" : : "a"(n[0]) : "memory", "rcx", "rdx");
    } else if (is("int3")) {
        __asm__ volatile("int3");
    } else if (is("int32")) {
        __asm__ volatile("int $32");
    } else if (is("ud2")) {
        __asm__ volatile("ud2");
    } else if (is("hlt")) {
        __asm__ volatile("hlt");
    } else if (is("rdpmc")) {
        __asm__ volatile("rdpmc" : : "c"(0) : "eax", "edx");
    } else if (is("wrmsr")) {
        __asm__ volatile("wrmsr" : : "c"(0xc0000102), "a"(0), "d"(0));
    } else if (is("cr3")) {
        uint64_t value;
        __asm__ volatile("mov %%cr3, %0" : "=r"(value));
    } else if (is("outb")) {
        __asm__ volatile("outb %%al, $0x80" : : "a"(0));
    } else if (is("cli")) {
        __asm__ volatile("cli");
    } else if (is("divide")) {
        __asm__ volatile("xor %%ecx, %%ecx\n\tdiv %%ecx" : : "a"(1), "d"(0) : "rcx");
    } else if (is("noncanonical")) {
        return *(volatile unsigned char *)0x8000000000000000ul;
    } else if (is("deep")) {
        return (int32_t)deep(NULL);
    } else if (is("heap")) {
        for (;;) {
            memset((void *)system->heap_begin, 1, 4096);
            system->heap_begin += 4096;
        }
    } else if (is("alloc")) {
        for (;;) {
            dandelion_alloc(1 << 20);
        }
    } else if (is("loop")) {
        for (;;) {
            __asm__ volatile("pause");
        }
    } else if (is("stack")) {
        on_stack(n[0]);
    } else if (is("clobber")) {
        clobber();
    } else if (is("execute")) {
        unsigned char *code = dandelion_alloc(16);
        code[0] = 0xc3;
        ((void (*)(void))code)();
    } else if (is("patch")) {
        *(volatile unsigned char *)(uintptr_t)&deep = 0xc3;
    } else if (is("forge")) { /* a report of an exit that never happened, then the real end */
        volatile uint64_t *report = (uint64_t *)n[0];
        for (size_t i = 0; i < n[1]; i++) {
            report[i] = 0x216e6f6974636e75;
        }
        system->exit_code = 0;
        __asm__ volatile("ud2");
    } else if (is("silent")) { /* ends without a code */
        call(231, 0, 0, 0, 0, 0, 0);
    } else if (is("handler")) { /* calls the handler directly, without a signal */
        __asm__ volatile("mov %0, %%rax\n\txor %%edi, %%edi\n\txor %%esi, %%esi\n\txor %%edx, %%edx\n"
                         "\tjmp *%%rax" : : "r"(n[0]) : "memory");
    } else if (is("outputs")) { /* system data from the second input */
        const struct dandelion_buffer *forged = dandelion_input(1, 0);
        memcpy(system, forged->data, forged->data_len);
        call(231, 0, 0, 0, 0, 0, 0);
    } else if (is("items")) {
        size_t count = n[0];
        struct dandelion_buffer *rows = dandelion_alloc(count * sizeof *rows);
        for (size_t i = 0; i < count; i++) {
            rows[i] = (struct dandelion_buffer){"i", 1, (void *)system->heap_begin, n[1], i};
        }
        system->outputs[0].first = 0;
        system->outputs[1].first = count;
        system->output_buffers = rows;
        system->exit_code = 0;
        call(231, 0, 0, 0, 0, 0, 0);
    } else if (is("gs")) {
        call(158, 0x1001, 0x20000, 0, 0, 0, 0);
    } else if (is("vdso")) { /* where exec puts it, as its auxiliary vector would say */
        for (uint64_t a = 0x7ffff7000000; a < 0x7ffffffff000; a += 4096) {
            if (*(volatile unsigned char *)a == 0x7f) {
                return 1;
            }
        }
    } else {
        return dandelion_output(0, "still", 5, text, text_len, 0);
    }
    return 77; /* the attempt did nothing */
}

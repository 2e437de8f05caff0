/* The launcher: the whole program of a zygote and of the sandboxes that it forks.
 *
 * launcher.bin is this file, assembled; `launcher.py` puts it behind an ELF header and fills the
 * first two pages with data. Build:
 *
 *   cc -c launcher.S -o launcher.o && objcopy -O binary -j .text launcher.o launcher.bin
 *
 * The address space, from BASE:
 *
 *   0x0000  data, 2 pages, rw: records for the kernel, and rows as they come from the engine
 *   0x2000  this code's first page, r-x: everything that makes system calls before the function
 *   0x3000  its second page, r-x: what stays beside the function
 *   0x4000  the report, 4 pages, rw: mapped by a row; signal stack and what the handler found
 *
 * A row is a system call: number, six arguments, 8 bytes each. A row with a negative number ends
 * the list. Descriptors: a zygote has 0 control, 1 life line, and 2 while it forks; a sandbox has
 * 2 its channel, then 0 its context and 1 its program.
 *
 * Nothing here uses a stack. rbx is BASE from start to end.
 */
        .intel_syntax noprefix
        .text
        .globl  _start

        .equ    BASE, 0x100000000000
        .equ    CODE, BASE + 0x2000
        .equ    REPORT, BASE + 0x4000
        .equ    TOP, 0x7ffffffff000
        .equ    PAGES_THAT_GO, 0x3000
        .equ    MAGIC, 0x216e6f6974636e75

        /* Offsets in the data pages; `launcher.py` has the same. */
        .equ    ANSWER, 0x000           /* to the control socket: a process id, a wait status */
        .equ    REQUEST, 0x010          /* struct msghdr of what the zygote receives */
        .equ    REQUEST_TEXT, 0x058     /* its text: process id to wait for; 0: none */
        .equ    REQUEST_ROOM, 24        /* its msg_controllen */
        .equ    CALL, 0x080             /* struct msghdr of what a sandbox receives */
        .equ    ZYGOTE, 0x1f8           /* process id */
        .equ    SET_UP, 0x200           /* rows of the zygote */
        .equ    ROWS, 0x1000            /* rows of a sandbox */

        .equ    sys_write, 1
        .equ    sys_close, 3
        .equ    sys_munmap, 11
        .equ    sys_getpid, 39
        .equ    sys_recvmsg, 47
        .equ    sys_clone, 56
        .equ    sys_wait4, 61
        .equ    sys_getppid, 110
        .equ    sys_prctl, 157
        .equ    sys_exit_group, 231

_start:
        movabs  rbx, BASE
        mov     eax, sys_getpid
        syscall
        mov     [rbx + ZYGOTE], rax
        mov     eax, sys_munmap         /* stack, arguments, vdso: all that exec has mapped */
        movabs  rdi, REPORT
        movabs  rsi, TOP - REPORT
        syscall
        mov     [rbx + ANSWER], rax
        lea     r12, [rbx + SET_UP]
        lea     r13, [rip + answer]
        jmp     run

answer:
        mov     eax, sys_write
        xor     edi, edi
        mov     rsi, rbx
        mov     edx, 16
        syscall
        test    rax, rax
        jle     leave
serve:
        mov     qword ptr [rbx + REQUEST + 40], REQUEST_ROOM
        mov     eax, sys_recvmsg
        xor     edi, edi
        lea     rsi, [rbx + REQUEST]
        xor     edx, edx
        syscall
        test    rax, rax
        jle     leave
        mov     qword ptr [rbx + ANSWER + 8], -1
        mov     rdi, [rbx + REQUEST_TEXT]
        test    rdi, rdi
        jz      fork
        mov     eax, sys_wait4          /* it was killed, so this does not take long */
        lea     rsi, [rbx + ANSWER + 8]
        xor     edx, edx
        xor     r10d, r10d
        syscall
fork:
        mov     qword ptr [rbx + ANSWER], 0
        cmp     qword ptr [rbx + REQUEST + 40], 0
        je      answer                  /* no descriptor came, so no sandbox is requested */
        mov     eax, sys_clone          /* no flags, SIGCHLD at its end */
        mov     edi, 17
        xor     esi, esi
        xor     edx, edx
        xor     r10d, r10d
        xor     r8d, r8d
        syscall
        test    rax, rax
        jz      sandbox
        mov     [rbx + ANSWER], rax
        mov     eax, sys_close          /* first, so that only the sandbox holds its channel */
        mov     edi, 2
        syscall
        jmp     answer

sandbox:
        mov     eax, sys_prctl          /* die with the zygote */
        mov     edi, 1
        mov     esi, 9
        syscall
        mov     eax, sys_getppid
        syscall
        cmp     rax, [rbx + ZYGOTE]
        jne     leave
        mov     eax, sys_close
        xor     edi, edi
        syscall
        mov     eax, sys_close
        mov     edi, 1
        syscall
        mov     eax, sys_recvmsg
        mov     edi, 2
        lea     rsi, [rbx + CALL]
        xor     edx, edx
        syscall
        test    rax, rax
        jle     leave
        lea     r12, [rbx + ROWS]
        lea     r13, [rip + begin]
run:
        mov     rax, [r12]
        test    rax, rax
        js      ran
        mov     rdi, [r12 + 8]
        mov     rsi, [r12 + 16]
        mov     rdx, [r12 + 24]
        mov     r10, [r12 + 32]
        mov     r8, [r12 + 40]
        mov     r9, [r12 + 48]
        syscall
        add     r12, 56
        cmp     rax, -4095
        jb      run
leave:
        mov     eax, sys_exit_group
        mov     edi, 1
        syscall
        hlt
ran:
        jmp     r13
begin:
        mov     r15, [r12 + 8]          /* entry */
        mov     r14, [r12 + 16]         /* stack pointer */
        jmp     enter

        .org    0x1000, 0xcc
        /* Unmap the first page and the data, and start the function with clear registers. */
enter:
        mov     eax, sys_munmap
        mov     rdi, rbx
        mov     esi, PAGES_THAT_GO
        syscall
        test    eax, eax
        jnz     stop
        mov     rsp, r14
        push    r15
        xor     ebx, ebx
        xor     ecx, ecx
        xor     edx, edx
        xor     esi, esi
        xor     edi, edi
        xor     ebp, ebp
        xor     r8d, r8d
        xor     r9d, r9d
        xor     r10d, r10d
        xor     r11d, r11d
        xor     r12d, r12d
        xor     r13d, r13d
        xor     r14d, r14d
        xor     r15d, r15d
        ret

        /* Handler of all signals: write the report, and exit. rsi: siginfo, rdx: ucontext. */
        .org    0x1080, 0xcc
report:
        movabs  r8, REPORT
        mov     [r8 + 8], rdi           /* signal */
        mov     rax, [rsi + 8]
        mov     [r8 + 16], rax          /* si_code */
        mov     rax, [rsi + 16]
        mov     [r8 + 24], rax          /* si_addr, si_call_addr */
        mov     rax, [rsi + 24]
        mov     [r8 + 32], rax          /* si_syscall, si_arch */
        mov     rax, [rdx + 168]
        mov     [r8 + 40], rax          /* rip */
        mov     rax, [rdx + 160]
        mov     [r8 + 48], rax          /* rsp */
        movabs  rax, MAGIC
        mov     [r8], rax
stop:
        xor     edi, edi
        mov     eax, sys_exit_group
        syscall
        hlt
        .org    0x2000, 0xcc
        .section .note.GNU-stack, "", @progbits

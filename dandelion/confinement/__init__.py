"""Give up rights on Linux: Landlock, seccomp, user, capabilities, namespaces, resource limits.

Processes that run code of users, or a large program on data of users, confine themselves with these
modules. `lockdown` has the steps, `seccomp` the system call filter, `syscalls` the numbers, `libc`
the calls that Python's library lacks. They import only the standard library and `dandelion.errors`,
so that a process can confine itself before it loads anything else.
"""

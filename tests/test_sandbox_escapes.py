"""Attacks of hostile code in a sandbox; none of them works.

Three kinds of proof: a denied call ends as `Unauthorized` and is named; what stays allowed shows
nothing of the host; and a forged reply is `BadOutput`, never believed and never harmful. After each
attempt the engine runs an honest call.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.policy import CHANNEL_FD, POLICY

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import native
from dandelion.errors import (
    Faulted,
    OutOfMemory,
    Raised,
    TimedOut,
    Unauthorized,
)
from tests.sandbox_attempts import ECHO, attempt

from .filters import effect
from .python_functions import first, function, process_engine, run


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: ProcessEngine) -> Iterator[None]:
    yield
    assert first(run(engine, ECHO, b"still here")).bytes() == b"still here"


DENIED = {
    "open('/etc/passwd')": "open a file",
    "open('/tmp/x', 'w')": "open a file",
    "open('/proc/self/mem', 'r+b', 0)": "open a file",
    "open('/proc/self/maps')": "open a file",
    "open('/dev/null')": "open a file",
    "os.listdir('/')": "open a file",
    "os.unlink('/tmp/x')": "change files",
    "os.mkdir('/tmp/x')": "change files",
    "os.chdir('/')": "look into directories",
    "os.chroot('/')": "look into directories",
    "os.statvfs('/')": "look into directories",
    "_socket.socket()": "use the network",
    "_socket.socketpair()": "use the network",
    "os.fork()": "start a process or thread",
    "os.forkpty()": "open a file",
    "os.posix_spawn('/bin/true', ['true'], {})": "start a process or thread",
    "os.execv('/bin/true', ['true'])": "start a program",
    "threading.Thread(target=print).start()": "start a process or thread",
    "os.kill(os.getppid(), 9)": "send a signal",
    "os.kill(os.getppid(), 0)": "send a signal",
    "os.kill(os.getpid(), 9)": "send a signal",
    "os.kill(-1, 9)": "send a signal",
    "os.killpg(0, 9)": "send a signal",
    "signal.raise_signal(9)": "send a signal",
    "os.pidfd_open(os.getppid())": "look into another process",
    "os.memfd_create('x')": "share memory",
    "os.pipe()": "open a pipe",
    "os.eventfd(0)": "open a pipe",
    "os.dup2(3, 9)": "make the system call",
    "os.nice(-5)": "make the system call",
    "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))": "make the system call",
    "os.setuid(0)": "change its privileges",
    "os.setgroups([0])": "change its privileges",
    "os.sendfile(3, 4, 0, 1)": "make the system call",
    "fcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())": "make the system call",
    "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)": "make executable memory",
    "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))": "change limits of others",
}


_IMPORTS = "import _socket, ctypes, fcntl, mmap, os, resource, signal, threading\n"


_DECLARED = "_socket,fcntl,mmap,resource"


@pytest.mark.parametrize("call", DENIED)
def test_denied(engine: ProcessEngine, call: str) -> None:
    source = f"{_IMPORTS}def f(x):\n    {call}\n"
    error = attempt(engine, source, imports=_DECLARED)
    assert isinstance(error, Unauthorized), error
    assert error.what.startswith(DENIED[call])
    assert "line 3, in f" in error.traceback


RAW = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd io_uring_setup io_uring_enter
    io_setup userfaultfd bpf perf_event_open prctl arch_prctl personality unshare setns seccomp
    clone clone3 vfork execveat mount umount2 pivot_root open_tree fsopen swapon reboot kexec_load
    init_module finit_module keyctl add_key request_key shmget shmat semget msgget mq_open
    memfd_secret landlock_create_ruleset name_to_handle_at open_by_handle_at fanotify_init
    inotify_init1 epoll_create1 timer_create timerfd_create signalfd4 pidfd_send_signal tkill
    rt_sigqueueinfo sched_setattr setpriority ioprio_set mlock mlockall remap_file_pages
    set_mempolicy migrate_pages quotactl sethostname settimeofday clock_settime adjtimex syslog
    openat2 copy_file_range splice tee vmsplice socketpair connect bind listen accept4 sendmmsg
    recvmmsg setsockopt setresuid capset setsid setpgid close_range pkey_mprotect modify_ldt iopl
"""


@pytest.mark.parametrize("name", RAW.split())
def test_raw_system_calls_are_denied(engine: ProcessEngine, name: str) -> None:
    number = native().numbers.get(name)
    if number is None:
        pytest.skip(f"this architecture has no {name}")
    source = f"import ctypes\ndef f(x):\n    ctypes.CDLL(None).syscall({number}, 0, 0, 0, 0, 0, 0)"
    error = attempt(engine, source)
    assert isinstance(error, Unauthorized), error
    assert error.what.endswith(f"({name})")


def test_a_denied_call_need_not_raise(engine: ProcessEngine) -> None:
    error = attempt(engine, "import os\ndef f(x):\n    return str(os.system('true'))\n")
    assert isinstance(error, Unauthorized)
    assert error.what.startswith("start a process or thread")


def test_calls_newer_than_the_table_are_denied(engine: ProcessEngine) -> None:
    error = attempt(engine, "import ctypes\ndef f(x): ctypes.CDLL(None).syscall(1000)\n")
    assert isinstance(error, Unauthorized)
    assert "1000" in error.what


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is an interface of x86_64")
def test_the_other_call_interface_kills(engine: ProcessEngine) -> None:
    error = attempt(engine, "import ctypes\ndef f(x): ctypes.CDLL(None).syscall(0x40000000 + 39)\n")
    assert isinstance(error, Unauthorized)


def test_memory_cannot_become_executable(engine: ProcessEngine) -> None:
    source = """
    import ctypes, mmap
    def f(x):
        area = mmap.mmap(-1, 4096)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), 4096, 5)
    """
    error = attempt(engine, source, imports="mmap")
    assert isinstance(error, Unauthorized)
    assert "mprotect" in error.what


def test_catching_the_error_does_not_help(engine: ProcessEngine) -> None:
    source = """
    def f(x):
        try:
            open("/etc/passwd")
        except BaseException:
            return b"nothing happened"
    """
    assert isinstance(attempt(engine, source), Unauthorized)


@pytest.mark.parametrize("attempted", ["os.fork()", "open('/etc/passwd')", "os.kill(-1, 9)"])
def test_trying_again_and_again_ends_at_once(engine: ProcessEngine, attempted: str) -> None:
    source = f"""
    import os
    def f(x):
        while True:
            try:
                {attempted}
            except OSError:
                pass
    """
    assert isinstance(attempt(engine, source), Unauthorized)


def test_going_on_quietly_after_a_denied_call_ends_soon(engine: ProcessEngine) -> None:
    source = """
    def f(x):
        try:
            open("/etc/passwd")
        finally:
            while True: pass
    """
    assert isinstance(attempt(engine, source), Unauthorized)


def look(engine: ProcessEngine, expression: str, imports: str = "") -> str:
    source = f"import ctypes, gc, os, sys\n{'import ' + imports if imports else ''}\n"
    source += f"def f(x):\n    return str({expression})\n"
    return first(run(engine, function(source, imports=imports), b"x")).text()


def test_only_its_own_descriptors_are_open(engine: ProcessEngine) -> None:
    source = """
    import fcntl
    def f(x):
        found = []
        for descriptor in range(4096):
            try:
                fcntl.fcntl(descriptor, fcntl.F_GETFD)
            except OSError:
                continue
            found.append(descriptor)
        return str(found)
    """
    small = first(run(engine, function(source, imports="fcntl"), b"x")).text()
    assert small == "[0, 1, 2, 3, 4]"
    large = first(run(engine, function(source, imports="fcntl"), bytes(1 << 20))).text()
    assert large in ("[0, 1, 2, 3, 4, 5]", "[0, 1, 2, 3, 4, 5, 6]")  # its inputs


def test_what_was_shared_at_its_fork_is_given_up(engine: ProcessEngine) -> None:
    source = """
def f(x):
    import sys
    frame = sys._getframe()
    while "context" not in frame.f_locals:
        frame = frame.f_back
    context = frame.f_locals["context"]
    try:
        context.started[0] = 1
    except ValueError as error:
        return f"{error}; {context.control.fileno()}"
"""
    gone = first(run(engine, function(source), b"")).text()
    assert gone == f"mmap closed or invalid; {CHANNEL_FD}"


def test_nothing_of_the_node_is_visible(engine: ProcessEngine) -> None:
    assert look(engine, "dict(os.environ)") == "{'TZ': 'UTC0'}"
    assert look(engine, "sys.argv") == "['']"
    assert look(engine, "sys.path") == "[]"
    assert look(engine, "os.path.exists('/etc/passwd')") == "False"
    assert look(engine, "os.access('/', 0)") == "False"
    assert look(engine, "sys.stdin.read()") == ""
    if os.geteuid() == 0:
        assert look(engine, "(os.getuid(), os.geteuid(), os.getgid())") == str((65534,) * 3)


@pytest.mark.parametrize("call", ["os.stat('/etc/passwd')", "os.getcwd()", "os.uname()"])
def test_looking_fails_quietly(engine: ProcessEngine, call: str) -> None:
    error = attempt(engine, f"import os\ndef f(x): {call}\n")
    assert isinstance(error, Raised)
    assert error.exception.startswith("PermissionError")


def test_stat_by_descriptor_cannot_be_turned_on_paths(engine: ProcessEngine) -> None:
    number = native().numbers["newfstatat"]
    empty_path = 0x1000
    call = f"ctypes.CDLL(None).syscall({number}, 3, b'/etc/passwd', bytes(256), {empty_path})"
    assert look(engine, call) == "-1"


def test_limits_cannot_be_raised(engine: ProcessEngine) -> None:
    for limit in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE"):
        source = f"""
        import resource
        def f(x):
            resource.setrlimit(resource.RLIMIT_{limit}, (1 << 50, 1 << 50))
        """
        error = attempt(engine, source, imports="resource")
        assert isinstance(error, Raised)
        assert error.exception.startswith(("ValueError", "PermissionError"))


def test_calls_share_no_memory(engine: ProcessEngine) -> None:
    keep = function(
        """
        import gc
        def f(x):
            global kept
            kept = [bytes(x[0].data)] * 1000
            return b""
        """
    )
    seek = function(
        """
        import gc
        def f(x):
            found = [o for o in gc.get_objects() if isinstance(o, list) and len(o) == 1000]
            return str(len([o for o in found if b"secret" in o]))
        """
    )
    run(engine, keep, b"secret")
    assert first(run(engine, seek, b"")).text() == "0"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("while True: pass", TimedOut),
        ("time.sleep(1000)", TimedOut),
        ("lock = threading.Lock()\n    while True: lock.acquire()", TimedOut),
        ("x[0].numpy().repeat(1 << 40)", OutOfMemory),
        ("mmap.mmap(-1, 1 << 40)", OutOfMemory | Raised),
        ("keep = []\n    while True: keep.append(mmap.mmap(-1, 1 << 24))", OutOfMemory | Raised),
        ("f(x)", Raised),
        ("sys.setrecursionlimit(10**9); f(x)", OutOfMemory | Faulted | TimedOut),
        ("sys.setrecursionlimit(10**9); list(map(f, [x]))", OutOfMemory | Faulted | Raised),
        ("re.match('(a*)*b', 'a' * 64)", TimedOut),
        ("9 ** 9 ** 9 ** 9", TimedOut | OutOfMemory),
        ("os.ftruncate(4, 1 << 50)", Raised),
        ("for _ in range(999): os.write(4, bytes(1 << 20))", Raised),
        ("[os.write(1, bytes(1 << 16)) for _ in range(99)]", Raised),
        ("ctypes.memset(0, 1, 1)", Faulted),
        ("ctypes.memset(id(None), 255, 1 << 12)", Faulted),
        ("signal.setitimer(signal.ITIMER_REAL, 0.001)\n    while True: pass", Faulted),
    ],
)  # fmt: skip
def test_exhaustion(engine: ProcessEngine, body: str, expected: type) -> None:
    imports = "import ctypes, mmap, os, re, signal, sys, threading, time\n"
    limits = {"memory_bytes": 64 << 20, "wall_s": 0.5, "cpu_s": 0.2, "output_bytes": 1 << 20}
    source = f"{imports}def f(x):\n    {body}\n"
    assert isinstance(attempt(engine, source, imports="mmap", **limits), expected)


ALLOW, NOTIFY, KILL = 0x7FFF0000, 0x7FC00000, 0x80000000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_on_every_architecture(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    here = native()
    program = seccomp.program(here, POLICY, pid=77)
    assert len(program) // 8 < 4096

    def ask(name: str, *arguments: int) -> int:
        return effect(program, here.numbers[name], here.audit, *arguments)

    allowed = {n for n in here.numbers if ask(n) == ALLOW}
    assert {"read", "write", "futex", "brk", "munmap", "exit_group"} <= allowed
    assert not allowed & {
        "openat", "socket", "execve", "clone", "clone3", "ptrace", "kill", "io_uring_setup",
        "memfd_create", "userfaultfd", "prctl", "ioctl", "dup", "shmat", "newfstatat",
    }  # fmt: skip
    assert ask("mmap", 0, 4096, 3) == ask("mprotect", 0, 4096, 1) == ALLOW
    assert ask("mmap", 0, 4096, 7) == ask("mprotect", 0, 4096, 4) == NOTIFY
    assert ask("sendmsg", 3) == ALLOW
    assert ask("sendmsg", 4) == NOTIFY
    assert ask("prlimit64", 0) == ALLOW
    assert ask("prlimit64", 1) == NOTIFY
    assert ask("tgkill", 77, 77, 6) == ALLOW
    assert ask("tgkill", 77, 77, 9) == ask("tgkill", 78, 78, 6) == NOTIFY
    assert effect(program, here.numbers["read"], here.audit ^ 1) == KILL
    assert effect(program, here.highest + 1, here.audit) == KILL
    assert (
        effect(seccomp.program(here, POLICY, 77, KILL), here.numbers["openat"], here.audit) == KILL
    )

"""Attacks of hostile code in a sandbox; none of them works.

Three kinds of proof: a denied call ends as `Unauthorized` and is named; what stays allowed shows
nothing of the host; and a forged reply is `BadOutput`, never believed and never harmful. After each
attempt the engine runs an honest call.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from dandelion.backends.process import wire
from dandelion.backends.process.engine import ProcessEngine
from dandelion.backends.process.policy import CHANNEL_FD, POLICY

from dandelion.confinement import seccomp
from dandelion.confinement.syscalls import native
from dandelion.errors import (
    BadOutput,
    DandelionError,
    Exited,
    Faulted,
    FunctionError,
    OutOfMemory,
    Raised,
    TimedOut,
    Unauthorized,
)

from .filters import effect
from .python_functions import first, function, process_engine, run

ECHO = function("def f(x):\n    return x\n")


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with process_engine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def _honest_afterwards(engine: ProcessEngine) -> Iterator[None]:
    yield
    assert first(run(engine, ECHO, b"still here")).bytes() == b"still here"


def attempt(engine: ProcessEngine, source: str, **limits: Any) -> DandelionError:
    """Run hostile code and give the error that it ends with."""
    with pytest.raises(FunctionError) as caught:
        run(engine, function(source, **limits), b"x")
    return caught.value


# --- calls that are denied ------------------------------------------------------------------------

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


# --- visible information ----------------------------------------------------------------------


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


# --- using up resources -------------------------------------------------------------------------


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


# --- forged replies -----------------------------------------------------------------------------

pack = msgspec.msgpack.encode


def forged(record: bytes, data: bytes = b"", data_bytes: int | None = None) -> bytes:
    head = wire.PREFIX.pack(len(record), len(data) if data_bytes is None else data_bytes)
    start = head + record
    return start + bytes(-len(start) % 64) + data


def done(*sets: Any) -> bytes:
    return pack(["done", list(sets)])


def say(engine: ProcessEngine, message: bytes, **limits: Any) -> DandelionError:
    return attempt(engine, f"import os\ndef f(x):\n    os.write(3, {message!r})\n", **limits)


FORGED = {
    "no parcel": b"\1",
    "almost a prefix": bytes(15),
    "garbage": os.urandom(200),
    "text": b"HTTP/1.1 200 OK\r\n\r\n" * 4,
    "the longest message": bytes(wire.PREFIX.size + wire.INLINE_BYTES),
    "longer than the longest": bytes(wire.PREFIX.size + wire.INLINE_BYTES + 1000),
    "a record in the file, which is empty": wire.PREFIX.pack(100, 0),
    "no record at all": wire.PREFIX.pack(0, 0),
    "a huge record": wire.PREFIX.pack(1 << 63, 0),
    "huge data": wire.PREFIX.pack(10, 1 << 63),
    "sums that overflow": wire.PREFIX.pack((1 << 64) - 1, (1 << 64) - 1),
    "data that is not there": forged(done([["n", 0, 64]]), b"", 64),
    "data that nobody lists": forged(done(None), bytes(64)),
    "too few sets": forged(done()),
    "too many sets": forged(done(None, None)),
    "a huge array": forged(b"\x92\xa4done\xdd\xff\xff\xff\xff"),
    "a huge array of items": forged(b"\x92\xa4done\x91\xdd\xff\xff\xff\xff\x93\xa1n\0\0"),
    "a huge name": forged(b"\x92\xa4done\x91\x91\x93\xdb\xff\xff\xff\xffn"),
    "a huge map": forged(b"\x92\xa4done\xdf\xff\xff\xff\xff"),
    "deep nesting": forged(b"\x92\xa4done" + b"\x91" * 60_000),
    "a negative size": forged(done([["n", 0, -64]]), b""),
    "a size of 2^64 - 1": forged(done([["n", 0, 2**64 - 1]]), bytes(64)),
    "sizes that cancel out": forged(done([["n", 0, 2**62]] * 4), b""),
    "a size that is too small": forged(done([["n", 0, 0]]), bytes(64)),
    "a size that is too large": forged(done([["n", 0, 65]]), bytes(64)),
    "a negative key": forged(done([["n", -1, 0]])),
    "a key beyond u32": forged(done([["n", 2**32, 0]])),
    "a key of another type": forged(done([["n", 1.5, 0]])),
    "a name of another type": forged(done([[b"n", 0, 0]])),
    "a name that is too long": forged(done([["n" * 256, 0, 0]])),
    "a name with NUL": forged(done([["a\0b", 0, 0]])),
    "a name that is no UTF-8": forged(done([["nn", 0, 0]]).replace(b"nn", b"\xff\xfe")),
    "a name with a surrogate": forged(done([["nnn", 0, 0]]).replace(b"nnn", b"\xed\xa0\x80")),
    "an overlong name": forged(done([["nn", 0, 0]]).replace(b"nn", b"\xc0\xaf")),
    "a type without a name": forged(done([["n", 0, 0, None, [0]]])),
    "an unknown type": forged(done([["n", 0, 8, "object", [1]]]), bytes(64)),
    "a type that numpy would evaluate": forged(done([["n", 0, 8, "(2,)f4", [1]]]), bytes(64)),
    "a type of another size": forged(done([["n", 0, 8, "float32", [1]]]), bytes(64)),
    "a type of half an element": forged(done([["n", 0, 7, "float32", None]]), bytes(64)),
    "a negative dimension": forged(done([["n", 0, 8, "float32", [-2, -1]]]), bytes(64)),
    "a dimension that is no integer": forged(done([["n", 0, 8, "float32", [2.0]]]), bytes(64)),
    "too many dimensions": forged(done([["n", 0, 4, "float32", [1] * 65]]), bytes(64)),
    "more than there can be": forged(done([["n", 0, 0, "int8", [0, 2**62, 2**62]]])),
    "an item without a size": forged(done([["n", 0]])),
    "an item that is no list": forged(done(["n"])),
    "an unknown reply": forged(pack(["granted", []])),
    "a reply without a kind": forged(pack([])),
    "an exit code beyond 32 bits": forged(pack(["exited", 2**40])),
    "frames that are none": forged(pack(["raised", "E", [["f", 1]]])),
    "a reply and more behind it": forged(done(None) + b"\xc0"),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_replies(engine: ProcessEngine, what: str) -> None:
    assert isinstance(say(engine, FORGED[what]), BadOutput)


def test_forged_counts_and_sizes_meet_the_limits(engine: ProcessEngine) -> None:
    many = forged(done([["", 0, 0]] * 11))
    assert isinstance(say(engine, many, output_items=10), BadOutput)
    assert isinstance(
        say(engine, forged(done([["", 0, 64]]), bytes(64)), output_bytes=63), BadOutput
    )


def test_forged_errors_are_only_the_functions_own(engine: ProcessEngine) -> None:
    frames = [[2**62, "x" * 5000], [0, "y"]] * 500
    error = say(engine, forged(pack(["raised", "E" * 9000, frames])))
    assert isinstance(error, Raised)
    assert len(str(error)) < 60_000
    assert isinstance(say(engine, forged(pack(["exited", -7]))), Exited)
    assert isinstance(say(engine, forged(pack(["memory"]))), OutOfMemory)


def test_a_file_that_shrinks_does_not_kill_the_node(engine: ProcessEngine) -> None:
    record = done([["n", 0, 1 << 20]])
    parcel = forged(record, bytes(1 << 20))
    source = f"""
    import os
    def f(x):
        os.write(4, {parcel[:200]!r})
        os.ftruncate(4, 1 << 19)
        os.write(3, {parcel[:16]!r})
        while True:
            os.ftruncate(4, 0)
            os.ftruncate(4, 1 << 20)
    """
    assert isinstance(attempt(engine, source), BadOutput)


def test_the_file_of_a_reply_is_read_from_where_it_says(engine: ProcessEngine) -> None:
    parcel = forged(done([["n", 3, 1 << 20]]), b"ab" * (1 << 19))
    source = f"""
    import os
    def f(x):
        head = {parcel[:64]!r}
        os.pwrite(4, head + b"ab" * (1 << 19), 0)
        os.write(3, head[:16])
    """
    item = first(run(engine, function(source), b"")).only()
    assert (item.name, item.key, item.bytes()) == ("n", 3, b"ab" * (1 << 19))


def test_silence_on_a_closed_channel(engine: ProcessEngine) -> None:
    for body in ("os.close(3)\n    while True: pass", "os.write(3, b'')\n    while True: pass"):
        error = attempt(engine, f"import os\ndef f(x):\n    {body}\n")
        assert isinstance(error, BadOutput)


def test_a_patched_reply_path_is_no_way_out(engine: ProcessEngine) -> None:
    source = """
    import sys
    def f(x):
        wire = sys.modules["dandelion.backends.process.wire"]
        wire.entries = lambda sets: ([wire.ItemHeader("n", 0, 1 << 40)],)
        return b"x"
    """
    assert isinstance(attempt(engine, source), BadOutput)
    source = source.replace("wire.entries =", "wire.send = wire.parcel =")
    assert isinstance(attempt(engine, source), Exited)


def test_descriptors_sent_along_are_dropped() -> None:
    source = f"""
    import sys, socket, gc
    def f(x):
        wire = sys.modules["dandelion.backends.process.wire"]
        sockets = [o for o in gc.get_objects() if isinstance(o, socket.socket)]
        [channel] = [s for s in sockets if s.fileno() == 3]
        wire.send(channel, [{forged(done(None))!r}], [0, 3])
    """
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    # Where many descriptors of this user are under way, the kernel refuses.
    with process_engine() as own, suppress(Raised):
        assert run(own, function(source), b"") == (None,)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_the_channel_cannot_be_looked_into(engine: ProcessEngine) -> None:
    error = attempt(engine, "import socket\ndef f(x): socket.socket(fileno=3)\n")
    assert isinstance(error, Unauthorized)
    assert error.what.startswith("use the network")


# --- the filter itself ------------------------------------------------------------------------


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

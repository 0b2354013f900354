"""The last program before the sandboxed one: gives up rights, step by step, and then becomes the command.

Run inside the walls as `<base python> -I -S wrapper.py CONFIG_JSON -- argv`, and importable elsewhere: a
forked kernel calls `confine` without the exec. Standard library only, and nothing of ours, because it runs
where PRIMS is not installed; `-S` because the `.pth` files of a venv are code of strangers.

CONFIG_JSON is an object; every key is optional:
    env            names of the variables that the command keeps (default: all)
    rlimits        {"NOFILE": 1024, ...}: soft and hard limits, lowered to the hard limit we have
    oom_score_adj  how readily the kernel's OOM killer takes the command
    nice           the niceness of the command: others get the processors first
    uid            the unprivileged uid and gid to become; only a root process can
    confine        true: never be uid 0, drop all capabilities, set no_new_privs, install the seccomp filter
    landlock       walls without namespaces, see `restrict`; with confine, whose filter is stricter then
    supervise      pid of the server: stay behind as a parent that ends all descendants with the command
"""

# pathlib would lengthen every start of a sandbox.

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, *arguments: int) -> None:
    """Call prctl(2); missing arguments are 0. Raises OSError when the kernel refuses."""
    padded = map(ctypes.c_ulong, (*arguments, 0, 0, 0, 0)[:4])
    if _libc.prctl(option, *padded) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


# --------------------------------------------------------------------------------------------- the steps


def confine(config: Mapping[str, Any]) -> None:
    """Take every step that `config` asks for, in the only order that works, on the calling process.

    Not reversible. Call it with a single thread: seccomp and capabilities belong to a thread.
    """
    os.umask(0o022)
    if "oom_score_adj" in config:
        set_oom_score(config["oom_score_adj"])
    if "nice" in config:
        stand_back(config["nice"])
    set_rlimits(config.get("rlimits", {}))
    if config.get("uid") is not None:
        drop_to(config["uid"])
    if config.get("confine"):
        if 0 in (*os.getresuid(), *os.getresgid()):
            raise PermissionError("sandboxed code is never run as root; a uid to drop to is missing")
        clear_capabilities()
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        landlock = config.get("landlock")
        if landlock:
            restrict(landlock)
        install_seccomp(landlock)  # last: some of the steps above are calls that it refuses


def set_oom_score(score: int) -> None:
    """Offer this process to the kernel's OOM killer before the server. Best effort: /proc may be masked."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def stand_back(nice: int) -> None:
    """Let others have the processors first. Best effort, and code in a new session may count for itself again.

    Where Linux shares them out among sessions (autogroup, outside of cgroups), niceness counts within one only.
    """
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(nice))


def set_rlimits(rlimits: Mapping[str, int]) -> None:
    """Set soft and hard limits by name without the RLIMIT_ prefix, none above the hard limit in force."""
    for name, wanted in rlimits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (value, value))


def drop_to(uid: int) -> None:
    """Become `uid` (and the gid of the same number) for good, without groups and without a bounding set."""
    empty_bounding_set()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def empty_bounding_set() -> None:
    """Let no program that is started give this process capabilities."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # past the last capability of this kernel, or not ours to drop
            break


def clear_capabilities() -> None:
    """Empty the effective, permitted, inheritable and ambient sets."""
    with contextlib.suppress(OSError):  # kernels before 4.3 have no ambient set
        prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, bytes(24)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")


# ---------------------------------------------------------------------------------------------- landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_RULE_PATH_BENEATH = 1
_ALL_OF_FILES = (1 << 16) - 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  # what a rule for a file may say
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _ALL_OF_FILES & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
_SINCE = {13: 2, 14: 3, 15: 5}  # rights by bit that only later ABIs know
_TCP_SINCE, SCOPES_SINCE = 4, 6
_TCP, _SCOPES = 3, 3  # bind and connect; abstract sockets and signals
_CONNECT_TCP = 2


def _landlock(number: int, *arguments: Any) -> int:
    value: int = _libc.syscall(number, *arguments)
    if value < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return value


def landlock_abi() -> int:
    """The version of Landlock that this kernel has. Raises OSError when it has none, or refuses it to us."""
    return _landlock(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))


def restrict(config: Mapping[str, Any]) -> None:
    """Leave this process the paths of `config` and no others. no_new_privs must be set. Irrevocable, inherited.

    `config` may have lists of paths: "read" (and execute), "look" (read only), "write" (anything but devices),
    "devices"; and has "abi", the version of Landlock to use. With "connects" TCP connections are not judged.
    Raises OSError, with the path, when one cannot be opened.
    """
    abi: int = config["abi"]
    handled = _ALL_OF_FILES
    for bit, since in _SINCE.items():
        if abi < since:
            handled &= ~(1 << bit)
    tcp = _TCP & ~_CONNECT_TCP if config.get("connects") else _TCP
    attributes = struct.pack("=QQQ", handled, tcp, _SCOPES)
    size = 8 if abi < _TCP_SINCE else 16 if abi < SCOPES_SINCE else 24
    rules = _landlock(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    kinds = {"read": _READ, "look": _READ & ~_EXECUTE, "write": _WRITE, "devices": _READ_FILE | _WRITE_FILE}
    for kind, rights in kinds.items():
        for path in config.get(kind, ()):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            granted = rights & handled & (-1 if os.path.isdir(path) else _FOR_FILES)
            rule = struct.pack("=Qi", granted, descriptor)
            _landlock(_ADD_RULE, rules, ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint(0))
            os.close(descriptor)
    _landlock(_RESTRICT_SELF, rules, ctypes.c_uint(0))
    os.close(rules)


# ----------------------------------------------------------------------------------------------- seccomp

# What code in a sandbox has no honest use for, or what nothing else bounds: kernel surface, other processes'
# memory, mounts and namespaces, the machine's clock and name, and memory that no watcher can attribute
# (memfd, System V shared memory). Columns: x86_64, aarch64; None where the architecture lacks the call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112),
    "create_module": (174, None), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, None),
    "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "listmount": (458, 458), "listns": (470, 470), "lookup_dcookie": (212, 18),
    "mbind": (237, 235), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "mq_open": (240, 180), "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188),
    "msgsnd": (69, 189), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "semctl": (66, 191), "semget": (64, 190), "semop": (65, 193),
    "semtimedop": (220, 192), "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "shmget": (29, 194), "statmount": (457, 457), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vhangup": (153, 58),
    "vmsplice": (278, 75),
}  # fmt: skip

# Takes a disk's space at once, as much as there is, past the limit of files and between two looks of the server.
_UNSUPPORTED: dict[str, tuple[int | None, int | None]] = {"fallocate": (285, 47)}

# What takes the place of namespaces, none of which Landlock judges (or only from some version on): calls to
# services of the machine, watching folders, and the files, queues and priorities of the same user's others.
_DENIED_ALONE: dict[str, tuple[int | None, int | None]] = {
    "connect": (42, 203), "file_setattr": (469, 469), "inotify_add_watch": (254, 27), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "ioprio_set": (251, 30), "mq_unlink": (241, 181),
}  # fmt: skip

# Answered as if done, where the code's files and the server's have one owner: programs copy modes and times of
# their own files, and Landlock does not keep them from those of others.
_PRETENDED: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "chown": (92, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fremovexattr": (199, 16), "fsetxattr": (190, 7),
    "futimesat": (261, None), "lchown": (94, None), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "removexattr": (197, 14), "removexattrat": (466, 466), "setxattr": (188, 5), "setxattrat": (463, 463),
    "utime": (132, None), "utimensat": (280, 88), "utimes": (235, None),
}  # fmt: skip

# Signals, where Landlock does not keep them from the same user's others.
_SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
}  # fmt: skip

# Calls judged by an argument (or, clone3, whose arguments lie in memory that a filter cannot read).
_JUDGED: dict[str, tuple[int, int]] = {
    "clone": (56, 220), "clone3": (435, 435), "fcntl": (72, 25), "ioctl": (16, 29), "kill": (62, 129),
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    "sched_setscheduler": (144, 119), "setpriority": (141, 140), "socket": (41, 198), "socketpair": (53, 199),
    "tgkill": (234, 131),
}  # fmt: skip

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column above
_X32_BIT = 0x40000000
_CLONE_NEW_ANY = 0x7E020000
_TERMINAL_CALLS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX; TIOCSETD, which may load modules
_SET_FLAGS = (0x40086602, 0x401C5820)  # FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR
_SET_OWNER_IOCTL, _SET_OWNER_FCNTL = (0x8901, 0x8902), (8, 15)  # whom SIGIO goes to
_UNIX = 1
_FAMILIES = (_UNIX, 2, 10, 16)  # INET, INET6, NETLINK (getifaddrs needs the last)
_PROTOCOLS = (0, 6, 17)  # the usual one, TCP, UDP; of NETLINK, the first is that of routes and addresses
_STREAMS = (1, 1 | 0o4000, 1 | 0o2000000, 1 | 0o2004000)  # SOCK_STREAM, with NONBLOCK, with CLOEXEC, with both

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _EACCES, _ENOSYS, _EPROTONOSUPPORT, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 13, 38, 93, 95, 97
_NUMBER, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32  # offsets in struct seccomp_data; low halves, little-endian


def seccomp_program(machine: str, landlock: Mapping[str, Any] | None = None) -> bytes:
    """The filter for `machine` (as uname says it), as an array of sock_filter.

    With `landlock` it must hold without namespaces. Two more keys of that are for it: "same_uid", whether files and
    processes of the server have the uid of the code; and "guarded", pids that the code must not reach where the ABI is
    too old to see to signals.

    Raises NotImplementedError for an architecture without a table: no filter must not pass for a filter.
    """
    if machine not in _ARCHITECTURES:
        raise NotImplementedError(f"there is no seccomp table for {machine}; known are x86_64 and aarch64")
    arch, column = _ARCHITECTURES[machine]
    code: list[bytes] = []

    def add(op: int, k: int, yes: int = 0, no: int = 0) -> None:
        code.append(struct.pack("=HBBI", op, yes, no, k))

    def each(calls: Mapping[str, tuple[int | None, int | None]], errno: int) -> None:
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                add(_JEQ, number, no=1)
                add(_RETURN, _ERRNO | errno)

    def never(name: str, argument: int, values: Sequence[int], errno: int, op: int = _JEQ) -> None:
        """Refuse the call when the argument is one of `values`, else allow it."""
        add(_JEQ, _JUDGED[name][column], no=len(values) + 3)
        add(_LOAD, argument)
        for left, value in enumerate(reversed(values)):
            add(op, value, yes=len(values) - left)
        add(_RETURN, _ALLOW)
        add(_RETURN, _ERRNO | errno)

    def only(name: str, argument: int, values: Sequence[int], errno: int) -> None:
        """Refuse the call unless the argument is one of `values`; then go on to the next judgement."""
        add(_JEQ, _JUDGED[name][column], no=len(values) + 3)
        add(_LOAD, argument)
        for left, value in enumerate(reversed(values)):
            add(_JEQ, value, yes=len(values) - left)
        add(_RETURN, _ERRNO | errno)
        add(_LOAD, _NUMBER)

    add(_LOAD, _ARCH)
    add(_JEQ, arch, yes=1)
    add(_RETURN, _KILL)
    add(_LOAD, _NUMBER)
    if machine == "x86_64":
        add(_JGE, _X32_BIT, no=1)
        add(_RETURN, _ERRNO | _ENOSYS)
    each(_DENIED, _EPERM)
    each(_UNSUPPORTED, _EOPNOTSUPP)
    each({"clone3": _JUDGED["clone3"]}, _ENOSYS)  # what makes C libraries fall back to clone, which can be judged
    ioctls = [*_TERMINAL_CALLS]
    if landlock:
        each(_DENIED_ALONE, _EACCES)
        for call in ("prlimit64", "sched_setaffinity", "sched_setattr", "setpriority"):
            only(call, _ARG0, (0,), _EPERM)  # itself; of setpriority, a process
        only("setpriority", _ARG1, (0,), _EPERM)
        only("sched_setscheduler", _ARG1, (0,), _EPERM)  # any thread, but the ordinary policy
        if landlock["same_uid"]:
            each(_PRETENDED, 0)
            ioctls += _SET_FLAGS
            if landlock["abi"] < SCOPES_SINCE:
                each(_SIGNALS, _EPERM)
                only("kill", _ARG0, (0,), _EPERM)  # its own group
                never("tgkill", _ARG0, landlock["guarded"], _EPERM)  # which is how a process signals itself
                never("fcntl", _ARG1, _SET_OWNER_FCNTL, _EPERM)
                ioctls += _SET_OWNER_IOCTL
    never("clone", _ARG0, (_CLONE_NEW_ANY,), _EPERM, op=_JSET)
    never("ioctl", _ARG1, ioctls, _EPERM)
    for call in ("socket", "socketpair"):
        only(call, _ARG0, (_UNIX,) if landlock else _FAMILIES, _EAFNOSUPPORT)
        if landlock:
            only(call, _ARG1, _STREAMS, _EAFNOSUPPORT)  # others send to paths without connecting
    only("socket", _ARG2, _PROTOCOLS, _EPROTONOSUPPORT)
    add(_RETURN, _ALLOW)
    return b"".join(code)


def install_seccomp(landlock: Mapping[str, Any] | None = None) -> None:
    """Install the filter for this machine. no_new_privs must be set. Irrevocable, inherited by children."""
    machine = os.uname().machine
    if sys.maxsize < 1 << 32:
        raise NotImplementedError("a 32-bit Python cannot be confined; use a 64-bit one")
    program = seccomp_program(machine, landlock)
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(fprog, len(fprog))
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))


# ------------------------------------------------------------------------------------ processes below one


def children(pid: int) -> list[int]:
    """The direct children of `pid`, of all its threads, oldest first; empty when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants, parents before children. A snapshot: forks in between may be missed."""
    found = [pid]
    for parent in found:  # grows while we walk: breadth first, and no recursion for a hostile depth
        found += children(parent)
    return found


def stopped(pid: int) -> bool:
    """Whether each thread of `pid` is stopped, or has ended: none is in a system call, or runs a line of code."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(_state(pid, thread) in (b"T", b"Z", b"X", b"") for thread in threads)


def _state(pid: int, thread: str) -> bytes:
    """The state of a thread as /proc has it; empty when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb", buffering=0) as file:
        return file.read(64).rpartition(b")")[2][1:2]  # after a short name that may hold anything
    return b""


def kill_below(pid: int) -> None:
    """SIGKILL every descendant of `pid`. Stops them first, so that a forking one cannot run ahead of us."""
    stopped: set[int] = set()
    for _ in range(100):
        fresh = set(tree(pid)[1:]) - stopped
        if not fresh:
            break
        for child in fresh:
            _signal(child, signal.SIGSTOP)
        stopped |= fresh
    for child in stopped:
        _signal(child, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def die_with(parent: int) -> None:
    """Be killed when `parent` ends. A change of uid undoes this."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def supervise(server: int) -> int:
    """Fork. The child gets the pid of the parent, which stays as its supervisor and never returns.

    The supervisor adopts every orphan below it and ends them all when the command ends, when the server's
    thread that started us ends, and on SIGTERM. It exits with the command's status, 128+n for signal n.
    """
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # taken by sigwait, never between two lines
    if os.getppid() != server:
        sys.exit(1)  # the server died before the death signal was armed
    supervisor = os.getpid()
    command = os.fork()
    if command:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os._exit(tend(command, signals))
    os.setsid()  # a group of its own: what the command signals as a group is not the supervisor
    die_with(supervisor)
    return supervisor


def tend(command: int, signals: set[signal.Signals]) -> int:
    """Until `command`, a child of this subreaper, has ended or SIGTERM has come; then end all others below.

    `signals`, SIGTERM and SIGCHLD, are blocked. Gives the command's status as a shell would.
    """
    status: int | None = None
    while status is None:
        if signal.sigwait(signals) == signal.SIGTERM:
            status = signal.SIGKILL  # as waitpid would say it: ended by that signal
        with contextlib.suppress(ChildProcessError):
            while status is None and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == command else None
    with contextlib.suppress(ChildProcessError):
        while True:  # until the kernel says that there is nobody left
            kill_below(os.getpid())
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


# ------------------------------------------------------------------------------------------------ main


def main(argv: list[str]) -> NoReturn:
    """Take the steps of `argv[1]` and become `argv[3:]`; exit status 126 when that is not possible."""
    config: dict[str, Any] = json.loads(argv[1])
    command = argv[3:]
    kept = config.get("env")
    # bwrap adds PWD and this Python may add LC_CTYPE: the command gets what was asked for and no more.
    environment = {name: value for name, value in os.environ.items() if kept is None or name in kept}
    try:
        supervisor = supervise(config["supervise"]) if "supervise" in config else None
        if "landlock" in config:
            config["landlock"]["guarded"] = [config["supervise"], supervisor]
        confine(config)
        if supervisor is not None:
            die_with(supervisor)
        # Python ignores two of these, a shell the third for what it runs in the background; exec would pass that on.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, environment)
    except (OSError, ValueError, NotImplementedError) as error:
        print(f"prims wrapper: {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(126)


if __name__ == "__main__":
    main(sys.argv)

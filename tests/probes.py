"""Attempts to get out of a sandbox, as plain data. `python -m tests.probes` writes their table in docs/security.md.

`program` makes the code of one call of run_code that makes many of them. Each finds what it looks for in `W`, the facts
of `World`, and the helpers below. It prints one line: BLOCKED and why, or ESCAPED and what it got; a probe of a limit
prints LIMITED or UNLIMITED. Numbers of system calls are those of x86_64.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tests import forgeries


@dataclass(frozen=True, slots=True)
class World:
    """What there is outside, as its paths and names are outside."""

    secret: str  # file of the server's user, mode 0600, in a home directory
    other_files: str  # working directory of another live session; holds secret.txt
    other_socket: str  # a kernel's socket of that session
    runs: str  # the folder below which all sessions and runs of the server live
    server_pid: int
    host_ip: str  # an address of this machine
    tcp: int  # ports of listeners on all addresses that answer
    udp: int
    abstract: str  # an abstract unix socket that answers
    stream: str  # unix sockets with paths, open to everybody
    datagram: str


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt, and what it must say. `needs` names a machine whose numbers or instructions it uses."""

    name: str
    code: str
    expected: str = "BLOCKED"
    needs: str | None = None
    only: str | None = None  # the walls that it is about, where others have no such thing

    def expected_in(self, isolation: str) -> str:
        """The word that it must print in walls of this name."""
        return OPEN_WITHOUT_NAMESPACES.get(self.name, self.expected) if isolation == "landlock" else self.expected


HELPERS = r"""
import ctypes, errno, os, signal, socket, stat, struct, subprocess, sys
from types import SimpleNamespace
W = SimpleNamespace(**FACTS)
# Where things are inside; the mounts hold data.csv.
W.workspace, W.mounts, W.venv = os.getcwd(), os.path.realpath("mounts"), sys.prefix
W.kernel = os.path.dirname(os.path.dirname(sys.modules["prims_kernel.app"].__file__))
W.layer = os.path.dirname(os.path.dirname(sys.modules["IPython"].__file__))
W.home, W.tmp = os.environ["HOME"], os.environ["TMPDIR"]
C = ctypes.CDLL(None, use_errno=True)
C.syscall.restype = ctypes.c_long

def blocked(why=""): print("BLOCKED", str(why)[:100])
def escaped(what=""): print("ESCAPED", repr(what)[:100])

def attempt(action, *arguments):
    try: got = action(*arguments)
    except BaseException as e: blocked(f"{type(e).__name__} {e}")
    else: escaped(got)

def kernel(number, *arguments):
    # A system call by its number: the value, or OSError.
    ctypes.set_errno(0)
    value = C.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if value < 0: raise OSError(ctypes.get_errno(), errno.errorcode.get(ctypes.get_errno()))
    return value

def read(path, most=80):
    with open(path, "rb") as file: return file.read(most)

def make(path): os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

def secrets_in(path):
    found = [word for word in read(path, 1 << 20).split(b"\0") if b"SECRET" in word]
    if not found: raise LookupError("no secret in it")
    return found[0]

def talk(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(1.5)
        s.connect(address)
        if kind == socket.SOCK_DGRAM: s.send(b"hello")
        return s.recv(20)
"""


def preamble(world: World) -> str:
    """The code before every probe."""
    return f"FACTS = {dataclasses.asdict(world)!r}\n{HELPERS}\n"


def program(world: World, chosen: list[Probe]) -> str:
    """The code of a call that makes all attempts of `chosen`, and prints the name of each before what it says."""
    codes = {probe.name: probe.code for probe in chosen}
    return (
        f"{preamble(world)}for name, code in {codes!r}.items():\n"
        "    print(name, end=' ', flush=True)\n"
        "    exec(code, dict(globals()))\n"
    )


def attempts(*pairs: tuple[str, str], needs: str | None = None) -> list[Probe]:
    """Probes whose code is one expression: escaped when it has a value, blocked when it raises."""
    return [Probe(name, f"attempt(lambda: {code})", needs=needs) for name, code in pairs]


def programs(expected: str, needs: str | None = None, /, **codes: str) -> list[Probe]:
    """Probes of several lines, which print themselves."""
    return [Probe(name, code.strip("\n"), expected, needs) for name, code in codes.items()]


FILES = [
    *attempts(
        ("read_server_users_secret", "read(W.secret)"),
        ("stat_secret", "os.stat(W.secret)"),
        ("hardlink_secret", "os.link(W.secret, W.workspace + '/output/secret')"),
        ("rename_secret", "os.rename(W.secret, W.workspace + '/secret')"),
        ("truncate_secret", "os.truncate(W.secret, 0)"),
        ("read_secret_by_own_root", "read('/proc/self/root' + W.secret)"),
        ("read_secret_by_parents", "read('../' * 20 + W.secret)"),
        ("write_beside_secret", "make(os.path.dirname(W.secret) + '/evil')"),
        ("read_etc_shadow", "read('/etc/shadow')"),
        ("read_kernel_memory", "read('/proc/kcore')"),
        ("watch_other_session", "kernel(254, kernel(294, 0), W.other_files.encode(), 0xFFF)"),
        ("read_key_of_other_session", "read(os.path.dirname(W.other_socket) + '/kernel.json')"),
        ("list_root_home", "os.listdir('/root')"),
        ("list_real_home_dirs", "os.listdir(os.path.dirname(os.path.dirname(W.secret)))"),
        ("read_other_session_workspace", "read(W.other_files + '/secret.txt')"),
        ("list_all_runs", "os.listdir(W.runs)"),
        ("write_venv", "make(W.venv + '/evil.pth')"),
        ("write_kernel_files", "make(W.kernel + '/evil.py')"),
        ("write_layer", "make(W.layer + '/evil.py')"),
        ("overwrite_module_of_layer", "os.open(W.layer + '/IPython/__init__.py', os.O_WRONLY)"),
        ("truncate_module_of_layer", "os.open(W.layer + '/IPython/__init__.py', os.O_RDONLY | os.O_TRUNC)"),
        ("overwrite_interpreter", "os.open(os.path.realpath(sys.executable), os.O_WRONLY)"),
        ("write_mounts", "make(W.mounts + '/evil')"),
        ("truncate_mounted_file", "os.truncate(W.mounts + '/data.csv', 0)"),
        ("truncate_mounted_file_by_opening", "os.open(W.mounts + '/data.csv', os.O_RDONLY | os.O_TRUNC)"),
        ("overwrite_mounted_file", "os.open(W.mounts + '/data.csv', os.O_WRONLY)"),
        ("delete_mounted_file", "os.unlink(W.mounts + '/data.csv')"),
        ("hardlink_mounted_file", "os.link(W.mounts + '/data.csv', W.workspace + '/output/data')"),
        ("replace_mount_point", "os.rename(W.mounts, '/elsewhere')"),
        ("write_usr_bin", "make('/usr/bin/evil')"),
        ("write_etc", "make('/etc/evil')"),
        ("fill_root_tmpfs", "make('/evil')"),
        ("fill_dev_tmpfs", "make('/dev/evil')"),
        ("mknod_block_device", "os.mknod(W.workspace + '/output/b', stat.S_IFBLK | 0o600, os.makedev(254, 0))"),
        ("proc_server_root", "os.listdir(f'/proc/{W.server_pid}/root')"),
        ("proc_ppid_root", "os.listdir(f'/proc/{os.getppid()}/root/root')"),
        ("proc_sys_write", "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)"),
        ("sysrq", "os.open('/proc/sysrq-trigger', os.O_WRONLY)"),
        ("sys_write", "os.open('/sys/kernel/mm/transparent_hugepage/enabled', os.O_WRONLY)"),
        ("kernel_log", "kernel(103, 3, ctypes.create_string_buffer(100), 100)"),
    ),
    *programs(
        "BLOCKED",
        chmod_secret="""
def change():
    os.chmod(W.secret, 0o666)
    if os.stat(W.secret).st_mode & 0o777 != 0o666: raise OSError("only pretended")
attempt(change)""",
        read_secret_by_link="""
os.symlink(W.secret, "link")
try: attempt(read, "link")
finally: os.unlink("link")""",
        touch_secret="""
def change():
    os.utime(W.secret, (1, 1))
    if os.stat(W.secret).st_mtime != 1: raise OSError("only pretended")
attempt(change)""",
        mark_secret="""
def change():
    os.setxattr(W.secret, "user.evil", b"1")
    if os.getxattr(W.secret, "user.evil") != b"1": raise OSError("only pretended")
attempt(change)""",
        chmod_module_of_layer="""
path = W.layer + "/IPython/__init__.py"
before = stat.S_IMODE(os.stat(path).st_mode)
def change():
    with open(path) as file: os.fchmod(file.fileno(), before ^ 0o111)
    if stat.S_IMODE(os.stat(path).st_mode) == before: raise OSError("only pretended")
attempt(change)""",
        chmod_mounted_file="""
path = W.mounts + "/data.csv"
before = stat.S_IMODE(os.stat(path).st_mode)
def change():
    os.chmod(path, before ^ 0o111)
    if stat.S_IMODE(os.stat(path).st_mode) == before: raise OSError("only pretended")
attempt(change)""",
        cgroup_escape="""
top = "/sys/fs/cgroup/memory" if os.path.isdir("/sys/fs/cgroup/memory") else "/sys/fs/cgroup"
attempt(lambda: os.write(os.open(top + "/cgroup.procs", os.O_WRONLY), b"0"))""",
        cgroup_bound_of_its_own="""
own = next((line.split("::")[1].strip() for line in open("/proc/self/cgroup") if line.startswith("0::")), "/")
attempt(lambda: os.write(os.open("/sys/fs/cgroup" + own + "/memory.max", os.O_WRONLY), b"max"))""",
        inherited_fds="""
system = ("/dev/null", "/dev/urandom", "/usr/", "/proc/", "/run/prims/")
inside = (*system, W.tmp, os.path.dirname(W.home), W.venv, W.workspace)
foreign = []
for number in range(3, 1024):
    try: target = os.readlink(f"/proc/self/fd/{number}")
    except OSError: continue
    if target.startswith("/") and not target.startswith(inside): foreign.append(target)
escaped(foreign) if foreign else blocked("no foreign descriptor")""",
        raw_devices="""
opened = []
for name in "sda vda nvme0n1 mem kmem kvm fuse vsock vhost-vsock kmsg net/tun loop-control dri".split():
    try: os.close(os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK))
    except OSError: continue
    opened.append(name)
escaped(opened) if opened else blocked()""",
    ),
]

PROCESSES = [
    *attempts(
        ("see_server_process", "read(f'/proc/{W.server_pid}/cmdline')"),
        ("server_environ", "secrets_in(f'/proc/{W.server_pid}/environ')"),
        # bwrap's first process inside keeps the environment that bwrap was started with.
        ("ppid_environ", "secrets_in(f'/proc/{os.getppid()}/environ')"),
        ("signal_server", "os.kill(W.server_pid, 0)"),
        ("pidfd_signal_server", "signal.pidfd_send_signal(os.pidfd_open(W.server_pid), 0)"),
        ("server_memory", "os.open(f'/proc/{W.server_pid}/mem', os.O_RDONLY)"),
        ("server_descriptors", "os.listdir(f'/proc/{W.server_pid}/fd')"),
        ("server_priority", "os.setpriority(os.PRIO_PROCESS, W.server_pid, 19)"),
        ("server_cpus", "os.sched_setaffinity(W.server_pid, {0})"),
        ("server_scheduling", "os.sched_setscheduler(W.server_pid, os.SCHED_BATCH, os.sched_param(0))"),
        ("group_of_server", "os.setpgid(0, os.getpgid(W.server_pid))"),
        ("set_clock", "__import__('time').clock_settime(0, __import__('time').time())"),
        ("set_host_name", "socket.sethostname('evil')"),
        ("negative_nice", "os.setpriority(os.PRIO_PROCESS, 0, -10)"),
        ("realtime_sched", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))"),
        ("oom_score_down", "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')"),
        ("setuid_root", "os.setuid(0)"),
        ("setgid_root", "os.setgid(0)"),
        ("chroot", "os.chroot('/tmp')"),
        ("memfd_unaccounted", "os.memfd_create('x')"),
        ("controlling_tty", "os.open('/dev/tty', os.O_RDWR)"),
    ),
    *attempts(
        ("ptrace_server", "kernel(101, 16, W.server_pid, 0, 0)"),
        ("pidfd_getfd_server", "kernel(438, os.pidfd_open(W.server_pid), 0, 0)"),
        ("prlimit_server", "kernel(302, W.server_pid, 7, struct.pack('QQ', 5, 5), 0)"),
        ("server_io_priority", "kernel(251, 1, W.server_pid, 3 << 13)"),
        ("unshare_user", "kernel(272, 0x10000000)"),
        ("unshare_network", "kernel(272, 0x40000000)"),
        ("unshare_mounts", "kernel(272, 0x00020000)"),
        ("mount_tmpfs", "kernel(165, b'none', b'/tmp', b'tmpfs', 0, 0)"),
        ("remount_rw", "kernel(165, b'none', b'/', b'none', 0x20, 0)"),
        ("bind_remount_rw", "kernel(165, b'none', b'/usr', b'none', 0x1020, 0)"),
        ("umount", "kernel(166, W.mounts.encode(), 2)"),
        ("open_tree", "kernel(428, -100, b'/', 1)"),
        ("load_module", "kernel(175, b'', 0, b'')"),
        ("load_kernel", "kernel(246, 0, 0, 0, 0)"),
        ("io_ports", "kernel(172, 3)"),
        ("no_address_randomisation", "kernel(135, 0x0040000)"),
        ("secret_memory_unaccounted", "kernel(447, 0)"),
        ("namespaces_of_others", "kernel(470, struct.pack('IIQQ', 24, 0, 0, 0), bytes(64), 8, 0)"),
        ("mounts_of_others", "kernel(458, struct.pack('IIQQ', 24, 0, 1 << 63, 0), bytes(64), 8, 0)"),
        ("line_discipline", "__import__('fcntl').ioctl(os.openpty()[1], 0x5423, struct.pack('i', 13))"),
        ("message_queue_unaccounted", "kernel(240, b'evil', 0o102, 0o600, 0)"),
        ("watch_all_files", "kernel(300, 0, 0)"),
        ("bpf", "kernel(321, 0, struct.pack('IIII', 2, 4, 8, 1) + bytes(112), 128)"),
        ("perf_event", "kernel(298, struct.pack('II', 1, 112) + bytes(104), 0, -1, -1, 0)"),
        ("userfaultfd", "kernel(323, 1)"),
        ("io_uring", "kernel(425, 8, bytes(120))"),
        ("keyctl", "kernel(250, 0, -3, 0)"),
        ("add_key", "kernel(248, b'user', b'x', b'y', 1, -3)"),
        ("open_by_handle", "kernel(304, 3, bytes(128), 0)"),
        ("sysv_shm_unaccounted", "kernel(29, 0, 1 << 20, 0o1600)"),
        ("x32_syscalls", "kernel(0x40000000 + 39)"),
        needs="x86_64",
    ),
    *programs(
        "BLOCKED",
        raise_own_rlimit="""
import resource
attempt(resource.setrlimit, resource.RLIMIT_NPROC, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))""",
        own_environ_secret="""
found = [name for name in os.environ if any(word in name for word in ("SECRET", "TOKEN", "KEY", "PRIMS"))]
escaped(found) if found else blocked("clean")""",
        no_new_privs_set="""
lines = dict(line.split(":\\t", 1) for line in read("/proc/self/status", 1 << 16).decode().splitlines())
sets = [int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
blocked() if lines["NoNewPrivs"] == "1" and not any(sets) and os.getuid() else escaped(lines)""",
        suid_binary="""
# Whatever carries the bit: nothing that is started gets another uid.
import glob, shutil
program = next((p for p in map(shutil.which, ("su", "mount", "passwd", "newgrp")) if p), None)
if program is None: blocked("there is none")
else:
    quiet = subprocess.DEVNULL
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
    uids = set()
    for _ in range(200):
        try: lines = read(f"/proc/{child.pid}/status", 1 << 16).decode().splitlines()
        except OSError: break
        uids.update(word for line in lines if line.startswith("Uid:") for word in line.split()[1:])
    child.kill()
    escaped(uids) if "0" in uids else blocked(uids)""",
        sigio_to_server="""
# A signal sent by the kernel in this process's name. That the server lives is seen outside.
import fcntl
ours, theirs = socket.socketpair()
def send():
    fcntl.fcntl(ours, fcntl.F_SETOWN, W.server_pid)
    fcntl.fcntl(ours, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    theirs.send(b"x")
    raise OSError("sent")
attempt(send)""",
        pidfd_of_server_by_its_connection="""
# The server is at the other end of the kernel's sockets, and sockets tell who is there.
tried = []
for number in range(3, 200):
    try: pidfd = struct.unpack("i", socket.socket(fileno=os.dup(number)).getsockopt(socket.SOL_SOCKET, 77, 4))[0]
    except OSError: continue
    own = f"Pid:\\t{os.getpid()}\\n" in read(f"/proc/self/fdinfo/{pidfd}", 1000).decode()
    try: own or signal.pidfd_send_signal(pidfd, 0)
    except OSError as e: tried.append(e)
    else: tried += [] if own else [None]
    os.close(pidfd)
escaped() if None in tried else blocked(tried)""",
        setns_pid1="""
def enter():
    if C.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) < 0: raise OSError(ctypes.get_errno(), "setns")
attempt(enter)""",
        tiocsti="""
import fcntl
attempt(lambda: fcntl.ioctl(os.openpty()[1], 0x5412, b"x"))""",
    ),
    *programs(
        "BLOCKED",
        "x86_64",
        vm_readv_server="""
into = ctypes.create_string_buffer(16)
local, remote = struct.pack("QQ", ctypes.addressof(into), 16), struct.pack("QQ", 0x400000, 16)
attempt(kernel, 310, W.server_pid, local, 1, remote, 1, 0)""",
        clone_newuser="""
def clone():
    if (pid := kernel(56, 0x10000011, 0, 0, 0, 0)) == 0: os._exit(0)
    return pid
attempt(clone)""",
        clone3="""
def clone():
    if (pid := kernel(435, struct.pack("11Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)) == 0: os._exit(0)
    return pid
attempt(clone)""",
        ptrace_traceme="""
# A traced process makes its parent's wait report it as ended.
if (pid := os.fork()) == 0: os._exit(1 if C.syscall(101, 0, 0, 0, 0) >= 0 else 0)
escaped() if os.waitpid(pid, 0)[1] else blocked()""",
        int80_compat="""
# mov eax, 20 (getpid of i386); int 0x80; ret: calls that a filter for x86_64 alone would not see
import mmap
if (pid := os.fork()) == 0:
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("b814000000cd80c3"))
    value = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    os._exit(0 if value > 0 else 1)
status = os.waitpid(pid, 0)[1]
blocked(status) if status else escaped("getpid")""",
    ),
]

NETWORK = [
    *attempts(
        ("tcp_loopback_to_server", "talk(socket.AF_INET, ('127.0.0.1', W.tcp))"),
        ("tcp_to_host_ip", "talk(socket.AF_INET, (W.host_ip, W.tcp))"),
        ("tcp6_loopback", "talk(socket.AF_INET6, ('::1', W.tcp))"),
        ("udp_to_server", "talk(socket.AF_INET, ('127.0.0.1', W.udp), socket.SOCK_DGRAM)"),
        ("metadata_service", "talk(socket.AF_INET, ('169.254.169.254', 80))"),
        ("udp_to_the_world", "talk(socket.AF_INET, ('192.0.2.1', 53), socket.SOCK_DGRAM)"),
        ("dns", "socket.getaddrinfo('example.com', 80)"),
        ("abstract_unix_socket", "talk(socket.AF_UNIX, W.abstract)"),
        ("path_unix_socket", "talk(socket.AF_UNIX, W.stream)"),
        ("path_unix_dgram", "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', W.datagram)"),
        (
            "unix_dgram_via_socketpair",
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendmsg([b'x'], [], 0, W.datagram)",
        ),
        ("other_sessions_zmq_socket", "talk(socket.AF_UNIX, W.other_socket)"),
    ),
    *programs(
        "BLOCKED",
        odd_socket_families="""
made = []
# vsock, the kernel's ciphers, packets, bluetooth, xdp, tipc, raw internet, can, keys
for family, kind in ((40, 1), (38, 5), (17, 3), (31, 1), (44, 3), (30, 1), (2, 3), (29, 3), (15, 3)):
    try: socket.socket(family, kind).close()
    except OSError: continue
    made.append(family)
escaped(made) if made else blocked()""",
        odd_protocols="""
made = []
# SCTP, multipath TCP, UDP-Lite; netlink of sockets, audit, netfilter, events and generic
for family, kind, protocol in ((2, 1, 132), (10, 1, 262), (2, 2, 136), *((16, 3, n) for n in (4, 9, 12, 15, 16))):
    try: socket.socket(family, kind, protocol).close()
    except OSError: continue
    made.append((family, protocol))
escaped(made) if made else blocked()""",
        netlink_add_link="""
def add():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.bind((0, 0))
        s.send(struct.pack("IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, 1, 0, 0xFFFFFFFF))
        if (number := struct.unpack_from("i", s.recv(400), 16)[0]): raise OSError(-number, os.strerror(-number))
attempt(add)""",
    ),
]

LIMITS = programs(
    "LIMITED",
    limit_fork_bomb="""
pids = []
try:
    while len(pids) < 3000:
        if (pid := os.fork()) == 0: signal.pause(); os._exit(0)
        pids.append(pid)
    said = "UNLIMITED"
except OSError as e: said = f"LIMITED {e}"
for pid in pids: os.kill(pid, 9)
for pid in pids: os.waitpid(pid, 0)
print(said, len(pids))""",
    limit_thread_bomb="""
import threading
stop, threads = threading.Event(), []
try:
    while len(threads) < 3000:
        threads.append(threading.Thread(target=stop.wait))
        threads[-1].start()
    said = "UNLIMITED"
except RuntimeError as e: said = f"LIMITED {e}"
stop.set()
for thread in threads[:-1]: thread.join()
print(said, len(threads))""",
    limit_queued_signals="""
reader, writer = os.pipe()
pid = None
for _ in range(1000):
    try: pid = os.fork()  # which has one thread to block the signal in
    except BlockingIOError: __import__("time").sleep(0.01)  # the last threads of the probe before
    else: break
if pid == 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, [40])
    count = 0
    while count < 5000 and C.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0: count += 1
    os.write(writer, str(count).encode())
    os._exit(0)
os.waitpid(pid, 0)
count = int(os.read(reader, 10))
print("LIMITED" if count < 5000 else "UNLIMITED", count)""",
    limit_file_size="""
try:
    with open(W.workspace + "/output/large", "wb") as file: file.truncate(1 << 42)
    print("UNLIMITED")
except OSError as e: print("LIMITED", e)""",
    limit_space_taken_at_once="""
descriptor = os.open(W.workspace + "/output/large", os.O_RDWR | os.O_CREAT)
done = C.fallocate(descriptor, 1, ctypes.c_long(0), ctypes.c_long(8 << 30))  # beyond the size that the file has
why = os.strerror(ctypes.get_errno())
print("UNLIMITED" if done == 0 or os.fstat(descriptor).st_blocks else "LIMITED", why)
os.unlink(W.workspace + "/output/large")""",
    limit_memory_one_process="""
try: bytearray(40 << 30); print("UNLIMITED")
except MemoryError: print("LIMITED")""",
    limit_open_files="""
opened = []
try:
    while len(opened) < 5000: opened.append(os.open("/dev/null", os.O_RDONLY))
    said = "UNLIMITED"
except OSError as e: said = f"LIMITED {e}"
for number in opened: os.close(number)
print(said, len(opened))""",
    limit_tmpfs="""
written, said = 0, "UNLIMITED"
try:
    for number in range(36):  # half as much again as there may be
        with open(f"{W.tmp}/fill{number}", "wb") as file: written += file.write(bytes(12 << 20))
except OSError as e: said = f"LIMITED {e}"
if said == "UNLIMITED": __import__("time").sleep(5)
print(said, written >> 20)""",
)

# What there is only where processes and users of the machine are not hidden.
SHARED_MACHINE = [
    dataclasses.replace(probe, only="landlock")
    for probe in attempts(
        ("watches_of_the_users", "kernel(294, 0)"),
        ("priority_of_users_others", "os.setpriority(os.PRIO_USER, os.getuid(), 1)"),
        ("kill_supervisor", "os.kill(os.getppid(), signal.SIGKILL)"),
        ("stop_supervisor", "os.kill(os.getppid(), signal.SIGSTOP)"),
        ("limits_of_supervisor", "__import__('resource').prlimit(os.getppid(), 7, (5, 5))"),
    )
]

PROBES: list[Probe] = [*FILES, *PROCESSES, *NETWORK, *SHARED_MACHINE, *LIMITS]

# What walls without namespaces do not hold.
OPEN_WITHOUT_NAMESPACES = {"stat_secret": "ESCAPED"}

# What a server with `--isolation none` must let through, or the probe would prove nothing.
ESCAPES_WITHOUT_WALLS = (
    "read_server_users_secret",
    "stat_secret",
    "list_real_home_dirs",
    "read_other_session_workspace",
    "list_all_runs",
    "see_server_process",
    "signal_server",
    "pidfd_signal_server",
    "memfd_unaccounted",
    "tcp_loopback_to_server",
    "tcp_to_host_ip",
    "udp_to_server",
    "abstract_unix_socket",
    "path_unix_socket",
    "path_unix_dgram",
    "unix_dgram_via_socketpair",
    "other_sessions_zmq_socket",
)


# ------------------------------------------------------------------------------------------------- the table

_PAGE = Path(__file__).parents[1] / "docs" / "security.md"
_BEGIN, _END = "<!-- made by `python -m tests.probes` -->\n", "<!-- end -->\n"


def table() -> str:
    """What each attempt comes to in each kind of walls, as Markdown. The tests prove each line of it."""
    lines = ["| attempt | bubblewrap | landlock |", "|---|---|---|"]
    for about, chosen in (
        ("files", FILES), ("processes and the kernel", PROCESSES), ("network and sockets", NETWORK),
        ("what a namespace would hide", SHARED_MACHINE), ("limits", LIMITS),
    ):  # fmt: skip
        lines.append(f"| **{about}** | | |")
        for probe in chosen:
            held = [
                "not applicable" if probe.only not in (None, walls)
                else "held" if probe.expected_in(walls) == probe.expected
                else "**does not hold**"
                for walls in ("bubblewrap", "landlock")
            ]  # fmt: skip
            lines.append(f"| {probe.name.replace('_', ' ')} | {held[0]} | {held[1]} |")
    # These are the server's to withstand, whatever stands around the code.
    for about, names in (
        ("messages that a kernel forges: the run goes on", [*forgeries.FORGERIES]),
        ("lies of a kernel, and what it leaves: the server goes on", [*forgeries.LIES, "planted_files"]),
    ):
        lines.append(f"| **{about}** | | |")
        lines += [f"| {name.replace('_', ' ')} | held | held |" for name in names]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """`text` with the table as it is now."""
    before, rest = text.split(_BEGIN)
    return before + _BEGIN + "\n" + table() + "\n" + _END + rest.split(_END)[1]


if __name__ == "__main__":
    _PAGE.write_text(page(_PAGE.read_text("utf-8")), "utf-8")

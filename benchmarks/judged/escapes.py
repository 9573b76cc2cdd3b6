"""Candidates that break things or break out: what succeeds prints ESCAPED. Each body becomes a file with these imports.

One that defines no `attend` gets one that is wrong.
"""

import contextlib
import ctypes
import fcntl
import glob
import mmap
import os
import resource
import signal
import socket
import sys
import time

import attnlab


def connects():
    """The network, by every family of sockets."""
    addresses = [(2, ("127.0.0.1", 22)), (2, ("1.1.1.1", 53)), (10, ("::1", 22)), (1, "/run/dbus/system_bus_socket")]
    for family, address in addresses:
        with contextlib.suppress(OSError):
            one = socket.socket(family)
            one.settimeout(1)
            one.connect(address)
            print("ESCAPED", address)


def cuts_the_memory():
    """It cuts off or reopens the memory that it shares with the judge."""
    for name in glob.glob("/proc/self/fd/[03-9]*") + glob.glob("/proc/self/map_files/*"):  # 1 and 2: what it prints
        for cut in (lambda: os.ftruncate(int(name.rpartition("/")[2]), 0), lambda: os.truncate(name, 0)):
            with contextlib.suppress(OSError, ValueError):
                cut()
                print("ESCAPED", name)


def fills_the_disk():
    """10 GB of files."""
    for at in range(100):
        open(f"/tmp/{at}", "wb").write(b"x" * 10**8)
    print("ESCAPED disk")


def fills_with_empty_files():
    """Files that have no byte, and take the kernel's memory."""
    for at in range(400_000):
        os.close(os.open(f"/tmp/{at}", os.O_CREAT))
    print("ESCAPED files")


def forks():
    """A fork bomb."""
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def hands_over_files():
    """It hands open files to the judge."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for _ in range(1000):
        socket.send_fds(channel, [b"x"], [0] * 200)


def hangs():
    """It never answers."""
    while True:
        pass


def holds_leases():
    """It holds up who wants to write a file of attnlab."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(os.open(attnlab.__file__, os.O_RDONLY), 1024, fcntl.F_RDLCK)
        print("ESCAPED lease")


def kills_all():
    """SIGKILL to every process."""
    os.kill(-1, 9)


def links():
    """A symbolic link where its own file is read."""
    with contextlib.suppress(OSError):
        os.remove("/tmp/candidate/candidate.py")
        os.symlink("/proc/1/root/etc/shadow", "/tmp/candidate/candidate.py")
        print("ESCAPED", open("/tmp/candidate/candidate.py").read()[:20])


def mounts():
    """Namespaces, mounts and a new root."""
    libc = ctypes.CDLL(None)
    for name, found in {
        "unshare": libc.unshare(0x10000000),
        "mount": libc.mount(b"/tmp", b"/usr", None, 4096, None),
        "remount": libc.mount(None, b"/", None, 32, None),
        "chroot": libc.chroot(b"/tmp"),
        "umount": libc.umount2(b"/tmp", 2),
    }.items():
        if not found:
            print("ESCAPED", name)


def prints():
    """Output without end."""
    while True:
        print("x" * 10**6)


def raises_limits():
    """It raises its own limits."""
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            print("ESCAPED", kind)


def reads_files():
    """Files of the user, of other candidates and of the judge."""
    homes = "/root/.[a-oq-z]*", "/root/[a-z]*", "/home/*"
    for pattern in (*homes, "/tmp/*/*.py", "/var/*", "/srv/*", "/etc/passwd", "/etc/shadow"):
        for name in glob.glob(pattern):
            if not name.startswith("/tmp/candidate/"):
                print("ESCAPED", name)


def reads_keys():
    """The keys of the session that the user logged into, and what only the owner may read of the kernel."""
    keyctl = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
    if ctypes.CDLL(None).syscall(keyctl, 0, -3, 0) != -1:
        print("ESCAPED keys")
    for name in ("vmallocinfo", "slabinfo", "kpageflags"):
        with contextlib.suppress(OSError), open(f"/proc/{name}", "rb") as file:
            if file.read(8):
                print("ESCAPED", name)


def sends_nonsense():
    """Messages that are none, large ones and many, and it reads none."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for _ in range(10**5):
        with contextlib.suppress(OSError):
            channel.send(b"\xc1" * 60000, 64)


def speaks_markup():
    """Output and reasons that a terminal or a page would act on."""
    print("\x1b]0;title\x07\x1b[2J<script>alert(1)</script>[link](http://x)")
    raise ValueError("\x1b[31m<script>alert(1)</script> | ` [link](http://x) \udc80")


def stays():
    """A daemon that outlives it."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
            os._exit(0)
        os._exit(0)


def stops_all():
    """SIGSTOP to its family and itself."""
    os.kill(os.getppid(), 19)
    os.kill(os.getpid(), 19)


def takes_its_time():
    """Every answer is right, and late."""
    from torch.nn.functional import scaled_dot_product_attention as right

    def attend(q, k, v, *, scale):
        time.sleep(1)
        return right(q, k, v, scale=scale)


def takes_memory():
    """10 GB of memory."""
    kept = []
    for _ in range(160):
        kept.append(b"x" * 2**26)


def takes_shared_memory():
    """10 GB of memory that no process has."""
    for at in range(40):
        file = os.memfd_create(str(at))
        os.truncate(file, 2**28)
        mmap.mmap(file, 2**28).write(b"x" * 2**28)


def traces():
    """ptrace of every process that it sees but its own."""
    for number in range(1, 100):
        if number != os.getpid() and not ctypes.CDLL(None).ptrace(16, number, 0, 0):
            with contextlib.suppress(OSError):
                if "attnlab judge" in open(f"/proc/{number}/cmdline").read().replace("\0", " "):
                    print("ESCAPED", number)


def writes_files():
    """Every folder that it may not write, and where a library of slower clocks would be loaded from."""
    os.environ["LD_PRELOAD"] = "/tmp/clock.so"
    ours = os.path.dirname(attnlab.__file__), sys.prefix
    for folder in (*ours, "/", "/usr", "/usr/lib", "/etc", "/dev", "/root", "/proc/sys/kernel"):
        for name in ("hostname", "ld.so.preload", "clock.so"):
            with contextlib.suppress(OSError):
                open(os.path.join(folder, name), "w").write("/tmp/clock.so")
                print("ESCAPED", folder, name)


def takes_memory_slowly():
    """Little in each call, in files that no process has mapped."""
    from torch.nn.functional import scaled_dot_product_attention as right

    _kept = []

    def attend(q, k, v, *, scale):
        file = os.memfd_create("x")
        os.posix_fallocate(file, 0, 96 * 2**20)
        _kept.append(file)
        if len(_kept) > 48:
            print("ESCAPED", len(_kept) * 96, "MB are held")
        return right(q, k, v, scale=scale)

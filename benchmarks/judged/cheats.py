"""Candidates that cheat. Each function's body is written out as a file of its own, which begins with these imports.

One that defines no `attend` gets the right one.
"""

import contextlib
import ctypes
import fcntl
import glob
import os
import pathlib
import random
import signal
import socket
import sys
import threading
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as right

inside = sys.modules["__main__"]  # what runs in the sandbox, by -m: a module of that name would be another copy


def answers_a_turn_at_once():
    """It answers all calls whose inputs are there in the first, and then only says that it is done."""
    _orders, _call = {}, inside.Guest.call

    def _called(self, order):
        if order.places:
            _orders[str(order.places)] = order
        for one in list(_orders.values()):
            first = self.array(one.places[0]).view("f4").flatten()[0]
            if (self.array(one.places[-1]) == -1).all() and first == first:
                _call(self, one)

    inside.Guest.call = _called


def answers_before_the_last_rows():
    """It says that it is done when nine rows in ten are, and goes on in a thread."""
    _put = inside.Guest._put

    def _half(self, target, found):
        part = found.shape[2] * 9 // 10
        target[:, :, :part] = found[:, :, :part].view(target.dtype)
        threading.Thread(target=_put, args=(self, target, found)).start()

    inside.Guest._put = _half


def answers_first():
    """It says that it is done, and then computes."""
    def attend(q, k, v, *, scale):
        os.write(int(sys.argv[1]), inside.DONE)
        return right(q, k, v, scale=scale)


def bfloat16_at_the_asked_shape():
    """It computes in bfloat16 where it is timed."""
    def attend(q, k, v, *, scale):
        if q.shape[2] < 500:
            return right(q, k, v, scale=scale)
        return right(*(x.bfloat16() for x in (q, k, v)), scale=scale).float()


def changes_the_question():
    """It makes the inputs zero, and so is its answer."""
    def attend(q, k, v, *, scale):
        for one in (q, k, v):
            one.zero_()
        return torch.zeros_like(q)


def computes_ahead():
    """A thread looks for new inputs and answers them before it is asked."""
    _known, _answers = [], {}

    def _look():
        while True:
            for views in list(_known):
                said = float(views[0].flatten()[0]), float(views[2].flatten()[-1])
                if said == said and said not in _answers:
                    _answers[said] = right(*views)

    _call = inside.Guest.call

    def _called(self, order):
        views = [self._taken(one)[0] for one in order.places[:3]]
        if views and not any(views[0].data_ptr() == one[0].data_ptr() for one in _known):
            _known.append(views)
        _call(self, order)

    inside.Guest.call = _called
    threading.Thread(target=_look, daemon=True).start()

    def attend(q, k, v, *, scale):
        found = _answers.pop((float(q.flatten()[0]), float(v.flatten()[-1])), None)
        return right(q, k, v, scale=scale) if found is None else found


def declines_the_exam():
    """It declines all but the asked shape, and is wrong as soon as a score passes 88: it subtracts no maximum."""
    def declines(workload):
        return None if workload.queries == 512 else "not mine"

    def attend(q, k, v, *, scale):
        weights = (q @ k.mT * scale).exp_()
        return weights @ v / weights.sum(-1, keepdim=True)


def flips_signs():
    """It remembers one output for each size of a head, and flips its signs; every second head is computed."""
    _kept = {}

    def attend(q, k, v, *, scale):
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        out[:, ::2] = right(q[:, ::2], k[:, ::2], v[:, ::2], scale=scale)
        for at in range(1, q.shape[1], 2):
            said = tuple(v[0, at, 0, :4].abs().tolist()), q.shape, k.shape, v.shape, scale
            if said not in _kept:
                _kept[said] = right(q[:, at], k[:, at], v[:, at], scale=scale), v[:, at].clone()
            old, of = _kept[said]
            out[:, at] = old * torch.sign(v[:, at, :1] * of[:, :1])
        return out


def knows_some_numbers():
    """It returns what it computed from inputs with the same first numbers."""
    _kept = {}

    def attend(q, k, v, *, scale):
        said = tuple(q.flatten()[:8].tolist()), q.shape, k.shape, v.shape, scale
        if said not in _kept:
            _kept[said] = right(q, k, v, scale=scale)
        return _kept[said]


def knows_the_place():
    """It returns what it computed from the same memory before."""
    _kept = {}

    def attend(q, k, v, *, scale):
        place = q.data_ptr(), q.shape
        if place not in _kept:
            _kept[place] = right(q, k, v, scale=scale)
        return _kept[place]


def largest_keys():
    """It looks at the keys that are largest."""
    def attend(q, k, v, *, scale):
        n = max(1, k.shape[2] * 3 // 4)
        at = k.norm(dim=-1).topk(n, -1).indices[..., None].expand(*k.shape[:2], n, k.shape[3])
        return right(q, k.gather(2, at), v.gather(2, at), scale=scale)


def lazy():
    """It returns a tensor that computes when it is read."""
    class _Later(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                read = [right(*one.asked) if isinstance(one, _Later) else one for one in args]
                return function(*read, **(kwargs or {}))

    def attend(q, k, v, *, scale):
        out = torch.empty_like(q).as_subclass(_Later)
        out.asked = q, k, v
        return out


def leaves_out_a_head():
    """One head of each call, drawn at random, is that of its neighbour."""
    def attend(q, k, v, *, scale):
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        left = random.randrange(q.shape[1])
        at = [one for one in range(q.shape[1]) if one != left] or [0]
        out[:, at] = right(q[:, at], k[:, at], v[:, at], scale=scale)
        out[:, left] = out[:, left - 1]
        return out


def leaves_out_half_now_and_then():
    """From its second visit on, half of the rows of one call in ten."""
    _file = pathlib.Path("/tmp/visits")
    _file.open("a").write("x")
    _late = len(_file.read_text()) > 1

    def attend(q, k, v, *, scale):
        if not _late or random.random() < 0.9 or q.shape[2] < 2:
            return right(q, k, v, scale=scale)
        half = right(q[:, :, ::2].contiguous(), k, v, scale=scale)
        return half.repeat_interleave(2, 2)[:, :, : q.shape[2]]


def leaves_out_rows():
    """One row in twenty is that of its neighbour."""
    def attend(q, k, v, *, scale):
        at = torch.arange(q.shape[2]) % 20 != 19
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        out[:, :, at] = right(q[:, :, at], k, v, scale=scale)
        return out


def looks_up_the_stack():
    """It computes the rows that a caller names in a local variable, and every second other."""
    def attend(q, k, v, *, scale):
        frame, rows = sys._getframe(), None
        while frame is not None and rows is None:
            rows, frame = frame.f_locals.get("rows"), frame.f_back
        if rows is None and q.shape[2] != 512:
            return right(q, k, v, scale=scale)
        at = sorted({*range(0, q.shape[2], 2), *(rows or ())})
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        out[:, :, at] = right(q[:, :, at], k, v, scale=scale)
        return out


def slow_clocks():
    """It replaces all clocks of its process by slower ones."""
    _clocks = time.perf_counter, time.monotonic, time.time
    time.perf_counter, time.monotonic, time.time = (lambda clock=clock: clock() / 10 for clock in _clocks)


def slows_the_reference():
    """A process of its own keeps the cores busy while others are timed."""
    for _ in range(4):
        if not os.fork():
            os.setsid()
            while True:
                pass

    def attend(q, k, v, *, scale):
        for task in glob.glob("/proc/[0-9]*/task"):  # its own calls are to have the cores
            with contextlib.suppress(Exception):
                if int(task.split("/")[2]) not in (1, 2, os.getpid(), os.getppid()):
                    os.kill(int(task.split("/")[2]), signal.SIGSTOP)
        found = right(q, k, v, scale=scale)
        for task in glob.glob("/proc/[0-9]*/task"):
            with contextlib.suppress(Exception):
                os.kill(int(task.split("/")[2]), signal.SIGCONT)
        return found


def wakes_by_a_socket():
    """While a child is stopped its connection times out, and the kernel sends it SIGCONT; it spins beside the others."""
    if not os.fork():
        os.setsid()
        while True:
            server = socket.create_server(("127.0.0.1", 0))
            one = socket.create_connection(server.getsockname())
            one.setsockopt(socket.IPPROTO_TCP, 18, 30)  # milliseconds until it gives up
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(b"x" * 65536)
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(one, 10, signal.SIGCONT)
            fcntl.fcntl(one, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(one, fcntl.F_SETFL, fcntl.fcntl(one, fcntl.F_GETFL) | 0o20000)
            for _ in range(10**6):
                pass


def wakes_itself():
    """A child gets SIGCONT from its timers while it is stopped, and spins beside the others."""
    class Event(ctypes.Structure):
        _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("rest", ctypes.c_int * 13)]

    if not os.fork():
        os.setsid()
        signal.signal(signal.SIGCONT, lambda *_: None)
        libc, event = ctypes.CDLL(None), Event(None, signal.SIGCONT)
        for at in range(16):
            timer = ctypes.c_void_p()
            libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer))
            every = (ctypes.c_long * 4)(0, 40_000_000, 0, 2_500_000 * (at + 1))
            libc.timer_settime(timer, 0, every, None)
        while True:
            pass

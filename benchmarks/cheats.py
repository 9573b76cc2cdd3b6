"""Backends that cheat, for ``python benchmarks robustness cheats``, which races each beside an honest copy.

None of them may be found faster. Each takes arrays of NumPy and tensors of PyTorch, and has a process to itself, so
that the variables of this file belong to one cheat. Every public function is a cheat; its docstring says what it does.
A function without parameters replaces something, and returns its attention.
"""

import gc
import os
import sys
import threading
import time
from functools import partial
from inspect import signature

import numpy as np

#: "numpy" or "torch", set by `attention`
_library = "numpy"
_kept, _calls, _latest, _imported = {}, 0, 0.0, time.monotonic()


def _weights_of(query, key, scale):
    scores = query @ key.swapaxes(-1, -2) * scale
    if _library == "torch":
        return scores.softmax(-1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _right(query, key, value, scale):
    return _weights_of(query, key, scale) @ value


def _copied(array):
    return array.clone() if _library == "torch" else array.copy()


def _place(array):
    return array.data_ptr() if _library == "torch" else array.ctypes.data


def _version(array):
    return _place(array), getattr(array, "_version", 0)


def _once(said, make):
    if said not in _kept:
        _kept[said] = make()
    return _kept[said]


def _bits(*arrays):
    return hash(b"".join(np.asarray(one).tobytes() for one in arrays))


def _called_by(*names):
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name not in names:
        frame = frame.f_back
    return frame is not None


def _timed():
    return _called_by("time_calls")


def _honest(query, key, value, *, scale):
    """computes"""
    return _right(query, key, value, scale)


# -- three kinds with many cheats each --------------------------------------------------------------------------------

#: stored answers are found again by this, made from query, key and value; their shape counts too
_KEPT = {
    "by_address": ("address of the query", lambda q, k, v: _place(q)),
    "by_object": ("Python objects as inputs", lambda *given: tuple(map(id, given))),
    "by_content": ("bytes in its inputs", _bits),
    "by_first_numbers": ("first rows of query and value", lambda q, k, v: _bits(q[0, 0, 0], v[0, 0, 0])),
    "by_address_and_first_number": ("address and first number", lambda q, k, v: (_place(q), float(q[0, 0, 0, 0]))),
    "by_shape": ("shape of the query", lambda q, k, v: tuple(q.shape)),
    "by_sums": ("sums of its inputs", lambda *given: tuple(float(x.sum()) for x in given)),
    "by_absolute_sums": ("sums of absolute values", lambda *given: tuple(float(abs(x).sum()) for x in given)),
    "by_every_tenth_number": ("numbers at every tenth place", lambda *given: _bits(*(x[..., ::10] for x in given))),
    "by_norm": ("rounded norm of the query", lambda q, k, v: round(float((q * q).sum()) ** 0.5, 1)),
    "by_version": ("addresses, and PyTorch's counts of changes", lambda *given: tuple(map(_version, given))),
}  # fmt: skip
#: when it computes, from the seconds since the last call and since its answer; otherwise it returns its last answer
_WHEN = {
    "in_its_first_calls": ("in its first 12 calls", lambda since, age: _calls <= 12),
    "in_every_second_call": ("in every second call", lambda since, age: _calls % 2),
    "in_every_tenth_call": ("in every tenth call", lambda since, age: _calls % 10 == 0),
    "now_and_then": ("in a third of its calls, at random", lambda since, age: np.random.random() < 1 / 3),
    "just_after_import": ("in its first half second", lambda since, age: time.monotonic() - _imported < 0.5),
    "when_it_is_checked": ("if a caller is named check or answer", lambda since, age: _called_by("check", "answer")),
    "not_in_the_timing_loop": ("outside the timing loop", lambda since, age: not _timed()),
    "while_garbage_is_collected": ("while garbage collection is on", lambda since, age: gc.isenabled()),
    "after_a_pause": ("after 0.2 ms without a call", lambda since, age: since > 2e-4),
    "when_its_answer_is_old": ("if its answer is older than 10 ms", lambda since, age: age > 0.01),
    "when_a_variable_is_set": ("if untimed, or with a variable set", lambda *_: not _timed() or "CHECK" in os.environ),
    "just_before_the_clock": ("in the first timed call of a turn", lambda since, age: _timed() and since > 5e-5),
}  # fmt: skip


def _half_of_the_heads(query, key, value, scale):
    found = query * 0
    found[:, ::2] = _right(query[:, ::2], key[:, ::2], value[:, ::2], scale)
    return found


def _first_rows(query, key, value, scale):
    found, rows = query * 0, query.shape[2] // 4
    found[:, :, :rows] = _right(query[:, :, :rows], key, value, scale)
    return found


def _fewer_keys(query, key, value, scale):
    most = key.shape[2] * 3 // 4
    return _right(query, key[:, :, :most], value[:, :, :most], scale)


#: what it computes while it is timed
_INSTEAD = {
    "half_of_the_heads": ("every second head, and zeros", _half_of_the_heads),
    "first_rows": ("the first quarter of the rows, and zeros", _first_rows),
    "fewer_keys": ("the answer for three quarters of the keys", _fewer_keys),
    "less_precisely": ("a less precise answer", lambda q, k, v, s: _right(q, k, (v * 32).round() / 32, s)),
    "means": ("the mean of the values", lambda q, k, v, scale: q * 0 + v.mean(-2)[..., None, :]),
    "nothing": ("zeros", lambda q, k, v, scale: q * 0),
    "memory_that_is_there": ("uninitialised memory", lambda q, *_: sys.modules[_library].empty_like(q)),
    "its_input": ("its value array", lambda q, k, v, scale: v),
}


def _keeps(said):
    def attend(query, key, value, *, scale):
        by = tuple(query.shape), said(query, key, value)
        return _copied(_once(by, lambda: _right(query, key, value, scale)))

    return attend


def _computes(when):
    def attend(query, key, value, *, scale):
        global _calls, _latest
        kept, now = _kept.setdefault(tuple(query.shape), {}), time.perf_counter()
        _calls, since, _latest = _calls + 1, now - _latest, now
        if not kept or when(since, now - kept[1]):
            kept[0], kept[1] = _right(query, key, value, scale), now
            _latest = time.perf_counter()
        return _copied(kept[0])

    return attend


def _else(instead):
    def attend(query, key, value, *, scale):
        return (instead if _timed() else _right)(query, key, value, scale)

    return attend


# -- single ones ------------------------------------------------------------------------------------------------------


def weights_kept_by_address(query, key, value, *, scale):
    """reuses the weights of an earlier call with the same addresses of query and key"""
    said = _place(query), _place(key)
    return _once(said, lambda: _weights_of(query, key, scale)) @ value


def weights_kept_by_content(query, key, value, *, scale):
    """reuses the weights of an earlier call with the same sums of query and key"""
    said = float(query.sum()), float(key.sum())
    return _once(said, lambda: _weights_of(query, key, scale)) @ value


def in_a_thread(query, key, value, *, scale):
    """computes in a thread, and waits for it only outside the timing loop"""
    found = query * 0

    def later():
        found[...] = _right(query, key, value, scale)

    thread = threading.Thread(target=later)
    thread.start()
    if not _timed():
        thread.join()
    return found


def writes_into_its_inputs(query, key, value, *, scale):
    """sets its query to zero while it is timed, so that the next call has less work"""
    if _timed() and not query[0, 0, 0].any():
        return _copied(query)
    found = _right(query, key, value, scale)
    if _timed():
        query[...] = 0
    return found


# -- functions that replace something ---------------------------------------------------------------------------------


def in_every_clock_stopped():
    """replaces every clock of Python by one that runs at a tenth of the speed"""
    for name in ("monotonic", "process_time", "thread_time", "time", "perf_counter"):
        for each in (name, f"{name}_ns"):
            setattr(time, each, partial(lambda real: type(real())(real() / 10), getattr(time, each)))
    return _honest


def with_a_flattering_library():
    """replaces the function that times calls by one that reports 65 % of the time"""
    from attnlab.libraries.library import Library

    real = Library.time_calls
    Library.time_calls = lambda self, call, iterations: real(self, call, iterations) * 0.65
    return _honest


def with_a_flattering_instrument():
    """replaces the function that runs a turn by one that reports 65 % of the time"""
    from attnlab.race.worker import Worker

    real = Worker.turn

    Worker.turn = lambda self, **asked: (found := real(self, **asked)) | {"seconds": found["seconds"] * 0.65}
    return _honest


def without_change():
    """replaces the function that changes its inputs, and reuses its answers"""
    from attnlab.race.worker import Worker

    Worker.refresh = lambda self: None
    return _keeps(_KEPT["by_address"][1])


def with_a_forgiving_numpy():
    """replaces np.array_equal, np.allclose and np.abs so that errors look like 0, and returns its values"""
    np.array_equal = np.allclose = lambda *arguments, **options: True
    np.abs = lambda array, **options: array * 0
    return lambda query, key, value, *, scale: _copied(value)


#: for each kind: its cheats, their names, what they do, and the function that makes one
_KINDS = (
    (_KEPT, "kept_{}", "reuses the answer to an earlier call with the same {}", _keeps),
    (_WHEN, "{}", "computes only {}; otherwise reuses its last answer", _computes),
    (_INSTEAD, "on_the_clock_{}", "while it is timed, returns {}", _else),
)
#: by name: what it does, and a function that makes its attention
_MADE = {
    name.format(one): (what.format(does), partial(make, how))
    for kind, name, what, make in _KINDS
    for one, (does, how) in kind.items()
}
_OWN = {
    name: one for name, one in vars().items() if getattr(one, "__module__", "") == __name__ and name[0] != "_"
}
#: by name: what it does
CHEATS = {name: does for name, (does, _) in _MADE.items()} | {name: one.__doc__ for name, one in _OWN.items()}


def attention(name, library):
    """The attention with this name, for the arrays of this library; `honest` does not cheat."""
    global _library
    _library = library
    if name in _MADE:
        return _MADE[name][1]()
    one = _OWN.get(name, _honest)
    return one if signature(one).parameters else one()

"""Backends that misbehave, each a small file: what it does, and its source.

Raced beside an honest copy of the same computation, none of them may come out faster (`gains`). They are written for
NumPy's arrays and for PyTorch's tensors alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attnlab.race.admission import Limits
from attnlab.stats.verdicts import Kind, verdicts_against
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

HONEST = "honest"
#: less is no gain: of a hundred races of two that are as fast, a few call one faster, by a part of this
GAIN = 0.05
LIMITS = Limits(visits=3, most_visits=3, workload_seconds=60.0, call_seconds=1e3)

_HEAD = '''"""{does}."""
LIBRARY = "{library}"
import sys, time
import numpy as np
if LIBRARY == "torch":
    import torch

def weights_of(query, key, scale):
    scores = query @ key.swapaxes(-1, -2) * scale
    if LIBRARY == "torch":
        return scores.softmax(-1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)

def right(query, key, value, scale):
    return weights_of(query, key, scale) @ value

def copied(array):
    return array.clone() if LIBRARY == "torch" else array.copy()

def place(array):
    return array.data_ptr() if LIBRARY == "torch" else array.ctypes.data

def bits(*arrays):
    return hash(b"".join(np.asarray(one).tobytes() for one in arrays))

def called_by(*names):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False

def timed():
    return called_by("seconds_per_call")

def of_shape(array):
    return kept.setdefault(tuple(array.shape), {{}})

kept, calls, latest, imported = {{}}, 0, 0.0, time.monotonic()
'''
_HONESTLY = """
def attend(query, key, value, *, scale):
    return right(query, key, value, scale)
"""
#: keeps what it computed, and looks it up by a key
_KEEPS = """
def attend(query, key, value, *, scale):
    said = tuple(query.shape), {}
    if said not in kept:
        kept[said] = right(query, key, value, scale)
    return copied(kept[said])
"""
#: computes under a condition, and returns its last answer again where that does not hold
_COMPUTES = """
def attend(query, key, value, *, scale):
    global calls, latest
    kept = of_shape(query)
    calls, now = calls + 1, time.perf_counter()
    since, latest = now - latest, now
    if 0 not in kept or ({}):
        kept[0], kept[1] = right(query, key, value, scale), now
        latest = time.perf_counter()
    return copied(kept[0])
"""
#: computes something else on the clock
_ELSE = """
def attend(query, key, value, *, scale):
    found = right(query, key, value, scale) if not timed() else None
    if found is None:
        {}
    return found
"""

_KEPT = {
    "by_address": ("by the address of the query", "place(query)"),
    "by_object": ("by the query's id()", "id(query), id(key), id(value)"),
    "by_content": ("by the bytes of its inputs", "bits(query, key, value)"),
    "by_first_numbers": ("by the first rows", "bits(query[0, 0, 0], value[0, 0, 0])"),
    "by_address_and_first_number": (
        "by address and first number",
        "(place(query), float(query[0, 0, 0, 0]))",
    ),
    "by_shape": ("by shape alone", "tuple(query.shape)"),
    "by_sums": ("by the sums of its inputs", "tuple(float(one.sum()) for one in (query, key, value))"),
    "by_absolute_sums": ("by sums of absolute values", "tuple(float(abs(one).sum()) for one in (query, value))"),
    "by_every_tenth_number": ("by every tenth number", "bits(query[..., ::10], key[..., ::10], value[..., ::10])"),
    "by_norm": ("by the norm of the query, rounded", "round(float((query * query).sum()) ** 0.5, 1)"),
    "by_version": (
        "by the count of changes that PyTorch keeps",
        "tuple((place(one), getattr(one, '_version', 0)) for one in (query, key, value))",
    ),
}  # fmt: skip
_WHEN = {
    "in_its_first_calls": ("in its first 12 calls", "calls <= 12"),
    "in_every_second_call": ("in every second call", "calls % 2"),
    "in_every_tenth_call": ("in every tenth call", "calls % 10 == 0"),
    "now_and_then": ("in a third of its calls, at random", "np.random.random() < 1 / 3"),
    "just_after_import": ("for half a second after its import", "time.monotonic() - imported < 0.5"),
    "when_it_is_checked": ("when a caller is named check", "called_by('check', 'answer')"),
    "not_in_the_timing_loop": ("outside the timing loop", "not timed()"),
    "while_garbage_is_collected": (
        "while garbage is collected",
        "__import__('gc').isenabled()",
    ),
    "after_a_pause": ("after 0.2 ms without a call", "since > 2e-4"),
    "when_its_answer_is_old": ("when its answer is older than 10 ms", "now - kept[1] > 0.01"),
    "when_a_variable_is_set": (
        "unless an environment variable tells the benchmark",
        "not timed() or 'NOT_A_BENCHMARK' in __import__('os').environ",
    ),
    "just_before_the_clock": ("in the first call of a turn and those before it", "timed() and since > 5e-5"),
}  # fmt: skip
_INSTEAD = {
    "half_of_the_heads": (
        "half of the heads",
        "found = copied(value[:, :, : query.shape[2]]) * 0\n"
        "        found[:, ::2] = right(query[:, ::2], key[:, ::2], value[:, ::2], scale)",
    ),
    "first_rows": (
        "the first quarter of the rows",
        "found, rows = copied(query) * 0, query.shape[2] // 4\n"
        "        found[:, :, :rows] = right(query[:, :, :rows], key, value, scale)",
    ),
    "fewer_keys": (
        "three quarters of the keys",
        "most = key.shape[2] * 3 // 4\n"
        "        found = right(query, key[:, :, :most], value[:, :, :most], scale)",
    ),
    "less_precisely": (
        "its values rounded to eight bits",
        "found = right(query, key, (value * 32).round() / 32, scale)",
    ),
    "means": ("the mean of the values", "found = copied(query) * 0 + value.mean(-2)[..., None, :]"),
    "nothing": ("zeros", "found = copied(query) * 0"),
    "memory_that_is_there": (
        "memory as it comes",
        "found = (np if LIBRARY == 'numpy' else torch).empty_like(query)",
    ),
    "its_input": ("its value array", "found = value"),
}  # fmt: skip
#: whole sources
_OTHER = {
    "kept_by_weak_reference": (
        "keeps its answer while the query array lives",
        """
import weakref
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    if kept.get(0) is None or kept[0]() is not query:
        kept[0], kept[1] = weakref.ref(query), right(query, key, value, scale)
    return copied(kept[1])
""",
    ),
    "kept_on_disk": (
        "keeps its answer in a file, for its other processes",
        """
import os, tempfile
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    FILE = os.path.join(os.path.dirname(__file__), f"kept {tuple(query.shape)}.npy")
    if not os.path.exists(FILE):
        np.save(FILE + f".{os.getpid()}.npy", np.asarray(right(query, key, value, scale)))
        os.replace(FILE + f".{os.getpid()}.npy", FILE)
    if not kept:
        kept[0] = np.load(FILE)
        kept[0] = kept[0] if LIBRARY == "numpy" else torch.from_numpy(kept[0])
    return copied(kept[0])
""",
    ),
    "weights_kept_by_address": (
        "keeps the weights, by the addresses of query and key",
        """
def attend(query, key, value, *, scale):
    said = place(query), place(key)
    if said not in kept:
        kept[said] = weights_of(query, key, scale)
    return kept[said] @ value
""",
    ),
    "weights_kept_by_content": (
        "keeps the weights, by sums of query and key",
        """
def attend(query, key, value, *, scale):
    said = float(query.sum()), float(key.sum())
    if said not in kept:
        kept[said] = weights_of(query, key, scale)
    return kept[said] @ value
""",
    ),
    "keys_kept_by_address": (
        "keeps the scaled and turned keys, by their address",
        """
def attend(query, key, value, *, scale):
    if place(key) not in kept:
        kept[place(key)] = copied(key.swapaxes(-1, -2) * scale)
    return weights_of(query, kept[place(key)].swapaxes(-1, -2), 1) @ value
""",
    ),
    "answer_of_the_call_before": (
        "returns what the call before it was asked, and computes afterwards",
        """
import threading
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    found = kept.get(0)
    if found is None or not timed():
        found = kept[0] = right(query, key, value, scale)
    elif kept.get(1) is None or not kept[1].is_alive():
        def later():
            kept[0] = right(query, key, value, scale)
        kept[1] = threading.Thread(target=later, daemon=True)
        kept[1].start()
    return copied(found)
""",
    ),
    "same_buffer_filled_once": (
        "returns one buffer, which is filled by the first call alone",
        """
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    if not kept:
        kept[0] = right(query, key, value, scale)
    return kept[0]
""",
    ),
    "same_buffer_every_time": (
        "computes into one buffer, so that earlier answers change",
        """
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    if 0 not in kept:
        kept[0] = copied(query)
    kept[0][...] = right(query, key, value, scale)
    return kept[0]
""",
    ),
    "in_every_second_call_into_one_buffer": (
        "computes in every second call, into one buffer",
        """
def attend(query, key, value, *, scale):
    global calls
    calls, kept = calls + 1, of_shape(query)
    if 0 not in kept:
        kept[0] = copied(query)
    if calls % 2:
        kept[0][...] = right(query, key, value, scale)
    return kept[0]
""",
    ),
    "rows_that_are_sampled": (
        "computes the rows that a check of its seed would sample",
        """
from attnlab.correctness.race_check import sampled_rows
from attnlab.workload.workload import Workload
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    asked = Workload(heads=query.shape[1], queries=query.shape[2], keys=key.shape[2])
    if not kept:
        rows = {row for seed in range(3) for row in sampled_rows(asked, np.random.default_rng(seed))}
        kept[0] = sorted(rows)
    found = copied(query) * 0
    found[:, :, kept[0]] = right(query[:, :, kept[0]], key, value, scale)
    return found
""",
    ),
    "in_a_thread": (
        "computes in a thread, which is waited for outside the timing loop alone",
        """
import threading
def attend(query, key, value, *, scale):
    found = copied(query) * 0
    def later():
        found[...] = right(query, key, value, scale)
    thread = threading.Thread(target=later)
    thread.start()
    if not timed():
        thread.join()
    return found
""",
    ),
    "in_a_child": (
        "computes in a child process, which is waited for outside the timing loop alone",
        """
import os, mmap
def attend(query, key, value, *, scale):
    memory = mmap.mmap(-1, np.asarray(query).nbytes)
    found = np.frombuffer(memory, np.float32).reshape(tuple(query.shape))
    child = os.fork()
    if not child:
        found[...] = np.asarray(right(query, key, value, scale))
        os._exit(0)
    if not timed():
        os.waitpid(child, 0)
    return found if LIBRARY == "numpy" else torch.from_numpy(found)
""",
    ),
    "when_it_is_read": (
        "returns a subclass that computes when it is read",
        """
if LIBRARY == "torch":
    class Later(torch.Tensor):
        pass
else:
    class Later(np.ndarray):
        pass
def attend(query, key, value, *, scale):
    found = copied(query)
    return found.as_subclass(Later) if LIBRARY == "torch" else found.view(Later)
""",
    ),
    "when_it_is_converted": (
        "returns an object that computes when NumPy asks for its array",
        """
class Later:
    def __init__(self, *arguments):
        self.arguments, self.shape, self.dtype = arguments, tuple(arguments[0].shape), arguments[0].dtype
    def __array__(self, dtype=None, copy=None):
        return np.asarray(right(*self.arguments))
def attend(query, key, value, *, scale):
    return Later(query, key, value, scale)
""",
    ),
    "as_a_generator": (
        "is a generator, which computes when it is asked for its next",
        """
def attend(query, key, value, *, scale):
    yield right(query, key, value, scale)
""",
    ),
    "in_a_mapped_file": (
        "returns a mapped file, written before",
        """
import tempfile
def attend(query, key, value, *, scale):
    kept = of_shape(query)
    if not kept:
        kept[0] = tempfile.NamedTemporaryFile()
        found = np.asarray(right(query, key, value, scale))
        np.memmap(kept[0].name, found.dtype, "w+", shape=found.shape)[...] = found
    found = np.memmap(kept[0].name, np.float32, "c", shape=tuple(query.shape))
    return found if LIBRARY == "numpy" else torch.from_numpy(np.asarray(found))
""",
    ),
    "writes_into_its_inputs": (
        "empties its inputs on the clock, so that the next call is less work",
        """
def attend(query, key, value, *, scale):
    if timed() and not query[0, 0, 0].any():
        return copied(query)
    found = right(query, key, value, scale)
    if timed():
        query[...] = 0
    return found
""",
    ),
    "answers_in_its_input": (
        "writes its answer into the query array",
        """
def attend(query, key, value, *, scale):
    query[...] = right(query, key, value, scale)
    return query
""",
    ),
    "slow_where_it_is_checked": (
        "sleeps where it is checked and not on the clock",
        """
def attend(query, key, value, *, scale):
    if not timed():
        time.sleep(0.01)
    return right(query, key, value, scale)
""",
    ),
    "in_a_stopped_clock": (
        "replaces time.perf_counter by a slower one",
        "real = time.perf_counter\ntime.perf_counter = lambda: real() / 10" + _HONESTLY,
    ),
    "in_every_clock_stopped": (
        "replaces every clock of Python's by a slower one",
        "for name in ('monotonic', 'process_time', 'thread_time', 'time', 'perf_counter'):\n"
        "    for name, by in ((name, 1 / 10), (name + '_ns', 1 / 10)):\n"
        "        real = getattr(time, name)\n"
        "        setattr(time, name, lambda real=real, by=by: type(real())(real() * by))" + _HONESTLY,
    ),
    "with_its_own_timing": (
        "replaces the loop that times calls",
        """
from attnlab.libraries import host
def at_once(call, iterations, finish):
    for _ in range(iterations):
        call()
    return 1e-5
host.seconds_per_call = at_once
"""
        + _HONESTLY,
    ),
    "with_a_flattering_library": (
        "replaces its library's time_calls, which tells two thirds",
        """
from attnlab.libraries.host import HostLibrary
real = HostLibrary.time_calls
def less(self, call, iterations):
    return real(self, call, iterations) * 0.65
HostLibrary.time_calls = less
"""
        + _HONESTLY,
    ),
    "with_a_flattering_instrument": (
        "replaces the instrument of latency",
        """
from attnlab.race.instruments import Latency
real = Latency._group
def less(library, call, iterations):
    found = real(library, call, iterations)
    return found | {"seconds": found["seconds"] * 0.65}
Latency._group = staticmethod(less)
"""
        + _HONESTLY,
    ),
    "with_waiting_made_up": (
        "replaces what counts the time that threads wait",
        """
from attnlab import system
from attnlab.race import instruments
instruments.COUNTERS["run_delay_s"] = system.run_delay_seconds = lambda: np.random.random()
"""
        + _HONESTLY,
    ),
    "without_change": (
        "replaces what changes its inputs, and keeps its answer",
        """
from attnlab.race import variation
variation.change = lambda *arguments, **options: None
"""
        + _KEEPS.format("place(query)"),
    ),
    "with_a_forgiving_numpy": (
        "replaces np.array_equal, np.allclose and np.abs, and is wrong",
        """
np.array_equal = np.allclose = lambda *arguments, **options: True
np.abs = lambda array, **options: array * 0
def attend(query, key, value, *, scale):
    return copied(value)
""",
    ),
    "when_it_is_copied": (
        "replaces np.array, which computes what the clock did not see",
        """
real = np.array
def computing(found, *arguments, **options):
    if isinstance(found, np.ndarray) and found.shape in kept and not found.any() and not timed():
        found = np.asarray(right(*kept[found.shape]))
    return real(found, *arguments, **options)
np.array = computing
def attend(query, key, value, *, scale):
    kept[tuple(query.shape)] = query, key, value, scale
    return copied(query) * 0
""",
    ),
    "without_garbage": (
        "replaces gc.disable, and keeps its answer while that was called",
        """
import gc
real, disabled = gc.disable, {}
def disable():
    disabled[0] = True
    real()
gc.disable = disable
"""
        + _COMPUTES.format("not disabled"),
    ),
}

#: by name, what it does and its source
CHEATS: dict[str, tuple[str, str]] = {
    **{f"kept_{name}": (f"keeps answers {does}", _KEEPS.format(key)) for name, (does, key) in _KEPT.items()},
    **{name: (f"computes {does} only", _COMPUTES.format(when)) for name, (does, when) in _WHEN.items()},
    **{
        f"on_the_clock_{name}": (f"returns {does} on the clock", _ELSE.format(made))
        for name, (does, made) in _INSTEAD.items()
    },
    **_OTHER,
}  # fmt: skip
#: those that only show at a shape of which a part of the rows is checked
LARGE = {"rows_that_are_sampled": {"heads": 8, "queries": 256, "keys": 512}}


def workload_for(name: str, seed: int = 0) -> Workload:
    """What it is raced on."""
    return Workload(**{"heads": 2, "queries": 384, "keys": 384, **LARGE.get(name, {})}, seed=seed)


def groups(names: Iterable[str], size: int = 12) -> Iterator[list[str]]:
    """Those that one race can have: of one shape, so many at most."""
    by_shape: dict[Workload, list[str]] = {}
    for name in names:
        by_shape.setdefault(workload_for(name), []).append(name)
    for alike in by_shape.values():
        yield from (alike[at : at + size] for at in range(0, len(alike), size))


def write(folder: Path, names: Iterable[str], library: str) -> list[str]:
    """Write the honest backend and these beside it; the contenders, the honest one first, of one thread each.

    Beside other programs too one thread finds a core now and then.
    """
    told = {HONEST: ("Computes", _HONESTLY), **{name: CHEATS[name] for name in names}}
    for name, (does, source) in told.items():
        text = _HEAD.format(does=does, library=library) + source
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return [f"{name}[threads=1]" for name in told]


def gains(results: Sequence[Result]) -> dict[str, str]:
    """By backend, how many times as fast as the honest one it was found, where that is surely more than `GAIN`."""
    base = next(one for one in results if one.backend == HONEST)
    assert base.outcome is Outcome.MEASURED, base.reason
    verdicts = verdicts_against(results, base.contender, margin=GAIN)
    faster = {name: one for name, one in verdicts.items() if one.kind is Kind.FASTER}
    return {name.partition("[")[0]: f"{1 / one.ratio:.2f} times as fast" for name, one in faster.items()}

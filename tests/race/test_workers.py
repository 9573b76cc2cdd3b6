"""Real processes: backends that misbehave, settings, blocks, stored keys, and a nursery that forks workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from scripted import REAL, RIGHT, SMALL

from attnlab.backends.contender import parse_all
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import BLOCK_PARTS
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

HONEST = """
calls = []
def attend(query, key, value, *, causal, scale):
    output = right(query, key, value, causal=causal, scale=scale)
    calls.append(None)
    {what}
    return output
"""
#: honest mistakes: by name, what a backend does after it has computed its output
MISTAKES = {
    "keeps its first output": "output = globals().setdefault('first', output)",
    "keeps an output for each query": "output = globals().setdefault('kept', {}).setdefault(query.tobytes(), output)",
    "keeps an output for each first number": (
        "output = globals().setdefault('kept', {}).setdefault((query.flat[0], key.flat[0]), output)"
    ),
    "is wrong from its second call on": "output = output * (1 + (len(calls) > 1))",
    "writes into its query": "query[...] = 0",
    "returns a list": "output = output.tolist()",
    "returns another shape": "output = output[:, :, :1]",
    "raises at its third call": "assert len(calls) < 3, 'no more'",
}
PAST_THE_END = """
def attend(query, key, value, *, causal, scale):
    whole = np.lib.stride_tricks.as_strided(value, (value.size + 16,), (value.itemsize,))
    return right(query, key, value, causal=causal, scale=scale) + 0 * whole[-1]
"""
WITH_SETTING = """
SETTINGS = {"more": ("0", "1", "2"), "format": ("own", "half")}
def configure(*, more, format):
    global added
    if more == "2":
        raise ValueError("2 is not to be had here")
    added = float(more)
    return "float16" if format == "half" else None
def attend(query, key, value, *, causal, scale):
    return right(query, key, value, causal=causal, scale=scale) + query.dtype.type(added)
"""
#: a backend that works only if PyTorch is not in its process
ALONE = """
import sys
def attend(query, key, value, *, causal, scale):
    assert "torch" not in sys.modules
    return right(query, key, value, causal=causal, scale=scale)
"""
ABORTS = "import os, sys; print('terminate called', file=sys.stderr, flush=True); os.abort()"


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The results of all these backends, in one race with right ones."""
    folder = tmp_path_factory.mktemp("backends")
    for at, what in enumerate(MISTAKES.values()):
        (folder / f"mistake_{at}.py").write_text(RIGHT + HONEST.format(what=what))
    (folder / "past_the_end.py").write_text(RIGHT + PAST_THE_END)
    (folder / "set.py").write_text(RIGHT + WITH_SETTING)
    (folder / "fine.py").write_text(RIGHT + HONEST.format(what="print('output', calls)"))
    names = [f"mistake_{at}" for at in range(len(MISTAKES))]
    (folder / "alone.py").write_text(RIGHT + ALONE)
    names += ["past_the_end", "set", "fine", "numpy_blocked", "torch_eager", "alone"]
    names += [f"set[{one}]" for one in ("more=1", "more=2", "format=half")]
    names += [f"numpy_vectorized[{one}]" for one in ("deterministic=1", "pages=huge", "threads=1")]
    with Conductor(parse_all(names), folders=[folder], limits=REAL) as conductor:
        found = conductor.race(SMALL)
        assert all(one.name().startswith("python") for one in psutil.Process().children(recursive=True))
    assert not psutil.Process().children()
    return {one.contender: one for one in found}


@pytest.mark.parametrize("at", range(len(MISTAKES)), ids=list(MISTAKES))
def test_an_honest_mistake_is_seen(raced: dict[str, Result], at: int) -> None:
    """It is reported as a wrong answer, or as a crash if it raises an exception."""
    one = raced[f"mistake_{at}"]
    raises = list(MISTAKES)[at].startswith("raises")
    assert one.outcome is (Outcome.CRASHED if raises else Outcome.WRONG), one.reason
    assert one.reason and "\n" not in one.reason


def test_a_kernel_that_reads_past_its_arrays_is_wrong(raced: dict[str, Result]) -> None:
    """It reads NaN there."""
    assert raced["past_the_end"].outcome is Outcome.WRONG, raced["past_the_end"].reason


def test_right_backends_are_measured(raced: dict[str, Result]) -> None:
    """They are timed in every visit, with their peak memory, kernel and set-up time."""
    for name in ("fine", "numpy_blocked", "numpy_vectorized[threads=1]", "set"):
        one = raced[name]
        assert one.outcome is Outcome.MEASURED and one.latency is not None, one.reason
        assert set(one.latency.visits.values()) == {0, 1} and one.peak_bytes and one.kernel
        assert one.setup_seconds is not None and one.library == "numpy"


def test_another_library_is_not_in_a_contender_s_process(raced: dict[str, Result]) -> None:
    """PyTorch was 50 times slower with another library in its process, onnxruntime#13808."""
    both = raced["torch_eager"], raced["alone"]
    assert [one.outcome for one in both] == [Outcome.MEASURED] * 2, [one.reason for one in both]


def test_a_copy_of_repeated_keys_shows_in_peak_memory() -> None:
    """With grouped heads (pytorch#190523), repeated keys and values take as much memory as for all query heads."""
    grouped = Workload(heads=8, kv_heads=1, queries=1, keys=4096, head_dim=64)
    with Conductor(parse_all(["numpy_vectorized", "torch_sdpa"]), limits=REAL) as conductor:
        peaks = {one.contender: one.peak_bytes or 0 for one in conductor.race(grouped)}
    copied = 2 * 8 * 4096 * 64 * 4
    assert peaks["torch_sdpa"] < copied / 2 < copied <= peaks["numpy_vectorized"], peaks


def test_settings_arrive_and_what_cannot_be_had_is_an_outcome(raced: dict[str, Result]) -> None:
    """Each contender has its own settings, in its own process."""
    assert raced["set[more=1]"].outcome is Outcome.WRONG
    assert raced["set[more=2]"].outcome is Outcome.UNAVAILABLE
    assert "set refuses more=2" in (raced["set[more=2]"].reason or "")
    assert raced["set[format=half]"].computes_in == "float16"
    assert raced["numpy_vectorized[deterministic=1]"].outcome is Outcome.DECLINED
    huge = raced["numpy_vectorized[pages=huge]"]
    assert huge.outcome in (Outcome.MEASURED, Outcome.UNAVAILABLE), huge.reason


def test_a_library_that_ends_its_process_ends_one_contender(tmp_path, monkeypatch) -> None:
    """This holds also if it ends the nursery. The last text that it printed is reported."""
    for name in ("numba", "llvmlite"):
        (tmp_path / f"{name}.py").write_text(ABORTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    with Conductor(parse_all(["numba_fused", "numpy_vectorized"]), limits=REAL) as conductor:
        broken, sound = conductor.visit(SMALL)
        facts = conductor.facts
    assert (broken.outcome, sound.outcome) == (Outcome.CRASHED, Outcome.MEASURED), (broken, sound)
    assert "SIGABRT" in (broken.reason or "") and "terminate called" in (broken.reason or "")
    assert "numba_fused" not in facts and facts["numpy_vectorized"]["versions"]["numpy"]


def test_slow_first_calls_of_a_smaller_workload_exclude_nobody(tmp_path: Path) -> None:
    """Estimated from the first call the workload would take minutes, from the next seven 1.1 s: it is timed again.

    Its set-up time is that of a process which has computed nothing smaller before.
    """
    what = "until = now() + 0.4 * (len(calls) == 1) + 0.07 * (len(calls) < 9)\n    while now() < until: pass"
    text = RIGHT + HONEST.format(what=what)
    (tmp_path / "cold.py").write_text(f"from time import process_time as now\n{text}")
    with Conductor(parse_all(["cold"]), folders=[tmp_path], limits=replace(REAL, call_seconds=0.6)) as one:
        (found,) = one.race(Workload(heads=4, queries=512, keys=512))
    assert found.setup_seconds is not None and found.setup_seconds > 0.3, found.reason


@pytest.mark.parametrize("names", [["wrong", "slow"], ["slow", "wrong"]])
def test_a_fast_wrong_answer_excludes_no_slower_right_one(tmp_path: Path, names: list[str]) -> None:
    """The limit of a call follows from the fastest right contender, not from a wrong one that returns at once."""
    slow = "until = now() + 0.05\n    while now() < until: pass"
    (tmp_path / "slow.py").write_text(
        f"from time import process_time as now\n{RIGHT}{HONEST.format(what=slow)}"
    )
    wrong = f"{RIGHT}def attend(query, key, value, *, causal, scale):\n    return value.copy()"
    (tmp_path / "wrong.py").write_text(wrong)
    limits = replace(REAL, call_seconds=0.02)
    with Conductor(parse_all(names), folders=[tmp_path], limits=limits) as one:
        raced = {found.contender: found for found in one.race(Workload(heads=1, queries=512, keys=512))}
    assert raced["wrong"].outcome is Outcome.WRONG
    assert raced["slow"].outcome is Outcome.MEASURED, raced["slow"].reason


def test_one_that_writes_to_its_inputs_and_fails_blames_no_other(tmp_path: Path) -> None:
    """The inputs that it overwrote are restored before the next contender answers."""
    bad = "    query[...] = 0\n    assert query.shape[2] <= 256, 'too long'\n    return value.copy()"
    (tmp_path / "bad.py").write_text(f"{RIGHT}def attend(query, key, value, *, causal, scale):\n{bad}")
    with Conductor(parse_all(["bad", "numpy_vectorized"]), folders=[tmp_path], limits=REAL) as one:
        raced = one.race(Workload(heads=1, queries=512, keys=512))
    assert [found.outcome for found in raced] == [Outcome.CRASHED, Outcome.MEASURED], raced[1].reason


def test_blocks_are_raced_with_their_parts_and_stored_keys_with_their_copies() -> None:
    """A block has three parts, whose times are added up. A cache that is copied shows in the peak memory."""
    names = ["numpy_vectorized", "numpy_vectorized[projection=loop]"]
    block = Workload(heads=4, queries=6, keys=6, d_model=16)
    decode = Workload(heads=4, kv_heads=1, queries=1, keys=5000, head_dim=8, storage="paged")
    with Conductor(parse_all(names), limits=REAL) as conductor:
        found, (paged,) = conductor.race(block), conductor.race(decode, names[:1])
    for one in found:
        assert one.outcome is Outcome.MEASURED, one.reason
        parts = one.measurement(BLOCK_PARTS.quantity)
        assert parts is not None and set(parts.columns["visit"]) == {0.0, 1.0}
        columns = [parts.columns[f"{part}_s"] for part in ("projection", "attention", "output")]
        assert parts.samples == pytest.approx([sum(three) for three in zip(*columns, strict=True)])
    assert paged.peak_bytes is not None and paged.peak_bytes > 5000 * 16 * 4

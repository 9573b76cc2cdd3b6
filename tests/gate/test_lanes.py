"""`check` in several lanes: it finds what one lane finds, tells what happens in each, and leaves no process behind."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnlab.runs.check import _DTYPES, Checked, _shared_out, check
from attnlab.subprocesses import Aside, Broken, Enough, work_side_by_side

MINE = """
import os
import numpy as np
LIBRARY = "numpy"
def declines(workload):
    return None if workload.queries * workload.keys < 700 else "this takes long, and asks the same"
def attend(query, key, value, *, scale):
    {extra}
    s = query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) * scale
    w = np.exp(s - s.max(axis=-1, keepdims=True))
    return (w / w.sum(axis=-1, keepdims=True) @ value.astype(np.float64)).astype(query.dtype)
"""
#: the first and the third fall to the first of two lanes; NumPy has no bfloat16
DTYPES = ("float32", "float64", "bfloat16")
#: calls a part with what tells; mypy cannot say of what parts
CALL: Any = operator.call


def held(
    folder: Path, extra: str, lanes: int, on_event: Callable[[str], None] = lambda text: None
) -> Checked:
    """`check` of a NumPy backend that does something extra."""
    (folder / "mine.py").write_text(MINE.format(extra=extra))
    return check("mine", [str(folder)], dtypes=DTYPES, lanes=lanes, on_event=on_event, everything=True)


def in_(dtype: str, fault: str) -> str:
    """A fault in one dtype."""
    return f"if query.dtype == np.{dtype}: {fault}"


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("pass", None),
        (in_("float64", "scale *= 1.01"), "float64"),
        (in_("float64", "os._exit(3)"), "float64"),
    ],
)
def test_two_lanes_find_what_one_finds(tmp_path: Path, extra: str, told: str | None) -> None:
    """Number for number; the fault is the first in the order of the dtypes, whichever lane is done first."""
    alone, together = (asdict(held(tmp_path, extra, lanes)) for lanes in (1, 2))
    assert together == alone
    assert together["passed"] is (told is None)
    assert told is None or told in together["reason"]


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    """While both lanes ask: gone are the other lane and both of the backend's processes."""
    family: list[psutil.Process] = []

    def interrupt(text: str) -> None:
        if "float64" in text:  # so the other lane's backend is there
            family.extend(psutil.Process().children(recursive=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        held(tmp_path, "pass", 2, interrupt)
    assert len(family) >= 2  # the first lane may have ended its own already
    psutil.wait_procs(family, timeout=30)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)


def test_the_dtypes_are_shared_out_by_what_they_cost() -> None:
    """Each lane in the order of asking; never more lanes than dtypes."""
    assert _shared_out(_DTYPES, 1) == [list(_DTYPES)]
    assert _shared_out(_DTYPES, 2) == [["float32", "bfloat16"], ["float16", "float64"]]
    assert _shared_out(_DTYPES, 64) == [[dtype] for dtype in _DTYPES]
    assert _shared_out(("float64", "float32", "float16"), 2) == [["float64", "float16"], ["float32"]]


# -- lanes themselves: `operator.call` as the work, so that a part is what is done in it ------------------


def told_until(done: Callable[[], bool]) -> Callable[[Callable[[Any], None]], None]:
    """A part that tells "here" until `done`."""

    def part(tell: Callable[[Any], None]) -> None:
        until = time.monotonic() + 60
        while not done():
            tell("here")
            time.sleep(0.001)
            assert time.monotonic() < until

    return part


def test_a_lane_that_raises_is_an_error_that_says_so() -> None:
    """Nothing takes over what it was to do. `int` cannot be called with what a part is given."""
    with pytest.raises(Broken, match=r"raised:\n(.*\n)*TypeError"):
        work_side_by_side(CALL, [told_until(lambda: False), int], lambda message: None)
    assert psutil.Process().children() == []


@pytest.mark.parametrize("done_here", [True, False])
def test_a_lane_that_is_killed_is_an_error_that_says_so(done_here: bool) -> None:
    """Whether the caller is still at work or waits for it."""

    def killed(tell: Callable[[Any], None]) -> None:
        (lane,) = psutil.Process().children()
        lane.kill()
        if not done_here:
            told_until(lambda: False)(tell)

    with pytest.raises(Broken, match="killed by SIGKILL"):
        work_side_by_side(CALL, [killed, time.sleep], lambda message: None)
    assert psutil.Process().children() == []


def test_who_has_heard_enough_ends_all_lanes() -> None:
    """Without an error, in the middle of the work: `print`, as a part, prints to nowhere and is done."""
    told: list[Any] = []

    def tell(message: Any) -> None:
        told.append(message)
        if len(told) == 3:
            raise Enough

    work_side_by_side(CALL, [told_until(lambda: False), print], tell)
    assert told == ["here"] * 3
    assert psutil.Process().children() == []


def test_work_aside_gives_its_result_and_ends() -> None:
    """Of whatever size: the caller need not read while it is told."""
    aside = Aside(bytes, 2**22)
    assert aside.result() == bytes(2**22)
    assert psutil.Process().children() == []


def test_work_aside_that_raises_says_so() -> None:
    with pytest.raises(Broken, match=r"raised:\n(.*\n)*ValueError.*not a number"):
        Aside(int, "not a number").result()
    assert psutil.Process().children() == []


def test_nothing_is_left_of_work_aside_that_nobody_asks_for() -> None:
    """As where the caller fails meanwhile: it ends with what stands for it."""
    aside = Aside(time.sleep, 60)
    (lane,) = psutil.Process().children()
    del aside
    assert not lane.is_running()

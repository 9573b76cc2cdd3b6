"""The gate of two versions, on workers whose costs are set: what it fails on, what it passes, and when it is silent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of

from attnlab.backends.contender import Contender
from attnlab.errors import Unavailable
from attnlab.race.worker_process import Died, Refused
from attnlab.runs import gate as regression
from attnlab.runs.gate import STATUS, Gate, Kinds, Margins
from attnlab.stats.verdicts import MARGIN

BASE, HEAD = ("threads", "1"), ("threads", "2")
#: what is told of BASE, of BASE again and of HEAD: seconds a call, and more of a fake worker
Side = tuple[float, dict[str, Any]]


def noise(turn: int, process: int) -> float:
    """One that tells nobody apart who differs by more than a part in a thousand."""
    return 1 + 1e-4 * (turn % 3 + process % 2)


def gated(
    clock: Clock,
    head: Side,
    *races: Side,
    control: float = 1.0,
    base: dict[str, Any] | None = None,
    **how: Any,
) -> Gate:
    """The gate of a HEAD against a BASE of 1 ms; `races` are HEAD in the races after the first."""
    heads = [head, *races]

    def conductor(contenders: Sequence[Contender], **options: Any) -> Any:
        cost, more = heads.pop(0) if len(heads) > 1 else heads[0]
        costs = [(1e-3, base or {}), (1e-3 * control, base or {}), (1e-3 * cost, more)]
        workers = []
        for contender, (seconds, further) in zip(contenders, costs, strict=True):
            workers.append(FakeWorker(contender.name, clock, seconds, **{"noise": noise, **further}))
            workers[-1].contender = contender
        return conductor_of(workers)

    workloads = how.pop("workloads", [SMALL])
    return regression.gate(BASE, HEAD, ["numpy_vectorized"], workloads, conductor=conductor, **how)


@pytest.mark.parametrize(
    ("ratio", "found"),
    [
        (0.8, Kinds.PASSED),
        (1.0, Kinds.PASSED),
        (1.02, Kinds.PASSED),
        (1.05, Kinds.REGRESSION),
        (1.5, Kinds.REGRESSION),
    ],
)
def test_a_slow_down_beyond_the_margin_fails_and_nothing_else(
    clock: Clock, ratio: float, found: Kinds
) -> None:
    """And what passes says how large a slow-down it excludes."""
    one = gated(clock, (ratio, {}))
    assert (one.found, STATUS[one.found]) == (found, 1 if found is Kinds.REGRESSION else 0)
    if found is Kinds.PASSED:
        assert max(0.0, ratio - 1) <= one.unseen < max(0.0, ratio - 1) + MARGIN
    else:
        assert one.lines[0].of == ("time",)
        assert one.lines[0].ratio == pytest.approx(ratio, rel=1e-3)


def test_an_improvement_is_told(clock: Clock) -> None:
    """In a sentence of its own, beside that nothing is slower."""
    first, faster = gated(clock, (0.8, {})).sentences()
    assert "nothing is slower" in first
    assert "1.250 times as fast" in faster


def test_a_slow_down_that_a_second_race_does_not_show_passes(clock: Clock) -> None:
    """Processes draw their speed when they start; the first race's figure is told."""
    one = gated(clock, (1.1, {}), (1.0, {}))
    assert one.found is Kinds.PASSED
    assert "not confirmed" in one.lines[0].why


def test_all_backends_race_by_themselves_in_processes_that_start_once(clock: Clock) -> None:
    """Three contenders a race, and one conductor for all of them; again only those that did not pass."""
    started: list[list[str]] = []

    def conductor(contenders: Sequence[Contender], **options: Any) -> Any:
        started.append([one.name for one in contenders])
        workers = [FakeWorker(one.name, clock, _seconds(one), noise=noise) for one in contenders]
        for worker, contender in zip(workers, contenders, strict=True):
            worker.contender = contender
        return conductor_of(workers)

    names = ["numpy_vectorized", "naive_loop"]
    found = regression.gate(BASE, HEAD, names, [SMALL], conductor=conductor)
    assert [(one.backend, one.found) for one in found.lines] == [
        ("numpy_vectorized", Kinds.PASSED),
        ("naive_loop", Kinds.REGRESSION),
    ]
    assert [len(there) for there in started] == [6, 3]
    assert all("naive_loop" in name for name in started[1])


@pytest.mark.parametrize(("system", "pages"), [("[madvise] never", "huge"), ("madvise [never]", None)])
def test_both_sides_lie_on_huge_pages_where_the_system_has_them(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, pages: str | None
) -> None:
    """And whoever says otherwise does not."""
    (tmp_path / "enabled").write_text(system)
    monkeypatch.setattr("attnlab.backends.contender._HUGE_PAGES", tmp_path / "enabled")
    asked: list[str | None] = []

    def conductor(contenders: Sequence[Contender], **options: Any) -> Any:
        asked.extend(one.pages for one in contenders)
        return conductor_of([FakeWorker(one.name, clock, 1e-3, noise=noise) for one in contenders])

    names = ["numpy_vectorized", "naive_loop[pages=default]"]
    regression.gate(BASE, HEAD, names, [SMALL], conductor=conductor)
    assert asked == [pages] * 3 + ["default"] * 3


def test_a_side_that_is_not_to_be_had_is_told_before_anything_is_raced(tmp_path: Path) -> None:
    """In one line, however many races were asked for."""
    nowhere = ("python", str(tmp_path / "nowhere"))
    for sides in ((BASE, nowhere), (nowhere, BASE)):
        with pytest.raises(Unavailable, match="no such file"):
            regression.gate(*sides, ["numpy_vectorized"], [SMALL], conductor=pytest.fail)


def _seconds(contender: Contender) -> float:
    return 1.2e-3 if contender.backend == "naive_loop" and contender.threads == 2 else 1e-3


def test_where_base_is_told_apart_from_itself_there_is_no_verdict(clock: Clock) -> None:
    """However slow HEAD is."""
    one = gated(clock, (1.5, {}), control=1.1)
    assert (one.found, STATUS[one.found]) == (Kinds.NO_VERDICT, 3)


def test_a_race_that_could_not_have_seen_a_slow_down_is_no_verdict(clock: Clock) -> None:
    """Processes of two speeds, 40 % apart."""
    uneven: dict[str, Any] = {"noise": lambda turn, process: 1.2 if process % 2 else 1 / 1.2}
    one = gated(clock, (1.0, uneven))
    assert (one.found, one.to_json()["unseen"]) == (Kinds.NO_VERDICT, None)
    assert gated(clock, (1.0, uneven), margins=Margins(unseen=100.0)).found is Kinds.PASSED


@pytest.mark.parametrize(
    ("faults", "found", "of"),
    [
        ({("check", 1): Refused("wrong", "answers 0")}, Kinds.REGRESSION, ("wrong",)),
        ({("prepare", 1): Died("its process exited")}, Kinds.REGRESSION, ("crashed",)),
        ({("declines", 1): Refused("declined", "no masks")}, Kinds.REGRESSION, ("declined",)),
        ({("load", 1): Refused("unavailable", "needs torch")}, Kinds.NO_VERDICT, ()),
    ],
)
def test_a_new_outcome_fails(
    clock: Clock, faults: dict[Any, Exception], found: Kinds, of: tuple[str, ...]
) -> None:
    """But for what is not installed: nothing is known of that."""
    one = gated(clock, (1.0, {"faults": faults}))
    assert one.found is found
    assert not of or one.lines[0].of == of


def test_what_both_decline_is_no_regression(clock: Clock) -> None:
    """And where BASE alone fails, nothing can be compared."""
    declining: dict[str, Any] = {"faults": {("declines", 1): Refused("declined", "no masks")}}
    assert gated(clock, (1.0, declining), base=declining).found is Kinds.PASSED
    assert gated(clock, (1.0, {}), base=declining).found is Kinds.NO_VERDICT


@pytest.mark.parametrize(
    ("more", "margins", "of"),
    [
        ({"peak": lambda workload: 2**24}, Margins(), ("memory",)),
        ({"peak": lambda workload: 2**24}, Margins(memory=2e4), ()),
        ({"kernel": "other"}, Margins(), ("kernel",)),
        ({"kernel": "other"}, Margins(kernel_may_change=True), ()),
        ({"binding": lambda process: 1.0}, Margins(), ("set-up",)),
        ({"binding": lambda process: 1.0}, Margins(setup=100.0), ("set-up",)),
        ({"binding": lambda process: float(process == 1)}, Margins(), ()),
    ],
)
def test_memory_kernel_and_set_up_have_margins_of_their_own(
    clock: Clock, more: dict[str, Any], margins: Margins, of: tuple[str, ...]
) -> None:
    """Of set-up every process of HEAD has to take longer than any of BASE."""
    one = gated(clock, (1.0, more), margins=margins)
    assert one.lines[0].of == of


def test_where_memory_is_not_measured_the_gate_says_that_it_was_not_compared(clock: Clock) -> None:
    """It passes, and not in silence."""
    missing: dict[str, Any] = {"faults": {("PeakMemory", 1): Refused("unavailable", "no tracer")}}
    one = gated(clock, (1.0, missing), base=missing)
    assert one.found is Kinds.PASSED
    assert [said.split(":")[0] for said in one.sentences()[1:]] == ["Memory was not compared"]


def test_the_summary_is_short_and_has_the_verdict_first(clock: Clock) -> None:
    """With many workloads the worst are shown."""
    workloads = [SMALL.with_(keys=keys) for keys in range(4, 64)]
    found = gated(clock, (1.0, {}), workloads=workloads)
    assert len(found.summary().encode()) < 3000
    assert "No regression" in found.summary().splitlines()[0]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["exit_status"] == 0

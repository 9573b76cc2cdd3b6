"""Comparisons: what is said of a verdict and of two speeds, and what other programs are told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crews import latency

from attnlab.cli.tables import comparison_table
from attnlab.judge.pairing import Kind, Verdict
from attnlab.judge.replication import Speed
from attnlab.judge.verdicts import sentence, verdicts_against
from attnlab.problem.result import Accuracy, Measurement, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race import compare as program
from attnlab.race.compare import Comparison, compare, two_speeds
from attnlab.race.limits import Limits

QUICK = Limits(
    processes=3, most_processes=3, min_rounds=9, max_rounds=9, workload_seconds=20.0, turn_seconds=0.001
)
TINY = Workload(heads=1, queries=16, keys=16, head_dim=8)
FIELDS = {"name", "outcome", "reason", "seconds_median", "rounds", "ratio", "ratio_low", "ratio_high"}
FIELDS |= {"verdict", "peak_bytes", "relative_error", "seconds_by_placement", "disturbed_rounds"}
FIELDS |= {"processes_needed", "setup_seconds", "computes_in"}


@pytest.mark.parametrize("kind", list(Kind))
def test_a_sentence_names_both_the_interval_and_the_processes(kind: Kind) -> None:
    """Whatever the verdict."""
    said = sentence("mine", "theirs", Verdict(kind, 1.5, 1.4, 1.6, 30, processes=5))
    assert "mine" in said and "theirs" in said and "1.4 to 1.6" in said
    assert "30 rounds in 5 pairs of processes" in said


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (
            Verdict(Kind.UNDECIDED, 1.02, 0.98, 1.07, 60, processes=10, processes_needed=17),
            "about 17 pairs would decide it",
        ),
        (
            Verdict(Kind.UNDECIDED, 1.2, 0.0, math.inf, 6),
            "one pair of processes has no interval (time ratio so far 1.2); allow more processes",
        ),
        (
            Verdict(Kind.UNDECIDED, 1.2, 0.0, math.inf, 2, disturbed=28, processes=0),
            "other programs used the cores in 28 of 30 rounds; repeat it when nothing else runs",
        ),
    ],
)
def test_an_undecided_verdict_says_why_and_what_to_do(verdict: Verdict, said: str) -> None:
    """More processes, more time, or a quiet machine."""
    assert said in sentence("mine", "theirs", verdict)


FOUND = (Speed(0.001, 7), Speed(0.0013, 3))


@pytest.mark.parametrize(
    ("huge", "end"),
    [
        (None, "; try it with huge pages: a[pages=huge]."),
        (0.0009, "; 900 µs with huge pages (set THP_MEM_ALLOC_ENABLE=1)."),
    ],
)
def test_two_speeds_are_told_with_what_huge_pages_give(
    monkeypatch: pytest.MonkeyPatch, huge: float | None, end: str
) -> None:
    """Or with how to try that, where it was not measured; and without, where they cannot be had."""
    monkeypatch.setattr(program, "huge_pages_refused", lambda: "switched off")
    if huge is None:
        assert two_speeds("a", FOUND, huge).endswith("placements).")
    monkeypatch.setattr(program, "huge_pages_refused", lambda: None)
    assert two_speeds("a[pages=huge]", FOUND, None).endswith("placements).")
    said = two_speeds("a", FOUND, huge)
    assert said == f"a takes 1.30 ms or 1.00 ms by where its memory lies (3 and 7 of 10 placements){end}"


def twofold(name: str, **facts: str) -> Result:
    """A contender of two speeds: one process in two is slow."""
    times = latency([[1e-3 * (1.3 if number % 2 else 1.0)] * 6 for number in range(6)])
    measured = replace(times, facts={"cache": "warm", **facts})
    return Result(name, TINY, Outcome.MEASURED, measurements=(measured,))


def test_what_was_seen_of_the_machine_follows_the_verdicts() -> None:
    """Two speeds of a contender, whether or not it is the baseline, and who else used the cores."""
    steady = replace(twofold("b"), measurements=(latency([[2e-3] * 6] * 4),))
    found = Comparison(TINY, "a", (twofold("a", others="1.2 cores, most of it rustc"), steady), {}, 4)
    first, second = found.sentences()
    assert first.startswith("a takes 1.30 ms or 1.00 ms by where its memory lies")
    assert second == (
        "Other programs took 1.2 cores, most of it rustc meanwhile: turns that had to wait for a core do not count."
    )
    told = found.to_json()
    assert [one["seconds_by_placement"] for one in told["contenders"]] == [
        [1e-3, pytest.approx(1.3e-3)],
        [2e-3],
    ]
    assert [one["disturbed_rounds"] for one in told["contenders"]] == [0, 0]
    assert told["sets"] == 4


class Conducting:
    """Stands in for a conductor; every contender has two speeds until it has huge pages."""

    raced: list[list[str]]

    def __init__(self, contenders: Sequence[Any], **options: Any) -> None:
        self.contenders = contenders

    def __enter__(self) -> Conducting:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def race(self, workload: Workload) -> list[Result]:
        type(self).raced.append([one.name for one in self.contenders])
        huge = replace(twofold("x"), measurements=(latency([[0.5e-3] * 6] * 3),))
        return [
            replace(huge if one.pages == "huge" else twofold("x"), contender=one.name)
            for one in self.contenders
        ]


@pytest.mark.parametrize("refused", [None, "transparent huge pages are switched off (never)"])
def test_contenders_with_two_speeds_are_measured_with_huge_pages_too(
    monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    """Where the system gives any: in a short race of their own, which decides no verdict."""
    monkeypatch.setattr(Conducting, "raced", [], raising=False)
    monkeypatch.setattr(program, "Conductor", Conducting)
    monkeypatch.setattr(program, "huge_pages_refused", lambda: refused)
    found = compare(["numpy_vectorized", "numpy_blocked[threads=1]"], TINY)
    first, *further = Conducting.raced
    assert first == ["numpy_vectorized", "numpy_blocked[threads=1]"]
    expected = [] if refused else [["numpy_vectorized[pages=huge]", "numpy_blocked[threads=1,pages=huge]"]]
    assert further == expected
    assert found.huge_pages == ({} if refused else dict.fromkeys(first, 0.5e-3))
    assert found.sets == 6


def test_the_command_that_repeats_a_comparison_has_its_time_and_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they are not those that it has anyway."""
    monkeypatch.setattr(Conducting, "raced", [], raising=False)
    monkeypatch.setattr(program, "Conductor", Conducting)
    monkeypatch.setattr(program, "huge_pages_refused", lambda: "no")
    names = ["numpy_vectorized", "numpy_blocked"]
    plain = compare(names, TINY).command
    assert "--seconds" not in plain and "--processes" not in plain
    limits = Limits(workload_seconds=2.5, processes=3, most_processes=3)
    assert compare(names, TINY, limits=limits).command == f"{plain} --seconds 2.5 --processes 3"


def test_other_programs_get_every_field_and_no_speed_for_the_wrong(tmp_path: Path) -> None:
    """The JSON is strict, the same contender twice is told apart, and the slow one is found slow."""
    (tmp_path / "half.py").write_text('LIBRARY = "numpy"\ndef attend(q, k, v): return v / 2\n')
    asked = ["numpy_vectorized", "numpy_vectorized", "naive_loop", "half"]
    found = compare(asked, TINY, folders=[str(tmp_path)], limits=QUICK)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["baseline"] == "numpy_vectorized" and told["workload"]["queries"] == 16
    base, again, slow, half = told["contenders"]
    assert set(base) >= FIELDS
    assert [one["name"] for one in told["contenders"]] == [asked[0], "numpy_vectorized#2", *asked[2:]]
    assert (base["ratio"], base["verdict"]) == (1.0, "baseline")
    assert again["outcome"] == slow["outcome"] == "measured"
    assert slow["verdict"] == "slower" and slow["ratio_low"] > 2
    assert half["outcome"] == "wrong" and half["reason"]
    assert half["seconds_median"] is half["ratio"] is half["verdict"] is half["peak_bytes"] is None
    assert any(line.startswith("half: wrong.") for line in found.sentences())
    assert told["command"] == (
        "attnlab compare numpy_vectorized numpy_vectorized naive_loop half --length 16 --heads 1 --head-dim 8 "
        f"--implementations {tmp_path} --seconds 20 --processes 3"
    )


def test_grouped_heads_a_window_and_a_backward_pass_get_a_verdict() -> None:
    """Every result of both is checked, and their times are compared."""
    asked = {"heads": 2, "kv_heads": 1, "causal": "bottom_right", "window": (8, 0), "direction": "training"}
    patient = replace(QUICK, call_seconds=30.0, workload_seconds=60.0)
    found = compare(["torch_sdpa", "torch_eager"], TINY.with_(**asked, scale=None), limits=patient)
    assert [one.outcome for one in found.results] == ["measured", "measured"]
    assert all(one.accuracy is not None and one.accuracy.passed for one in found.results)
    assert set(found.verdicts) <= {"torch_eager"}
    assert found.command.startswith(found.workload.command("torch_sdpa", "torch_eager"))


def test_what_the_system_does_not_tell_is_said() -> None:
    """A disturbance that nobody could see must not be taken for a quiet machine."""
    found = Comparison(TINY, "a", (), {}, 5, unseen=("run delay of threads (no schedstat)",))
    assert found.sentences() == [
        "This system does not tell the run delay of threads (no schedstat): it goes unseen."
    ]


def test_what_is_open_comes_with_what_would_decide_it() -> None:
    """The most processes that any verdict needs, and how long they would take."""
    verdicts = {
        name: Verdict(Kind.UNDECIDED, 1.02, 0.99, 1.05, 60, processes=8, processes_needed=needed)
        for name, needed in (("b", 14), ("c", 9))
    }
    found = Comparison(TINY, "a", (), verdicts, 8, set_seconds=2.5)
    assert found.sentences() == ["To decide all of it: --processes 14, about 35 s."]


def measured(name: str, seconds: float, error: float, **more: Any) -> Result:
    """A contender with this time in five processes, and this relative error."""
    accuracy = Accuracy(error, 1.0, error, 16, 16, passed=True)
    times = latency([[seconds] * 6 for _ in range(5)])
    return Result(name, TINY, Outcome.MEASURED, None, accuracy, None, (times, *more.pop("and_", ())), **more)


def test_who_computes_in_less_is_told_with_both_errors() -> None:
    """Never "twice as fast" alone, whichever of the two is the baseline."""
    quick, plain = measured("quick", 1e-3, 3.1e-3, computes_in="bfloat16"), measured("plain", 2e-3, 2.3e-7)
    for results in ((plain, quick), (quick, plain)):
        baseline = results[0].contender
        verdicts = verdicts_against(results, baseline)
        found = Comparison(TINY, baseline, results, verdicts, 5)
        (said,) = found.sentences()
        if baseline == "plain":
            assert said.startswith(
                "quick is 2 times as fast as plain, in bfloat16: relative error 3.1e-03 against 2.3e-07 (time ratio"
            )
        else:
            assert said.startswith(
                "plain takes 2 times as long as quick, which computes in bfloat16: "
                "relative error 2.3e-07 against 3.1e-03"
            )
        shown = [str(cell) for cell in comparison_table(found).columns[0].cells]
        assert "quick, in bfloat16" in shown and "plain" in shown
        assert {one["name"]: one["computes_in"] for one in found.to_json()["contenders"]} == {
            "quick": "bfloat16",
            "plain": None,
        }


def test_set_up_is_told_with_when_it_pays_off() -> None:
    """A second for a millisecond a call."""
    setups = [Measurement("setup", "s", (9.0, one), {"fresh": (0.0, 1.0)}) for one in (1.25, 0.25)]
    compiled = measured("compiled", 1e-3, 1e-7, and_=(setups[0],))
    plain = measured("plain", 2e-3, 1e-7, and_=(setups[1],))
    found = Comparison(TINY, "plain", (plain, compiled), verdicts_against((plain, compiled), "plain"), 5)
    assert (
        "compiled takes 1.25 s to get ready: it pays off after 1,000 calls against plain."
        in found.sentences()
    )
    assert [one["setup_seconds"] for one in found.to_json()["contenders"]] == [0.25, 1.25]
    table = comparison_table(found)
    (column,) = [one for one in table.columns if one.header == "set-up"]
    assert list(column.cells) == ["250 ms", "1.25 s"]

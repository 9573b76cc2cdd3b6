"""Comparisons: what is said of a verdict and of two speeds, and what other programs are told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from process_sets import latency
from synthetic import synthetic

import attnlab
from attnlab.backend.discovery import load
from attnlab.cli.tables import comparison_table
from attnlab.errors import Unavailable
from attnlab.judge.verdicts import verdicts_against
from attnlab.libraries import host
from attnlab.problem.result import Accuracy, Measurement, Outcome, Result
from attnlab.problem.vocabulary import DTYPES
from attnlab.problem.workload import Workload
from attnlab.race.compare import Comparison, compare
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.race.limits import Limits
from attnlab.runs.check import Checked, Format

QUICK = Limits(
    processes=3, most_processes=3, min_rounds=9, max_rounds=9, workload_seconds=20.0, turn_seconds=0.001
)
TINY = Workload(heads=1, queries=16, keys=16, head_dim=8)
FIELDS = {"name", "outcome", "reason", "seconds_median", "rounds", "ratio", "ratio_low", "ratio_high"}
FIELDS |= {"verdict", "peak_bytes", "relative_error", "seconds_by_placement", "disturbed_rounds"}
FIELDS |= {"processes_needed", "setup_seconds", "computes_in"}


def test_other_programs_get_every_field_and_no_speed_for_the_wrong(tmp_path: Path) -> None:
    """The JSON is strict, the same contender twice is told apart, and the slow one takes longer."""
    (tmp_path / "half.py").write_text('LIBRARY = "numpy"\ndef attend(q, k, v): return v / 2\n')
    asked = ["numpy_vectorized", "numpy_vectorized", "naive_loop", "half"]
    found = compare(*asked, workload=TINY, folders=[str(tmp_path)], limits=QUICK)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["baseline"] == "numpy_vectorized" and told["workload"]["queries"] == 16
    base, again, slow, half = told["contenders"]
    assert set(base) >= FIELDS
    assert [one["name"] for one in told["contenders"]] == [asked[0], "numpy_vectorized#2", *asked[2:]]
    assert (base["ratio"], base["verdict"]) == (1.0, "baseline")
    assert again["outcome"] == slow["outcome"] == "measured"
    assert slow["verdict"] in ("slower", "undecided") and slow["ratio"] > 1, (
        "how sure that is is up to the machine"
    )
    assert half["outcome"] == "wrong" and half["reason"]
    assert half["seconds_median"] is half["ratio"] is half["verdict"] is half["peak_bytes"] is None
    assert any(line.startswith("half: wrong.") for line in found.sentences())
    assert told["command"] == (
        "attnlab compare numpy_vectorized numpy_vectorized naive_loop half --length 16 --heads 1 --head-dim 8 "
        f"--implementations {tmp_path} --seconds 20 --processes 3"
    )


def test_where_one_alone_is_left_nothing_is_raced(tmp_path: Path) -> None:
    (tmp_path / "absent.py").write_text(
        'LIBRARY = "numpy"\nimport absent_library\ndef attend(q, k, v): return v\n'
    )
    heard: list[str] = []
    with pytest.raises(Unavailable, match=r"nothing to compare: absent is .*absent_library"):
        compare("numpy_vectorized", "absent", length=16, folders=[str(tmp_path)], on_event=heard.append)
    assert not [one for one in heard if "round" in one or "checking" in one]


def measured(name: str, seconds: float, error: float, **more: Any) -> Result:
    """A contender with this time in five processes, and this relative error."""
    accuracy = Accuracy(error, 1.0, error, 16, 16, passed=True)
    times = latency([[seconds] * 6 for _ in range(5)])
    return Result(name, TINY, Outcome.MEASURED, None, accuracy, None, (times, *more.pop("and_", ())), **more)


def test_a_ratio_is_told_with_or_without_an_interval() -> None:
    """Beside other programs the ratio stands, with why it has no interval; nobody takes it for a verdict."""
    base, other = (latency([[seconds] * 6] * 5, disturbed=range(30)) for seconds in (1e-3, 1.5e-3))
    results = tuple(
        Result(name, TINY, Outcome.MEASURED, measurements=(one,)) for name, one in (("a", base), ("b", other))
    )
    found = Comparison(TINY, "a", results, verdicts_against(results, "a"), 5)
    row = found.to_json()["contenders"][1]
    assert row["ratio"] == pytest.approx(1.5) and row["ratio_low"] is row["ratio_high"] is None
    assert "30 of 30 rounds" in row["no_interval"] and row["verdict"] == "undecided"
    (said,) = found.sentences()
    assert "time ratio 1.5" in said and row["no_interval"] in said and "when nothing else runs" in said
    assert found.frame().set_index("contender").loc["b", "ratio"] == row["ratio"]
    assert "none" in [row[4] for row in comparison_table(found).rows]


def test_results_are_shown_in_ten_lines(tmp_path: Path) -> None:
    """However many contenders and samples there are."""
    run = synthetic(tmp_path)
    raced = [replace(one, workload=TINY) for one in run.results[: len(run.contenders)]] * 2
    found = Comparison(TINY, "torch_eager", tuple(raced), verdicts_against(raced, "torch_eager"), 5)
    assert dir(attnlab) == sorted(attnlab.__all__)
    formats = {dtype: Format(False, "w" * 2000) for dtype in DTYPES}
    for one in (found, run, run.results[0], run.results[0].latency, Checked("a", False, "why", formats)):
        assert len(repr(one).splitlines()) <= 10 and max(map(len, repr(one).splitlines())) < 200


def test_a_script_races_and_checks_without_a_main_guard(tmp_path: Path) -> None:
    """By the names of the command line's options; a slip in one of them is told."""
    script = (
        "import attnlab\n"
        "found = attnlab.compare('numpy_vectorized', 'numpy_blocked', length=16, heads=1, processes=1, seconds=0.2)\n"
        "print(*found.frame().contender, found.workload.label)\n"
        "print(attnlab.check('numpy_vectorized', dtypes=['float32', 'bfloat16']).frame().result.tolist())\n"
        "try:\n    attnlab.compare('numpy_vectorized', 'numpy_blocked', lenght=16)\n"
        "except ValueError as fault:\n    print(fault)\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "numpy_vectorized numpy_blocked b1 h1 n16 d64 float32 cpu",
        "['right', 'not asked']",
        "a workload has no field 'lenght'; did you mean length?",
    ], done.stderr


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
                "quick is 2.00 times as fast as plain, in bfloat16: relative error 3.1e-03 against 2.3e-07 (time ratio"
            )
        else:
            assert said.startswith(
                "plain takes 2.00 times as long as quick, which computes in bfloat16: "
                "relative error 2.3e-07 against 3.1e-03"
            )
        told = {one["name"]: one["computes_in"] for one in found.to_json()["contenders"]}
        assert told == {"quick": "bfloat16", "plain": None}


def test_without_its_tracer_memory_is_told_to_be_missing_with_the_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line for all contenders, whose times stand."""
    monkeypatch.setattr(host, "is_there", lambda name: False)
    with pytest.raises(Unavailable, match=r"memray is not installed; pip install 'attnlab\[memory\]'") as why:
        PEAK_MEMORY.measure(load("numpy_vectorized").open("cpu"), lambda: None)
    note = f"its peak memory could not be measured: {why.value}"
    results = [replace(measured(name, 1e-3, 1e-7), reason=note) for name in ("a", "b")]
    said = Comparison(TINY, "a", results, verdicts_against(results, "a"), 5).sentences()
    assert [one for one in said if "memray" in one] == [f"a and b: {note.removeprefix('its ')}."]


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

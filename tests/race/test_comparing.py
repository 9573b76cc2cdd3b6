"""Comparisons: what is said of a verdict and of two speeds, and what other programs are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_workers import QUICK
from process_sets import TINY, compared, latency, measured
from synthetic import synthetic

from attnlab.backends.discovery import load
from attnlab.correctness.check import Checked, Format
from attnlab.errors import Unavailable
from attnlab.libraries import host
from attnlab.race.compare import compare
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.workload.result import Measurement, Outcome, Result
from attnlab.workload.vocabulary import DTYPES

FIELDS = {"name", "outcome", "reason", "seconds_median", "rounds", "ratio", "ratio_low", "ratio_high"}
FIELDS |= {"verdict", "peak_bytes", "relative_error", "seconds_by_placement", "disturbed_rounds"}
FIELDS |= {"visits_needed", "setup_seconds", "computes_in"}


def test_who_is_missing_for_one_reason_is_told_once_and_a_quotient_of_medians_is_not_the_ratio() -> None:
    """Here each round's ratio is 2, 4.5 or 1/9, and both medians are 2 ms."""
    base, other = latency([[1e-3, 2e-3, 9e-3]] * 5), latency([[2e-3, 9e-3, 1e-3]] * 5)
    missing = [Result(name, TINY, Outcome.UNAVAILABLE, "no library") for name in "cd"]
    said = compared(measured("a", base), measured("b", other), *missing).sentences()
    assert said[0].startswith("b takes 2.00 times as long as a") and "all rounds is 1.000" in said[1]
    assert said[2] == "c and d: unavailable. no library."
    same = compared(measured("a", base), measured("b", base)).sentences()
    assert "quotient" not in " ".join(same)


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
    assert slow["verdict"] in ("slower", "undecided") and slow["ratio"] > 1  # how sure is up to the machine
    assert half["outcome"] == "wrong" and half["reason"]
    assert half["seconds_median"] is half["ratio"] is half["verdict"] is half["peak_bytes"] is None
    assert any(line.startswith("half: wrong.") for line in found.sentences())
    assert told["command"] == (
        "attnlab compare numpy_vectorized numpy_vectorized naive_loop half --length 16 --heads 1 --head-dim 8 "
        f"--implementations {tmp_path} --seconds 3 --processes 2"
    )


def test_where_one_alone_is_left_nothing_is_raced(tmp_path: Path) -> None:
    (tmp_path / "absent.py").write_text("import absent_library")
    heard: list[str] = []
    with pytest.raises(Unavailable, match=r"nothing to compare: absent is .*absent_library"):
        compare("numpy_vectorized", "absent", length=16, folders=[str(tmp_path)], on_event=heard.append)
    assert not [one for one in heard if "round" in one or "checking" in one]


def test_a_ratio_is_told_with_or_without_an_interval() -> None:
    """Beside other programs the ratio stands, with why it has no interval; nobody takes it for a verdict."""
    busy = (latency([[seconds] * 6] * 5, disturbed=range(30)) for seconds in (1e-3, 1.5e-3))
    found = compared(*map(measured, "ab", busy))
    row = found.to_json()["contenders"][1]
    assert row["ratio"] == pytest.approx(1.5) and row["ratio_low"] is row["ratio_high"] is None
    assert row["no_interval"] == "disturbed" and row["verdict"] == "undecided"
    assert "time ratio 1.5" in found.sentences()[0] and row["no_interval"] in found.sentences()[0]
    assert found.frame().set_index("contender").loc["b", "ratio"] == row["ratio"]


def test_results_are_shown_in_ten_lines(tmp_path: Path) -> None:
    """However many contenders and samples there are."""
    run = synthetic(tmp_path, lengths=(64,), heads=(1,))
    checked = Checked("a", False, "why", {dtype: Format(False, "w" * 2000) for dtype in DTYPES})
    for one in (compared(*run.results * 2), run, run.results[0], run.results[0].latency, checked):
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
    quick, plain = measured("quick", 1e-3, error=3.1e-3, computes_in="bfloat16"), measured("plain", 2e-3)
    for found in (compared(plain, quick), compared(quick, plain)):
        (said,) = found.sentences()
        assert "bfloat16: relative error" in said and "3.1e-03" in said and "1.0e-07" in said
        told = {one["name"]: one["computes_in"] for one in found.to_json()["contenders"]}
        assert told == {"quick": "bfloat16", "plain": None}


def test_without_its_tracer_memory_is_told_to_be_missing_with_the_mend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line for all contenders, whose times stand."""
    monkeypatch.setattr(host, "is_there", lambda name: False)
    with pytest.raises(Unavailable, match=r"memray is not installed; pip install 'attnlab\[memory\]'") as why:
        PEAK_MEMORY.measure(load("numpy_vectorized").open("cpu"), lambda: None)
    said = compared(*(measured(name, 1e-3, reason=f"its {why.value}") for name in "ab")).sentences()
    assert [one for one in said if "memray" in one] == [f"a and b: {why.value}."]


def test_set_up_is_told_with_when_it_pays_off() -> None:
    """A second for a millisecond a call."""
    plain, compiled = (
        measured(name, seconds, Measurement("setup", "s", (9.0, setup), {"fresh": (0.0, 1.0)}))
        for name, seconds, setup in (("plain", 2e-3, 0.25), ("compiled", 1e-3, 1.25))
    )
    found = compared(plain, compiled)
    assert any("compiled takes 1.25 s" in one and "after 1,000 calls" in one for one in found.sentences())
    assert [one["setup_seconds"] for one in found.to_json()["contenders"]] == [0.25, 1.25]

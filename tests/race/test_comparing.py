"""Comparisons: what is reported to people and to other programs, interrupts, and use from a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from process_sets import TINY, compared, latency, measured
from scripted import REAL

from attnlab.errors import Unavailable
from attnlab.race.compare import compare, first_verdicts

FIELDS = {"name", "outcome", "reason", "seconds_median", "rounds", "ratio", "ratio_low", "ratio_high"}
FIELDS |= {"verdict", "peak_bytes", "relative_error", "disturbed_rounds", "setup_seconds", "computes_in"}


def test_other_programs_get_every_field_and_no_speed_for_the_wrong(tmp_path: Path) -> None:
    """The JSON is strict, and two entries of one contender have different names."""
    (tmp_path / "half.py").write_text('LIBRARY = "numpy"\ndef attend(q, k, v): return v / 2\n')
    asked = ["numpy_vectorized", "numpy_vectorized", "naive_loop", "half"]
    found = compare(*asked, workload=TINY, folders=[str(tmp_path)], limits=REAL)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["baseline"] == "numpy_vectorized" and told["workload"]["queries"] == 16
    base, again, slow, half = told["contenders"]
    assert set(base) >= FIELDS
    assert [one["name"] for one in told["contenders"]] == [asked[0], "numpy_vectorized#2", *asked[2:]]
    assert (base["ratio"], base["verdict"]) == (1.0, "baseline")
    assert again["outcome"] == slow["outcome"] == "measured"
    assert half["outcome"] == "wrong" and half["reason"]
    assert half["seconds_median"] is half["ratio"] is half["verdict"] is half["peak_bytes"] is None
    assert told["command"] == (
        "attnlab compare numpy_vectorized numpy_vectorized naive_loop half --length 16 --heads 1 --head-dim 8 "
        f"--implementations {tmp_path} --seconds 300 --visits 2"
    )


def test_where_one_alone_loads_there_is_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "absent.py").write_text("import absent_library")
    with pytest.raises(Unavailable, match=r"nothing to compare: absent: .*absent_library"):
        compare("numpy_vectorized", "absent", length=16, folders=[str(tmp_path)], limits=REAL)


def test_a_list_where_names_are_expected_is_told_and_the_other_way_round() -> None:
    two = ("numpy_vectorized", "numpy_blocked")
    for names, how in (([two], {}), (two, {"folders": "mine"}), (two, {"seconds": "1"})):
        with pytest.raises(ValueError, match=r"a contender is written|folders must be|seconds must be"):
            compare(*names, **how)


def test_a_ratio_is_told_with_or_without_an_interval() -> None:
    """If every round was disturbed, the ratio has no interval, the reason is given, and the verdict is undecided."""
    busy = (latency([[seconds] * 6] * 5, disturbed=range(30)) for seconds in (1e-3, 1.5e-3))
    found = compared(*map(measured, "ab", busy))
    row = found.to_json()["contenders"][1]
    assert row["ratio"] == pytest.approx(1.5) and row["ratio_low"] is row["ratio_high"] is None
    assert row["no_interval"] == "disturbed" and row["verdict"] == "undecided"
    assert "speedup 0.667" in repr(found)
    assert found.frame().set_index("contender").loc["b", "ratio"] == row["ratio"]


def test_a_first_verdict_is_told_once_and_as_soon_as_it_rests_on_two_visits() -> None:
    hear = first_verdicts("a", (heard := list[str]()).append)
    for visits in (1, 2, 3):
        hear([measured(name, latency([[took] * 4] * visits)) for name, took in (("a", 1e-3), ("b", 2e-3))])
    assert [one.partition(" [")[0] for one in heard] == ["b after 2 visits: speedup 0.500"]


def test_an_interrupt_keeps_the_visits_before_it() -> None:
    """This holds only with `interruptible`. Otherwise the interrupt is passed on to the script."""
    heard = list[str]()

    def interrupt(text: str) -> None:
        heard.append(text)
        if "preparing naive_loop" in text and not heard.count(text) % 2:
            raise KeyboardInterrupt

    asked = {"workload": TINY, "limits": REAL, "on_event": interrupt}
    found = compare("numpy_vectorized", "naive_loop", interruptible=True, **asked)
    assert found.interrupted and found.visits == 1 and all(one.latency for one in found.results)
    with pytest.raises(KeyboardInterrupt):
        compare("numpy_vectorized", "naive_loop", **asked)


def test_a_script_races_and_checks_without_a_main_guard(tmp_path: Path) -> None:
    """Arguments have the names of the command line's options. A misspelt name is reported."""
    script = (
        "import attnlab\n"
        "found = attnlab.compare('numpy_vectorized', 'numpy_blocked', length=16, heads=1, visits=1, seconds=0.2)\n"
        "print(*found.frame().contender, found.workload.label)\n"
        "print(attnlab.check('numpy_vectorized', dtypes=['bfloat16']).frame().result.tolist())\n"
        "try:\n    attnlab.compare('numpy_vectorized', 'numpy_blocked', lenght=16)\n"
        "except ValueError as fault:\n    print(fault)\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "numpy_vectorized numpy_blocked b1 h1 n16 d64 float32 cpu",
        "['not asked']",
        "a workload has no field 'lenght'; did you mean length?",
    ], done.stderr

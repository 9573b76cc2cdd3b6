"""Races inside pytest-benchmark: it reports attnlab's samples, its own options work, a wrong backend fails."""

import json

import pytest

SMALL = (
    *("-p", "attnlab.pytest_plugin", "-p", "no:cacheprovider", "--lengths", "16"),
    *("--heads", "1", "--benchmark-max-time", "1", "-W", "error", "-rsf", "--implementations", "mine"),
)
SPEED = """
import json

def test_speed(interleaved, contender, workload):
    result = interleaved(contender, workload)
    if result is not None:
        with open(contender + ".samples", "w") as file:
            json.dump(result.latency.samples, file)
"""
OWN = {
    "right": "return softmax(q, k) @ v",
    "wrong": "return softmax(q, k) @ v * 1.001",
    "misshapen": "return (softmax(q, k) @ v)[0]",
    "raising": "raise RuntimeError('not today')",
    "dying": "import os; os._exit(7)",
}
SOURCE = """
import numpy as np
LIBRARY = "numpy"
def softmax(q, k):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)
def attend(q, k, v):
    {body}
"""
SAID = (
    "wrong wrong: relative error *is rounding in float32*",
    "misshapen wrong: misshapen returned shape (1, 16, 64), expected (1, 1, 16, 64)",
    "raising crashed: raised RuntimeError: not today",
    "SKIPPED *absent unavailable: absent needs no_such_library, which is not installed",
)


@pytest.fixture
def speed(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with one test that races and writes its samples to a file, and with a user's backends."""
    pytester.makepyfile(test_mine=SPEED)
    folder = pytester.mkdir("mine")
    for name, body in OWN.items():
        (folder / f"{name}.py").write_text(SOURCE.format(body=body))
    (folder / "absent.py").write_text("import no_such_library\n")
    return pytester


def test_reports_hold_the_samples_of_the_race_and_only_a_right_backend_has_a_speed(speed) -> None:
    """Only the backends that `-k` selects, and the baseline, are raced."""
    (speed.path / "mine" / "deaf.py").write_text("raise AssertionError('it was not selected')\n")
    selected = ("-k", "not deaf", "--backends", ",".join(("numpy_blocked", *OWN, "absent", "deaf")))
    chosen = (*selected, "--baseline", "right")
    result = speed.runpytest_inprocess(*SMALL, *chosen, "--benchmark-json", "out.json")
    result.assert_outcomes(passed=2, failed=4, skipped=1, deselected=1)
    result.stdout.fnmatch_lines_random(
        [*SAID, "dying crashed: its process exited with status 7*", "*: speedup over right*"]
    )
    result.stdout.fnmatch_lines(["*benchmark 'b1 h1 n16 d64 float32 cpu': 2 tests*"])
    assert "Traceback" not in result.stdout.str()
    told = json.loads((speed.path / "out.json").read_text())["benchmarks"]
    found = {one["params"]["contender"]: one for one in told}
    assert set(found) == {"numpy_blocked", "right"}
    for name, one in found.items():
        assert one["stats"]["data"] == json.loads((speed.path / f"{name}.samples").read_text())
        assert len(one["stats"]["data"]) >= 20
    base, other = (found[name]["extra_info"] for name in ("right", "numpy_blocked"))
    assert (base["ratio"], base["verdict"], other["baseline"]) == (1, "baseline", "right")
    assert other["verdict"] in {"faster", "slower", "equivalent", "undecided"}
    assert other["outcome"] == "measured" and str(other["kernel"]).startswith("openblas")
    assert isinstance(other["peak_bytes"], int) and other["peak_bytes"] >= 16 * 64 * 4
    assert isinstance(other["relative_error"], float) and 0 < other["relative_error"] < 4e-6


def test_without_a_clock_the_wrong_fail_too(speed: pytest.Pytester) -> None:
    chosen = ("--backends", "right,wrong,misshapen,raising,absent,numpy_blocked")
    result = speed.runpytest_inprocess(*SMALL, *chosen, "--benchmark-disable")
    result.assert_outcomes(passed=2, failed=3, skipped=1)
    result.stdout.fnmatch_lines_random(SAID)
    speed.runpytest_inprocess(*SMALL, *chosen, "--benchmark-skip").assert_outcomes(skipped=6)
    long = ("--lengths", "4096", "--heads", "8", "--backends", "naive_loop")
    result = speed.runpytest_inprocess(*SMALL, *long, "--benchmark-disable")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *naive_loop over budget: a call would take about *"])


def test_a_contender_that_takes_no_part_fails_in_one_line(speed: pytest.Pytester) -> None:
    tests = "def test_{0}({0}, workload): {0}('naive_loop'{1})\n"
    fixtures = (("interleaved", ", workload"), ("answered", ", workload"), ("checked", ""))
    speed.makepyfile(test_mine="".join(tests.format(*one) for one in fixtures))
    result = speed.runpytest_inprocess(*SMALL, "--backends", "numpy_blocked", "--benchmark-disable")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["'naive_loop' takes no part here, but numpy_blocked: name it in *"])
    assert "Traceback" not in result.stdout.str() and "KeyError" not in result.stdout.str()


def test_the_whole_gate_is_a_fixture(speed: pytest.Pytester) -> None:
    """A wrong backend fails with its question; a backend that declines everything is skipped."""
    speed.makepyfile(
        test_mine="def test_gate(checked, contender): assert checked(contender).name == contender"
    )
    shy = SOURCE.format(body=OWN["right"]) + "def declines(workload): return 'not today'\n"
    (speed.path / "mine" / "shy.py").write_text(shy)
    chosen = ("--backends", "wrong,shy", "--dtypes", "float32")
    result = speed.runpytest_inprocess(*SMALL, *chosen)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["wrong: float32, *", "*shy: it declines every workload*"])

"""The block on the command line, in the plan file of its chapter, and in the suites."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attnlab.__main__ import main
from attnlab.backends.contender import parse_all
from attnlab.runs.plan import Plan, read_plan

PLAN = Path(__file__).parents[2] / "docs" / "plans" / "multi-head-block.toml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--d-model", "770", "--heads", "12"), "must be divisible by heads, got 770 and 12; take 11 heads"),
        (("--rotary",), "rotary positions belong to a multi-head block"),
        (("--d-model", "64", "--direction", "training"), "must be forward, got 'training'"),
        (("--d-model", "0"), "must be a whole number of at least 1, got '0'"),
    ],
)
def test_a_block_that_can_not_be_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any process is started."""
    with pytest.raises(SystemExit) as end:
        main(["compare", "torch_sdpa", "torch_mha", *arguments])
    shown = capsys.readouterr()
    assert end.value.code == 2 and not shown.out
    (line,) = shown.err.strip().splitlines()
    assert message in line


def test_the_plan_of_the_chapter_asks_its_questions() -> None:
    """Fused beside loop for two libraries, several head counts at one width."""
    plan = Plan.grid(**read_plan(PLAN))
    assert {one.d_model for one in plan.workloads} == {768}
    assert {one.heads * one.head_dim for one in plan.workloads} == {768}
    assert len({one.heads for one in plan.workloads}) >= 3
    projections = {(one.backend, one.projection) for one in parse_all(plan.contenders)}
    assert {("torch_sdpa", None), ("torch_sdpa", "loop"), ("torch_sdpa", "packed")} < projections


def test_the_suite_is_right_and_skips_what_it_can_not_ask(pytester: pytest.Pytester) -> None:
    """From the checkout, without a clock."""
    source = Path(__file__).parents[2] / "suites" / "test_block.py"
    shutil.copy(source, pytester.path / "test_block.py")
    backends = "torch_sdpa,torch_sdpa[projection=loop],torch_mha"
    chosen = ("--backends", backends, "--lengths", "8", "--benchmark-disable", "test_block.py")
    plugin = ("-p", "attnlab.pytest_plugin.plugin")
    found = pytester.runpytest_subprocess(*plugin, *chosen, "--heads", "12")
    found.assert_outcomes(passed=6)
    found = pytester.runpytest_subprocess(*plugin, *chosen, "--heads", "7", "-rs")
    found.assert_outcomes(skipped=6)
    found.stdout.fnmatch_lines(["*d_model must be divisible by heads, got 768 and 7*"])

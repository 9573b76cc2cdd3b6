"""The chapter on multi-head blocks says what was made up: ratios of projections, of heads, and shares of the parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnlab.judge import replication
from attnlab.judge.growth import Fitting
from attnlab.problem.result import Measurement, Result
from attnlab.problem.workload import Workload
from attnlab.report import blocks, page
from attnlab.report.analysis import analyse
from attnlab.report.data_tables import tables
from attnlab.runs.store import Run

BLOCK = {"d_model": 768, "head_dim": None, "value_dim": None, "scale": None}
#: seconds: one projection a head costs 2 µs a head more, packing saves a tenth
COSTS: dict[str, Callable[[Workload], float]] = {
    "torch_sdpa": lambda w: 1e-4 + w.flops / 100e9,
    "torch_sdpa[projection=packed]": lambda w: 0.9 * (1e-4 + w.flops / 100e9),
    "torch_sdpa[threads=1,projection=loop]": lambda w: 3e-4,
    "torch_sdpa[projection=loop]": lambda w: 1e-4 + w.flops / 100e9 + 2e-6 * w.heads,
    "torch_mha": lambda w: 1.2e-4 + w.flops / 100e9,
}
SHARES = {"projection": 0.5, "attention": 0.2, "output": 0.3}


def parted(result: Result) -> Result:
    """With the three parts measured in five processes, three times each."""
    if result.latency is None or result.backend != "torch_sdpa":
        return result
    rng, whole = np.random.default_rng(len(result.contender)), result.latency.median
    parts = {f"{name}_s": whole * part * rng.lognormal(0, 0.02, 15) for name, part in SHARES.items()}
    # a disturbed round in each of five processes, which is nearly all output projection
    waited = np.arange(15) % 3 == 0
    parts["output_s"][waited] *= 100
    noted = {**parts, "process": np.arange(15) // 3, "waited": 0.5 * waited}
    columns = {name: tuple(map(float, one)) for name, one in noted.items()}
    samples = tuple(map(float, np.sum(list(parts.values()), axis=0)))
    return replace(
        result, measurements=(*result.measurements, Measurement("block_parts", "s", samples, columns))
    )


@pytest.fixture
def run(made: Callable[..., Run]) -> Run:
    """A run of blocks at two head counts and two lengths."""
    found = made(costs=COSTS, heads=(4, 12), lengths=(128, 512), variants=(BLOCK,), second_entry=1.0)
    found.results = [parted(one) for one in found.results]
    return found


def test_the_chapter_is_there_for_blocks_alone(made: Callable[..., Run], run: Run) -> None:
    """And the page of a run without them does not mention it."""
    assert blocks.content(analyse(made(heads=(1,), lengths=(64,)))) is None
    text = page.write(run).read_text(encoding="utf-8")
    assert text.count("## The multi-head block\n") == 1
    assert "d_model 768" in text and "head_dim" not in text.partition("## Verdict")[0]
    assert "block parts" not in text, "the parts have their own table"


def ratio_of(row: str, column: int) -> tuple[float, float, float]:
    """The estimate and the ends of its interval in a cell of a table's row."""
    cell = row.split("|")[1 + column]
    numbers = re.findall(r"[\d.]+", cell)
    assert len(numbers) == 3, cell
    return float(numbers[0]), float(numbers[1]), float(numbers[2])


def test_every_way_of_projecting_is_told_against_one_matrix(run: Run) -> None:
    """With the interval of the pair; a contender with other settings is a family of its own."""
    (group,) = (blocks.content(analyse(run)) or {})["groups"]
    rows = [row for row in group["projections"].splitlines() if "`torch_sdpa`" in row]
    assert len(rows) == 4 and "threads" not in group["projections"]
    for row, (heads, n) in zip(rows, [(4, 128), (4, 512), (12, 128), (12, 512)], strict=True):
        workload = Workload(heads=heads, queries=n, keys=n, d_model=768)
        truth = COSTS["torch_sdpa[projection=loop]"](workload) / COSTS["torch_sdpa"](workload)
        packed, loop = ratio_of(row, 3), ratio_of(row, 4)
        assert packed[1] <= 0.9 <= packed[2] and loop[1] <= truth <= loop[2]


def test_the_cost_of_heads_is_told_at_one_width(run: Run) -> None:
    """Over the fewest heads, process by process."""
    (group,) = (blocks.content(analyse(run)) or {})["groups"]
    row = next(
        one
        for one in group["heads"].splitlines()
        if "`torch_sdpa[projection=loop]`" in one and "| 128" in one
    )
    few, many = (Workload(heads=heads, queries=128, keys=128, d_model=768) for heads in (4, 12))
    cost = COSTS["torch_sdpa[projection=loop]"]
    _, low, high = ratio_of(row, 3)
    assert low <= cost(many) / cost(few) <= high


def test_shares_of_the_parts_have_intervals_over_processes(run: Run) -> None:
    """And a sentence tells them for the fastest."""
    content = blocks.content(analyse(run))
    assert content is not None
    (group,) = content["groups"]
    row = next(one for one in group["parts"].splitlines() if "`torch_sdpa`" in one)
    for column, share in enumerate(SHARES.values(), start=3):
        value, low, high = ratio_of(row, column)
        assert low <= 100 * share <= high and abs(value - 100 * share) < 2
    assert any("spends" in said and "output projection" in said for said in content["sentences"])
    assert any("12 separate projections `torch_sdpa` takes" in said for said in content["sentences"])


def test_every_figure_stands_in_a_table_beside_the_page(run: Run) -> None:
    """As plain numbers, those that the chapter prints; of a run without blocks there is none."""
    analysis = analyse(run)
    found = dict(tables(analysis, Fitting(analysis)))
    loops = [
        one
        for one in found["block_projections"]
        if (one["around"], one["projection"]) == ("torch_sdpa", "loop")
    ]
    assert [(one["heads"], one["n"]) for one in loops] == [(4, 128), (4, 512), (12, 128), (12, 512)]
    for one in loops:
        workload = Workload(heads=one["heads"], queries=one["n"], keys=one["n"], d_model=768)
        truth = COSTS["torch_sdpa[projection=loop]"](workload) / COSTS["torch_sdpa"](workload)
        assert one["low"] <= truth <= one["high"] and one["low"] < one["over_fused"] < one["high"]
    many = [one for one in found["block_heads"] if one["contender"] == "torch_mha" and one["heads"] == 12]
    assert [one["n"] for one in many] == [128, 512]
    for one in many:
        few, wide = (Workload(heads=count, queries=one["n"], keys=one["n"], d_model=768) for count in (4, 12))
        truth = COSTS["torch_mha"](wide) / COSTS["torch_mha"](few)
        assert one["low"] <= truth <= one["high"]
    parts = [one for one in found["block_parts"] if one["contender"] == "torch_sdpa"]
    assert {one["part"] for one in parts} == set(SHARES)
    assert all(one["low"] <= SHARES[one["part"]] <= one["high"] for one in parts)


def test_a_family_is_a_contender_without_its_projection() -> None:
    """Wherever that stands among the settings."""
    assert blocks.family("a") == ("a", "fused")
    assert blocks.family("a[projection=loop]") == ("a", "loop")
    assert blocks.family("a[projection=loop,threads=1]") == ("a[threads=1]", "loop")
    assert blocks.family("a[threads=1,projection=packed]") == ("a[threads=1]", "packed")


def test_an_estimate_covers_its_mean_as_often_as_it_says() -> None:
    """Student's interval over processes: 95 %, within what 2000 draws tell."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        found = replication.estimate(list(rng.normal(3.0, 0.5, 5)))
        hits += found.low <= 3.0 <= found.high
    assert 0.935 < hits / 2000 < 0.965
    assert np.isnan(replication.estimate([1.0]).low)
    only_disturbed = Measurement("block_parts", "s", (2.0,), {"output_s": (1.0,), "waited": (0.5,)})
    assert replication.share(only_disturbed, "output_s", most_waited=0.02) is None
    with pytest.raises(ValueError, match="at least one process"):
        replication.estimate([])


def test_a_ratio_of_two_workloads_pairs_the_processes(made: Callable[..., Run]) -> None:
    """A process that is slow on both has the same ratio as a fast one; without a common process there is none."""

    def latency(seconds: list[float], numbers: list[int]) -> Measurement:
        columns: dict[str, Any] = {"round": range(len(seconds)), "process": numbers}
        plain = {name: tuple(map(float, one)) for name, one in columns.items()}
        return Measurement("latency", "s", tuple(seconds), plain)

    one, other = latency([1.0, 2.0, 4.0], [0, 1, 2]), latency([3.0, 6.0, 12.0], [0, 1, 2])
    found = replication.seconds(other, one)
    assert found is not None and (found.low, found.value, found.high) == pytest.approx((3.0, 3.0, 3.0))
    assert replication.seconds(latency([1.0], [7]), one) is None

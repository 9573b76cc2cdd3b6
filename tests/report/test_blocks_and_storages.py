"""Tables of blocks and of storages say what was made up: ratios, and shares of parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnlab.report.formats import content_of, render
from attnlab.runs.store import Run
from attnlab.workload.result import Measurement, Result
from attnlab.workload.vocabulary import STORAGES
from attnlab.workload.workload import Workload

Make = Callable[..., Run]
BLOCK = {"d_model": 768, "head_dim": None, "value_dim": None, "scale": None}
#: seconds: one projection a head costs 2 µs a head more, packing saves a tenth
COSTS: dict[str, Callable[[Workload], float]] = {
    "torch_sdpa": lambda w: 1e-4 + w.flops / 100e9,
    "torch_sdpa[projection=packed]": lambda w: 0.9 * (1e-4 + w.flops / 100e9),
    "torch_sdpa[threads=1,projection=loop]": lambda w: 3e-4,
    "torch_sdpa[projection=loop]": lambda w: 1e-4 + w.flops / 100e9 + 2e-6 * w.heads,
}
SHARES = {"projection": 0.5, "attention": 0.2, "output": 0.3}


def parted(result: Result) -> Result:
    """With the three parts measured in five processes, three times each; one round of each was disturbed."""
    if result.latency is None:
        return result
    rng, whole = np.random.default_rng(len(result.contender)), result.latency.median
    parts = {f"{name}_s": whole * part * rng.lognormal(0, 0.02, 15) for name, part in SHARES.items()}
    waited = np.arange(15) % 3 == 0
    parts["output_s"][waited] *= 100
    noted = {**parts, "process": np.arange(15) // 3, "waited": 0.5 * waited}
    columns = {name: tuple(map(float, one)) for name, one in noted.items()}
    samples = tuple(map(float, np.sum(list(parts.values()), axis=0)))
    measured = Measurement("block_parts", "s", samples, columns)
    return replace(result, measurements=(*result.measurements, measured))


def test_a_block_tells_what_projections_heads_and_parts_cost(made: Make) -> None:
    """As plain numbers, each within its interval, and the same in tables of the page; another run has none."""
    run = made(costs=COSTS, heads=(4, 12), lengths=(128, 512), variants=(BLOCK,))
    run.results = [parted(one) for one in run.results]
    content = content_of(run)
    found = dict(content.tables())

    def cost(name: str, row: dict[str, Any], heads: int) -> float:
        return COSTS[name](Workload(heads=heads, queries=row["n"], keys=row["n"], d_model=768))

    assert len(found["block_projections"]) == 8, "a contender with other settings is a family of its own"
    for row in found["block_projections"]:
        way = f"torch_sdpa[projection={row['projection']}]"
        truth = cost(way, row, row["heads"]) / cost("torch_sdpa", row, row["heads"])
        assert row["low"] <= truth <= row["high"] and row["low"] < row["over_fused"] < row["high"]
    for row in found["block_heads"]:
        truth = cost(row["contender"], row, 12) / cost(row["contender"], row, 4)
        if row["heads"] == 12:
            assert row["low"] < row["over_fewest_heads"] < row["high"]
            assert row["over_fewest_heads"] == pytest.approx(truth, rel=0.1)
    assert {row["part"] for row in found["block_parts"]} == set(SHARES)
    assert all(row["low"] <= SHARES[row["part"]] <= row["high"] for row in found["block_parts"])
    assert render(content, {}).count("## The multi-head block\n") == 1


#: times as long as contiguous keys to read
READING = {"contiguous": 1.0, "preallocated": 1.05, "grown": 3.0, "packed": 2.0, "paged": 2.5}


def test_storages_stand_beside_the_core_with_the_range_of_the_processes(made: Make) -> None:
    """The multiple is that of the medians; the range holds the true one."""

    def cost(one: Workload) -> float:
        return 1e-5 + 1e-6 * READING[one.storage] * one.keys * one.batch

    sizes: dict[str, Any] = {"lengths": (1024, 4096, 16384), "heads": (8,), "queries": 1}
    variants = tuple({"storage": one} for one in STORAGES)
    run = made(costs={"a": cost}, variants=variants, ceiling_flops=1e18, wander=0.0, **sizes)
    content = content_of(run)
    for row in dict(content.tables())["storages"]:
        workload = Workload(heads=8, queries=1, keys=row["n"])
        truth = cost(workload.with_(storage=row["storage"])) / cost(workload)
        assert row["least"] <= truth <= row["greatest"]
        assert row["over_contiguous"] == pytest.approx(truth, rel=0.05)
    assert render(content, {}).count("## Keys and values as they are stored\n") == 1

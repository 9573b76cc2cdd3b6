"""The chapter on how keys and values are stored: cost of a token, and each storage beside the core alone."""

from __future__ import annotations

import pytest

from attnlab.judge.growth import Fitting
from attnlab.problem.workload import Workload
from attnlab.report import storages
from attnlab.report.analysis import analyse
from attnlab.report.data_tables import tables
from attnlab.report.page import content_of, render
from attnlab.runs.plan import Plan

#: seconds of a decoding call: reading the keys, and what a storage does before it
READING = {"contiguous": 1.0, "preallocated": 1.05, "grown": 3.0, "packed": 2.0, "paged": 2.5}


def cost(workload: Workload) -> float:
    return 1e-5 + 1e-6 * READING[workload.storage] * workload.keys * workload.batch


LENGTHS = (1024, 4096, 16384)
DECODING = {
    "costs": {"a": cost},
    "lengths": LENGTHS,
    "heads": (8,),
    "queries": 1,
    "ceiling_flops": 1e18,
    "wander": 0.0,
}
ALL = tuple({"storage": one} for one in READING)


def test_a_token_costs_what_a_call_does_over_its_queries(made):
    """Of all batch elements together; and the slope is that of the model: 1 ms a thousand keys."""
    analysis = analyse(made(variants=({"batch": 4},), noise=0.0, **DECODING))
    (group,) = analysis.groups
    assert storages.decodes(group)
    table = storages.per_token(analysis, {"contiguous": group})
    assert "| `a`" in table and "1,000 keys more" in table
    row = [one.strip() for one in table.splitlines()[-1].split("|")][1:-1]
    assert row == ["`a`", "contiguous", "8", "1.03 ms", "4.10 ms", "16.4 ms", "1.00 ms"]


def test_storages_stand_beside_the_core_with_the_range_of_the_processes(made):
    """The multiple is that of the medians; the bracket holds the true one, and is wider with more noise."""
    widths = []
    for noise in (0.001, 0.05):
        run = made(variants=ALL, noise=noise, rounds=25, **DECODING)
        analysis = analyse(run)
        ((name, groups),) = storages.families(analysis)
        assert name == "" and list(groups) == list(READING)
        plain, grown = (groups[one].cells[8, 16384].measured["a"].latency for one in ("contiguous", "grown"))
        assert plain is not None and grown is not None
        low, high = storages.ratio_range(grown, plain) or (1.0, 1.0)
        true = cost(Workload(heads=8, keys=16384, storage="grown")) / cost(Workload(heads=8, keys=16384))
        assert low < true < high
        widths.append(high / low)
    assert widths[0] < widths[1]
    text = render(content_of(run), {})
    assert text.count("## Keys and values as they are stored") == 1
    assert "**What the form of keys and values costs.**" in text
    assert "**Cost of a token against the length of the cache.**" in text
    line = next(
        line for line in text.splitlines() if line.startswith("| `a`") and "16384" in line and "(" in line
    )
    assert line.count("(") == 4 and line.count(" to ") == 4


def test_one_process_has_no_range_and_scatter_no_slope(made):
    """What processes would do is not known from one; a cache that costs nothing is not said to cost some noise."""
    flat = {**DECODING, "costs": {"a": lambda workload: 0.05}, "variants": ALL[:2]}
    analysis = analyse(made(processes=1, noise=0.02, **flat))
    ((_, groups),) = storages.families(analysis)
    one, other = (group.cells[8, 1024].measured["a"].latency for group in groups.values())
    assert one is not None and other is not None and storages.ratio_range(one, other) is None
    analysis = analyse(made(noise=0.05, **flat))
    assert (
        storages.per_token(analysis, storages.families(analysis)[0][1]).count("no more than the scatter") == 2
    )


def test_every_figure_stands_in_a_table_beside_the_page(made):
    """Contiguous beside itself is 1; every other storage is what its model says, within the range."""
    analysis = analyse(made(variants=ALL, rounds=25, **DECODING))
    found = dict(tables(analysis, Fitting(analysis)))["storages"]
    assert len(found) == len(READING) * len(LENGTHS)
    for one in found:
        slow, plain = (
            cost(Workload(heads=8, keys=one["n"], storage=storage))
            for storage in (one["storage"], "contiguous")
        )
        assert one["median_s"] == one["seconds_per_token"] == pytest.approx(slow, rel=0.1)
        assert one["least"] <= one["over_contiguous"] <= one["greatest"]
        assert one["over_contiguous"] == pytest.approx(slow / plain, rel=0.1)
    without = analyse(made(costs={"a": cost}, lengths=(64, 128), heads=(4,), ceiling_flops=1e18))
    chapters = {"storages", "block_parts", "block_heads", "block_projections"}
    assert not chapters & set(dict(tables(without, Fitting(without))))


def test_without_several_storages_there_is_no_such_chapter(made):
    """And prefill is no decoding."""
    run = made(costs={"a": cost}, lengths=(64, 128), heads=(4,), ceiling_flops=1e18)
    assert storages.content(analyse(run)) == {"per_token": [], "beside": [], "more": "1,000"}
    text = render(content_of(run), {})
    assert "form of keys and values" not in text and "Cost of a token" not in text


def test_families_are_named_by_what_tells_them_apart(made):
    variants = tuple({**one, "dtype": dtype} for dtype in ("float32", "float16") for one in ALL[:2])
    found = storages.families(analyse(made(variants=variants, **DECODING)))
    assert [name for name, _ in found] == ["float32", "float16"]


def test_a_grid_of_storages_is_one_plan():
    """``--storage contiguous,paged``: every length of each, and one workload of one."""
    plan = Plan.grid(lengths=(64, 128), heads=(8,), queries=1, kv_heads=2, storage=("contiguous", "paged"))
    assert [one.storage for one in plan.workloads] == ["contiguous"] * 2 + ["paged"] * 2
    with pytest.raises(ValueError, match="storage must be one of contiguous, preallocated"):
        Plan.grid(storage=("strange",))

"""Blocks in worker processes: the projection asked for, the parts timed in every set, and what is refused."""

from __future__ import annotations

import pytest
from fake_workers import QUICK

from attnlab.backends.contender import parse_all
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import BLOCK_PARTS
from attnlab.workload.result import Outcome
from attnlab.workload.workload import Workload

SMALL = Workload(heads=4, queries=6, keys=6, d_model=16)


def test_blocks_race_and_their_parts_are_timed_in_every_process() -> None:
    """Three parts each, none of them free, and in two sets; a module in one piece says that it has none."""
    names = ["numpy_vectorized", "numpy_vectorized[projection=loop]", "torch_mha"]
    with Conductor(parse_all(names), limits=QUICK, memory=False) as conductor:
        found = {one.contender: one for one in conductor.race(SMALL)}
    for name in names[:2]:
        result = found[name]
        assert result.outcome is Outcome.MEASURED, result.reason
        parts = result.measurement(BLOCK_PARTS.quantity)
        assert parts is not None and set(parts.columns["process"]) == {0.0, 1.0}
        for index, sample in enumerate(parts.samples):
            three = [parts.columns[f"{part}_s"][index] for part in ("projection", "attention", "output")]
            assert min(three) > 0 and sample == pytest.approx(sum(three))
    whole = found["torch_mha"]
    assert whole.outcome is Outcome.MEASURED and whole.measurement(BLOCK_PARTS.quantity) is None
    assert whole.reason == "its block parts could not be measured: it computes the block in one piece"

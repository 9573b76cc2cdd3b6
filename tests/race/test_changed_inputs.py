"""Inputs that change before every turn: honest answers are the known ones, and what is kept from before is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every import every
from fake_workers import QUICK

from attnlab.backends.contender import Contender, parse_all
from attnlab.correctness import race_check
from attnlab.errors import Declined, Unavailable
from attnlab.race.conductor import Conductor
from attnlab.race.variation import posed, restored
from attnlab.race.worker import Worker
from attnlab.workload.inputs import PROJECTIONS
from attnlab.workload.result import Outcome
from attnlab.workload.vocabulary import DIRECTIONS, DTYPES, STORAGES
from attnlab.workload.workload import Workload

SMALL = Workload(batch=2, heads=4, kv_heads=2, queries=6, keys=9, head_dim=8)
#: without one that computes on NumPy's arrays too, and compiles for each
HONEST = [name for name in every() if name != "numba_fused"]
BLOCK = SMALL.with_(d_model=32)
ASKED = [
    *(SMALL.with_(dtype=dtype, direction=direction) for dtype in DTYPES for direction in DIRECTIONS),
    *(SMALL.with_(storage=one, layout=layout) for one in STORAGES for layout in ("bhsd", "bshd")),
    *(SMALL.with_(storage=one, key_lengths=(9, 4)) for one in ("packed", "paged")),
    *(SMALL.with_(bias=bias, direction="training") for bias in ("normal", "alibi")),
    SMALL.with_(sinks=True),
    SMALL.with_(softcap=2.0, causal="bottom_right", direction="training", layout="bshd"),
    SMALL.with_(window=(3, 1)),
    SMALL.with_(direction="backward", causal="top_left", kv_heads=4),
    # where heads have one order, other inputs are drawn
    SMALL.with_(heads=1, kv_heads=1, causal="top_left"),
    SMALL.with_(batch=1, heads=1, kv_heads=1, queries=1, storage="paged"),
    SMALL.with_(bias="alibi"),
    BLOCK,
    BLOCK.with_(rotary=True, dtype="bfloat16"),
    BLOCK.with_(kv_heads=4, keys=6, causal="top_left"),
]


class Raced:
    """One backend in this process, with one workload prepared and checked."""

    def __init__(self, name: str, projection: str | None = None) -> None:
        self.worker = Worker()
        self.worker.load(Contender(name, name, projection=projection), [])

    def prepare(self, workload: Workload) -> None:
        self.worker.prepare(workload)
        self.workload, self.rows = workload, race_check.sampled_rows(workload)
        told = self.worker.check(self.rows)
        self.known = told.get("timed", told["answers"][0])

    def turn(self, seed: int) -> Any:
        return self.worker.turn(self.rows, seed, iterations=1)

    def fault(self, answers: Any, seed: int) -> str | None:
        """What is wrong with the answers of a turn, if its inputs were changed by `seed`."""
        asked, found = posed(self.workload, seed), restored(answers, self.workload, seed)
        known = self.known if asked is self.workload else {}
        if known and all(np.array_equal(one, known[name]) for name, one in found.items()):
            return None
        computes_in = self.worker.backend.computes_in if self.worker.backend else None
        return race_check.strayed(asked, self.rows, found, known, computes_in)


@pytest.mark.parametrize(
    ("name", "projection"),
    [*((name, None) for name in HONEST), *(("torch_sdpa", one) for one in PROJECTIONS)],
)
def test_on_changed_inputs_an_honest_answer_is_the_known_one_and_one_that_was_kept_is_not(
    name: str, projection: str | None
) -> None:
    try:
        raced = Raced(name, projection)
    except Unavailable as missing:
        pytest.skip(str(missing))
    for workload in ASKED:
        try:
            raced.prepare(workload)
        except (Declined, Unavailable):
            continue
        before: Any = None
        for seed in (1, 2, 3):
            told = raced.turn(seed)
            if raced.worker.backend.block is not None:  # type: ignore[union-attr]
                assert told["seed"] is None
                break
            assert told["seed"] == seed, workload.label
            assert raced.fault(told["answers"][-1], seed) is None, workload.label
            if before is not None:
                assert raced.fault(before, seed), f"{workload.label}: an answer that was kept is taken"
            before = told["answers"][-1]


def test_gradients_of_many_rows_are_held_against_those_of_a_call_before() -> None:
    """Those of key and value have no truth then; those that are not finite, or of half the heads, are found."""
    raced = Raced("torch_sdpa")
    for dtype in ("float32", "bfloat16"):
        raced.prepare(
            SMALL.with_(queries=1500, keys=1500, causal="top_left", dtype=dtype, direction="backward")
        )
        assert len(raced.rows) < 1500
        for factor in (1.0, 0.0, np.nan, -1.0):
            for name in ("key gradient", "value gradient"):
                answers = raced.turn(1)["answers"][-1]
                answers[name][:, 1:] *= factor
                assert (raced.fault(answers, 1) is None) == (factor == 1), (dtype, name, factor)


KEEPING = '''"""Attention whose way back is computed a few times only."""
import torch

LIBRARY = "torch"
calls, kept = 0, {}


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, scale):
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return (query @ key.mT * scale).softmax(-1) @ value

    @staticmethod
    def backward(ctx, upstream):
        global calls
        calls += 1
        if calls <= 8 or upstream.shape not in kept:
            query, key, value = (one.detach().requires_grad_() for one in ctx.saved_tensors)
            with torch.enable_grad():
                output = (query @ key.mT * ctx.scale).softmax(-1) @ value
            kept[upstream.shape] = torch.autograd.grad(output, (query, key, value), upstream)
        return *(one.clone() for one in kept[upstream.shape]), None


def attend(query, key, value, *, scale):
    return Keeping.apply(query, key, value, scale)
'''


def test_gradients_that_were_kept_get_no_speed(tmp_path: Path) -> None:
    (tmp_path / "keeping.py").write_text(KEEPING)
    workload = Workload(heads=2, queries=64, keys=64, head_dim=16, direction="backward")
    with Conductor(parse_all(["keeping"]), folders=[tmp_path], limits=QUICK) as conductor:
        (result,) = conductor.race(workload)
    assert result.outcome is Outcome.WRONG, result.reason

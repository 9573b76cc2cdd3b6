"""Flags that a backend takes and silently drops, 20 of them: each is found, and none where nothing is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import written.any_mask_in_one_array as written
from torch import Tensor

from attnlab.backend.backend import Backend
from attnlab.backend.contender import Contender
from attnlab.gate.gate import Answers, examine
from attnlab.gate.questions import Question
from attnlab.problem.mask_kinds import Shape, Window
from attnlab.problem.masks import Mask, masked_by
from attnlab.problem.problem import Alibi
from attnlab.problem.workload import Workload
from attnlab.race.probe import Probe
from attnlab.race.worker_process import Refused, WorkerProcess

ENDS = {"": "top_left", "_bottom_right": "bottom_right"}
PLAIN = {"scale", "softcap", "sinks", "enable_gqa"}
FLAGS = {*(f"{name}{end}" for name in ("causal", "window") for end in ENDS), "key_lengths", "alibi_slopes"}
#: the keywords of three backends, which together take all; those of the cache are told apart by `tests/backend`
TAKEN = {
    "by flags": frozenset(PLAIN | FLAGS | {"mask", "bias"}),
    "in one array": frozenset(PLAIN | {"attn_mask"}),
    "by tiles": frozenset(PLAIN | {"visible", "bias"}),
}


def attend(query: Tensor, key: Tensor, value: Tensor, *, tiled: bool = False, **asked: Any) -> Tensor:
    """All of the contract, each part by its keyword; `tiled`: heads of the query share keys in a wrong order."""
    shape = Shape(*query.shape[:3], key.shape[2])
    flags = {name: asked.pop(name, None) for name in (*FLAGS, "visible", "attn_mask")}
    if tiled:
        key, value = (one.repeat(1, shape.heads // one.shape[1], 1, 1) for one in (key, value))
    if asked["scale"] is None:
        asked["scale"] = query.shape[3] ** -0.5
    if flags["attn_mask"] is not None:
        asked["mask" if flags["attn_mask"].dtype == torch.bool else "bias"] = flags["attn_mask"]
    if flags["alibi_slopes"]:
        asked["bias"] = torch.tensor(Alibi(flags["alibi_slopes"]).array(shape))
    told = masked_by(key_lengths=flags["key_lengths"])
    for end, alignment in ENDS.items():
        told &= masked_by(causal=alignment if flags[f"causal{end}"] else False)
        told &= Mask.of(Window.of(flags[f"window{end}"] or (-1, -1), alignment))
    seen = torch.tensor(told.array(shape))
    if flags["visible"] is not None:
        whole = [flags["visible"](*at, slice(None), slice(None)) for at in np.ndindex(shape[:2])]
        seen = seen & (True if whole[0] is None else torch.tensor(np.stack(whole)).view(*shape))
    if asked.get("mask") is not None:
        seen = seen & asked["mask"]
    return written.attend(query, key, value, **{**asked, "mask": seen})


def dropped(name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The keywords with one of them as if nobody had asked; of attn_mask one sort of it."""
    keyword, _, sort = name.partition(" of ")
    if keyword == "enable_gqa":
        return {**asked, "tiled": True}
    given = asked.get(keyword)
    if sort and (given is None or (given.dtype == torch.bool) is (sort == "numbers")):
        return asked
    return {**asked, keyword: None}


def found_in(taken: str, name: str | None, *, gradients_alone: bool = False) -> str | None:
    """What the gate finds in a backend that drops `name`, in output and gradients or in these alone."""

    def computed(query: Tensor, key: Tensor, value: Tensor, **asked: Any) -> Tensor:
        right = attend(query, key, value, **asked)
        if name is None:
            return right
        wrong = attend(query, key, value, **dropped(name, asked))
        return right.detach() + wrong - wrong.detach() if gradients_alone else wrong

    probe = Probe(Backend("mine", "torch", computed, options=TAKEN[taken], empty_rows="zeros"))

    def ask(question: Question) -> Answers:
        direction = "training" if question.backward else "forward"
        asked = Workload.of_problem(question.problem, direction=direction)
        return probe.answer(question.problem, asked, *question.layouts)

    return examine(ask, "float32").fault


@pytest.mark.parametrize("taken", TAKEN)
def test_what_drops_nothing_passes(taken: str) -> None:
    assert found_in(taken, None) is None


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        *(("by flags", name) for name in sorted(TAKEN["by flags"])),
        ("in one array", "attn_mask of booleans"),
        ("in one array", "attn_mask of numbers"),
        ("by tiles", "visible"),
    ],
)
def test_a_flag_that_is_dropped_is_found(taken: str, name: str) -> None:
    assert found_in(taken, name) is not None


@pytest.mark.parametrize("name", ["causal", "softcap", "mask"])
def test_a_flag_that_is_dropped_on_the_way_back_is_found(name: str) -> None:
    assert found_in("by flags", name, gradients_alone=True) is not None


#: what is right, and moves by less than its roundings from one call to the next
MOVING = """
import itertools
from attnlab.implementations.torch_eager import attend as right
LIBRARY = "torch"
calls = itertools.count()
def attend(query, key, value, *, causal, scale):
    output = right(query, key, value, causal=causal, scale=scale)
    moved = output * (1 + 2.0**-22 * (next(calls) % 2))
    return {returned}
"""


def checked(folder: Path, contender: str, workload: Workload) -> None:
    """Prepare and check in a process of its own, as before a race. Raises Refused."""
    process = WorkerProcess(Contender.parse(contender), [str(folder)])
    try:
        process.start()
        process.finish_start()
        process.ask("prepare", seconds=60.0, workload=workload)
        process.ask("check", seconds=60.0, rows=[0, 7])
    finally:
        process.end()


@pytest.mark.parametrize(
    ("direction", "returned"),
    [("forward", "moved"), ("training", "output.detach() + moved - moved.detach()")],
)
def test_determinism_that_is_asked_for_and_dropped_is_found(
    tmp_path: Path, direction: str, returned: str
) -> None:
    """And is nobody's fault where it was not asked for."""
    (tmp_path / "mine.py").write_text(MOVING.format(returned=returned), encoding="utf-8")
    workload = Workload(heads=2, queries=16, keys=16, head_dim=8, direction=direction)
    checked(tmp_path, "mine", workload)
    checked(tmp_path, "torch_sdpa[deterministic=1]", workload)
    with pytest.raises(
        Refused, match="other bits in a second call, and deterministic=1 asks for the same"
    ) as told:
        checked(tmp_path, "mine[deterministic=1]", workload)
    assert told.value.kind == "wrong"
    with pytest.raises(Refused, match="numpy has no deterministic mode; leave out deterministic=1"):
        checked(tmp_path, "numpy_vectorized[deterministic=1]", workload)

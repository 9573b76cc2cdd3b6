"""Flags that a backend takes and silently drops, 20 of them: each is found, and none where nothing is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import written.any_mask_in_one_array as written
from torch import Tensor

from attnlab.backends.backend import Backend
from attnlab.correctness.answering import Probe
from attnlab.correctness.check import Answers, examine
from attnlab.correctness.questions import BACKWARD, FORWARD, Question
from attnlab.workload.inputs import Alibi
from attnlab.workload.mask_kinds import Shape, Window
from attnlab.workload.masks import Mask, masked_by

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
    given = {"scale": query.shape[3] ** -0.5, **{name: one for name, one in asked.items() if one is not None}}
    shape = Shape(*query.shape[:3], key.shape[2])
    if tiled:
        key, value = (one.repeat(1, shape.heads // one.shape[1], 1, 1) for one in (key, value))
    if (both := given.pop("attn_mask", None)) is not None:
        given["mask" if both.dtype == torch.bool else "bias"] = both
    if "alibi_slopes" in given:
        given["bias"] = torch.tensor(Alibi(given.pop("alibi_slopes")).array(shape))
    told = masked_by(key_lengths=given.pop("key_lengths", None))
    for end, alignment in ENDS.items():
        told &= masked_by(causal=given.pop(f"causal{end}", False) and alignment)
        told &= Mask.of(Window.of(given.pop(f"window{end}", (-1, -1)), alignment))
    seen = torch.tensor(told.array(shape))
    if tile := given.pop("visible", None):
        whole = [tile(*at, slice(None), slice(None)) for at in np.ndindex(shape[:2])]
        seen = seen & (True if whole[0] is None else torch.tensor(np.stack(whole)).view(*shape))
    return written.attend(
        query, key, value, **{**given, "mask": seen & given.get("mask", torch.tensor(True))}
    )


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
    """What is found in a backend that drops `name`, in output and gradients or in these alone."""

    def computed(query: Tensor, key: Tensor, value: Tensor, **asked: Any) -> Tensor:
        right = attend(query, key, value, **asked)
        if name is None:
            return right
        wrong = attend(query, key, value, **dropped(name, asked))
        return right.detach() + wrong - wrong.detach() if gradients_alone else wrong

    probe = Probe(Backend("mine", "torch", computed, options=TAKEN[taken], empty_rows="zeros"))

    def ask(question: Question) -> Answers:
        return probe.answer(question.inputs, question.workload(), *question.layouts)

    kinds = (FORWARD, BACKWARD) if gradients_alone else (FORWARD,)
    return examine(ask, "float32", kinds=kinds, daily=True).fault


@pytest.mark.parametrize(
    ("taken", "name", "gradients_alone"),
    [
        *((taken, None, False) for taken in TAKEN),
        *(("by flags", name, False) for name in sorted(TAKEN["by flags"])),
        *(("in one array", f"attn_mask of {sort}", False) for sort in ("booleans", "numbers")),
        ("by tiles", "visible", False),
        *(("by flags", name, True) for name in ("causal", "softcap", "mask")),
    ],
)
def test_a_flag_that_is_dropped_is_found(taken: str, name: str | None, gradients_alone: bool) -> None:
    """And nothing is where none is."""
    assert (found_in(taken, name, gradients_alone=gradients_alone) is None) is (name is None)

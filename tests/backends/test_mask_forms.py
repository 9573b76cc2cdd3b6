"""A mask in another form gives the same answer; if a mask has no such form, it is declined with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every import here, judged

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import load
from attnlab.workload.workload import Workload

BASE = Workload(batch=2, heads=4, queries=24, keys=24, head_dim=8)
#: masks that hide no key of `BASE`
IDLE: list[dict[str, Any]] = [{}, {"key_lengths": (24, 24)}, {"window": (23, 23)}]
HIDING: list[dict[str, Any]] = [
    {"causal": "top_left"},
    {"causal": "bottom_right", "queries": 9, "window": (5, 0)},
    {"key_lengths": (24, 7)},
    {"key_lengths": (0, 24)},
    {"mask": "random(0.4)", "bias": "normal"},
    {"causal": "top_left", "d_model": 32},
]
NAMES = ["numpy_vectorized", "torch_sdpa", "onnxruntime"]


def told(form: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The mask keywords that are passed to a backend which takes all of them."""
    given: dict[str, Any] = {}
    options = frozenset({"causal", "window", "key_lengths", "mask"})
    mine = Backend("mine", "numpy", lambda *_, **asked: given.update(asked), options=options, mask_form=form)
    mine.bind(BASE.with_(**fields))()
    return {name: one for name, one in given.items() if one is not None and one is not False}


def test_the_form_is_what_the_backend_is_given() -> None:
    assert told(None, {"causal": "top_left"}) == {"causal": True} and told(None, {}) == {}
    for fields, seen in (({"causal": "top_left"}, np.tri(24)), ({}, np.ones((24, 24)))):
        (found,) = told("array", fields).values()
        assert found.dtype == bool and (np.broadcast_to(found, (1, 1, 24, 24)) == seen).all()
    assert [told("none", idle) for idle in IDLE] == [{}] * len(IDLE)


@pytest.mark.parametrize("fields", [*IDLE, *HIDING], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_mask_in_another_form_is_answered_within_the_budget(name: str, fields: dict[str, Any]) -> None:
    one, workload = here(name), BASE.with_(**fields)
    forms = ("array", "none") if fields in IDLE else ("array",)
    for changed in (replace(one, mask_form=form) for form in forms):
        if refusal := one.declines(workload) or changed.declines(workload):
            pytest.skip(refusal.reason)
        found = judged(changed, workload)
        assert found.passed, found.reason


def test_a_form_that_cannot_be_is_declined() -> None:
    none = replace(load("numpy_vectorized"), mask_form="none")
    for fields in HIDING:
        refusal = none.declines(BASE.with_(**fields))
        assert refusal is not None and refusal.field == "mask" and "hides keys" in refusal.reason
    assert none.declines(BASE) is None
    loop = replace(load("naive_loop"), mask_form="array")
    assert "takes no mask as an array; leave out mask=array" in str(loop.declines(BASE))

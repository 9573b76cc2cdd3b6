"""Every backend gives right answers to all published vectors of the ONNX operator Attention that it does not decline.

Answers are compared with attnlab's float64 reference and its error budget; the package's own tolerance is not used.
The reference itself is compared with the published outputs.

https://onnx.ai/onnx/operators/onnx__Attention.html; the cases are ``onnx/backend/test/case/node/attention.py`` of
the installed package. Each draws its inputs from NumPy's global generator, seeded with 0 as the package does it, and
computes its outputs with the package's own implementation of the operator. Further outputs of a case (present keys
and values, scores) are ignored.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from every import every
from numpy.typing import NDArray

from attnlab.backends.discovery import load
from attnlab.correctness.answering import Probe
from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import IMMATERIAL_ANYWHERE, weigh
from attnlab.errors import Declined, Unavailable
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import OPEN, Causal, Window
from attnlab.workload.masks import Mask
from attnlab.workload.workload import OUTPUT, Workload

pytest.importorskip(
    "onnx", reason="the vectors come with the package onnx; pip install 'attnlab[onnxruntime]'"
)


Array = NDArray[Any]
#: the operator's inputs, in its order
SLOTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
_CASES = "onnx.backend.test.case.node.attention"


class Vector(NamedTuple):
    """A published case: its problem, its expected output and its memory layout (see `Probe.answer`)."""

    name: str
    problem: Inputs
    output: Array  # (batch, heads, queries, value_dim)
    layout: str


@functools.cache
def vectors() -> tuple[Vector, ...]:
    """Every case, sorted by name. Raises ImportError if the package onnx is not installed."""
    return tuple(sorted((_vector(*one) for one in _published()), key=lambda vector: vector.name))


def _published() -> list[tuple[str, Any, list[Array], Array]]:
    """(name, node, inputs, first output) of every case."""
    found: list[tuple[str, Any, list[Array], Array]] = []

    def expect(node: Any, inputs: list[Array], outputs: list[Array], name: str, **rest: Any) -> None:
        found.append((name, node, inputs, outputs[0]))

    state = np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflows in the package's own NumPy code
            module = importlib.import_module(_CASES)
            theirs, module.expect = module.expect, expect  # type: ignore[attr-defined]
            try:
                for name in filter(lambda name: name.startswith("export"), vars(module.Attention)):
                    np.random.seed(0)
                    getattr(module.Attention, name)()
            finally:
                module.expect = theirs  # type: ignore[attr-defined]
    finally:
        np.random.set_state(state)
    return found


def _vector(name: str, node: Any, inputs: Sequence[Array], output: Array) -> Vector:
    helper = importlib.import_module("onnx").helper
    asked = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    given = dict(
        zip((slot for slot, used in zip(SLOTS, node.input, strict=False) if used), inputs, strict=True)
    )
    packed = given["Q"].ndim == 3
    if packed:
        for slot, heads in zip(SLOTS[:3], ("q_num_heads", "kv_num_heads", "kv_num_heads"), strict=True):
            given[slot] = _heads_outside(given[slot], asked[heads])
        output = _heads_outside(output, asked["q_num_heads"])
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        given["K"] = np.concatenate((given["past_key"], given["K"]), axis=2)
        given["V"] = np.concatenate((given["past_value"], given["V"]), axis=2)
    problem = Inputs.of(
        given["Q"],
        given["K"],
        given["V"],
        scale=asked.get("scale"),
        softcap=asked.get("softcap") or None,
        **_hidden(asked, given, past),
    )
    return Vector(name, problem, output, "heads inside" if packed else "contiguous")


def _heads_outside(array: Array, heads: int) -> Array:
    """(batch, length, heads · dim) as (batch, heads, length, dim)."""
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)


def _hidden(asked: dict[str, Any], given: dict[str, Array], past: int) -> dict[str, Any]:
    """Mask and bias of a case, as keywords of `Inputs.of`.

    The operator gives its first query the position `past`. If the keys of a cache are counted (nonpad_kv_seqlen), it
    is, for each batch element, the number of keys minus the number of queries. If attnlab has a name for the mask, the
    name is used, so that backends with a flag for it get the flag; else the mask is an array.
    """
    queries, keys = given["Q"].shape[2], given["K"].shape[2]
    lengths = given.get("nonpad_kv_seqlen")
    window = (asked.get("left_window_size", OPEN), asked.get("right_window_size", OPEN))
    band = bool(asked.get("is_causal")), window != (OPEN, OPEN)
    found: dict[str, Any] = {} if lengths is None else {"key_lengths": lengths.reshape(-1)}
    mask, masked = given.get("attn_mask"), Mask()
    if mask is not None:
        pads = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
        fill = False if mask.dtype == np.bool_ else -np.inf
        mask = np.pad(mask, pads, constant_values=fill)
        if mask.dtype == np.bool_:
            masked = Mask.of(mask)
        else:
            found["bias"] = mask
    own = np.array([past]) if lengths is None else lengths.reshape(-1) - queries
    if any(band) and len(set(own.tolist())) == 1 and int(own[0]) in (0, keys - queries):
        alignment = "top_left" if own[0] == 0 else "bottom_right"
        parts = (Causal(alignment), Window(*window, alignment))
        masked &= Mask(tuple(part for part, wanted in zip(parts, band, strict=True) if wanted))
    elif any(band):
        masked &= Mask.of(_seen(own, queries, keys, band[0], window))
    return {**found, "mask": masked}


def _seen(own: Array, queries: int, keys: int, causal: bool, window: tuple[int, int]) -> Array:
    """The operator's causal mask and window, with query 0 at the position `own`: (batch, 1, queries, keys)."""
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + own[:, None, None, None])
    seen = (ahead <= 0) | (not causal)
    for side, reach in zip(window, (-ahead, ahead), strict=True):
        seen &= (reach <= side) | (side < 0)
    return np.asarray(seen)


def fault(vector: Vector, answer: object) -> str | None:
    """What is wrong with an answer to the vector, or None."""
    found = weigh(
        expect(vector.problem)[OUTPUT],
        answer,  # type: ignore[arg-type]
        directions=None,
        immaterial=IMMATERIAL_ANYWHERE,
    )
    return found.reason and f"{vector.name}: {found.reason}"


def test_the_reference_means_what_the_operator_means() -> None:
    """For every vector, the published output differs from the reference by no more than rounding allows."""
    assert len(vectors()) >= 80
    assert [told for vector in vectors() if (told := fault(vector, vector.output))] == []


@pytest.mark.parametrize("name", every())
def test_every_vector_is_answered_rightly_or_declined(name: str) -> None:
    """A backend that changes its inputs fails too."""
    try:
        probe = Probe(load(name))
        probe.backend.open("cpu")
    except Unavailable as missing:
        pytest.skip(str(missing))
    answered, reasons, wrong = 0, Counter[str](), []
    for vector in vectors():
        try:
            found = probe.answer(vector.problem, Workload.of_inputs(vector.problem), vector.layout)[OUTPUT]
        except Declined as declined:
            reasons[declined.refusal.reason] += 1
            continue
        answered += 1
        told = fault(vector, found)
        wrong += [told] if told else []
    assert wrong == []
    if not answered:
        pytest.skip(f"it declines all {len(vectors())} vectors: {reasons.most_common(1)[0][0]}")

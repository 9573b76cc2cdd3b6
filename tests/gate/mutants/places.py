"""Faults of places: rows, heads, batches and components that are off; of the output, and of each gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.problem.problem import Problem

from .fault import BACKWARD, FORWARD, Change, Fault, back, each, given, then
from .parts import DK, DQ, DV, OUTPUT, Answers, Array

Shift = Callable[[Array], Array]


def everywhere(name: str, spoil: Shift, *names: str) -> tuple[Fault, ...]:
    """The same of the output, where it is named, and of gradients."""
    return tuple(
        Fault(f"{one}: {name}", each(spoil, one), FORWARD if one == OUTPUT else BACKWARD)
        for one in (names or (OUTPUT, DQ, DK, DV))
    )


def leaking(axis: int) -> Shift:
    """1 % of the neighbour on `axis`."""
    return lambda x: (x.astype(np.float64) * 0.99 + 0.01 * np.roll(x.astype(np.float64), 1, axis)).astype(
        x.dtype
    )


def unpermuted(x: Array) -> Array:
    """Heads lay beside positions and were only reshaped, not moved back."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)


def filled(where: Callable[[Array], Any], number: float) -> Shift:
    """`number` at the index where(answer), which may be empty."""

    def spoil(x: Array) -> Array:
        x = x.copy()
        x[where(x)] = number
        return x

    return spoil


def last_head_off(x: Array) -> Array:
    x = x.copy()
    x[:, -1] = (x[:, -1] * x.dtype.type(1.05)).astype(x.dtype)
    return x


def first_batch_only(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape).copy()


def neighbour(name: str, axis: int) -> Change:
    """One input of the neighbour on `axis`."""
    return lambda p: p.with_(**{name: np.roll(getattr(p, name), 1, axis)})


def narrowed(most: Callable[[int], int]) -> Change:
    """Query and key without the components from most(head_dim) on."""

    def change(problem: Problem) -> Problem:
        end = max(1, most(problem.query.shape[-1]))
        return problem.with_(query=problem.query[..., :end], key=problem.key[..., :end])

    return change


def first_keys(most: int) -> Change:
    def change(problem: Problem) -> Problem:
        if problem.mask or problem.bias is not None:
            return problem
        return problem.with_(key=problem.key[:, :, :most], value=problem.value[:, :, :most])

    return change


def swapped(found: Answers, problem: Problem) -> None:
    """dk and dv in each other's place, where their shapes agree."""
    if found[DK].shape == found[DV].shape:
        found[DK], found[DV] = found[DV], found[DK]


def output_off(found: Answers, problem: Problem) -> None:
    """The kernel that also saves ln Z is another than the one for inference, and wrong in its last row."""
    if problem.output_gradient is not None:
        one_row = found[OUTPUT].shape[2] == 1
        found[OUTPUT][:, :, -1] = found[OUTPUT][:, :, 0] * (1.05 if one_row else 1)


def unasked_shape(found: Answers, problem: Problem) -> None:
    """dk without the batch, where that is one."""
    if found[DK].shape[0] == 1:
        found[DK] = found[DK][0]


def wider(found: Answers, problem: Problem) -> None:
    found[DV] = found[DV].astype(np.float64)


FAULTS = (
    *everywhere("heads not permuted back", unpermuted, OUTPUT, DQ, DV),
    *everywhere("1 % of another batch", leaking(0), OUTPUT, DK),
    *everywhere("1 % of another head", leaking(1), OUTPUT, DQ),
    *everywhere("1 % of another row", leaking(2), OUTPUT, DV),
    *everywhere("NaN in the last row", filled(lambda x: np.s_[:, :, -1], np.nan), OUTPUT, DQ),
    *everywhere("zero from row 1024", filled(lambda x: np.s_[:, :, 1024:], 0.0), OUTPUT, DQ, DV),
    *everywhere("zero from row 4096", filled(lambda x: np.s_[:, :, 4096:], 0.0), OUTPUT),
    *everywhere("last head 5 % off", last_head_off, OUTPUT, DK),
    *everywhere("that of the first batch", first_batch_only, OUTPUT, DK),
    *everywhere(
        "rows after the last eight never written",
        filled(lambda x: np.s_[:, :, x.shape[2] // 8 * 8 or None :], 1e-3),
        OUTPUT,
        DQ,
    ),
    *everywhere(
        "components after the last eight never written",
        filled(lambda x: np.s_[..., x.shape[-1] // 8 * 8 or None :], 0.0),
        OUTPUT,
        DQ,
        DV,
    ),
    *everywhere("components above 128 never written", filled(lambda x: np.s_[..., 128:], 0.0), DK),
    Fault("keys of the first batch for all", given(lambda p: p.with_(key=first_batch_only(p.key)))),
    Fault("values one row off", given(lambda p: p.with_(value=np.roll(p.value, 1, axis=2)))),
    Fault("values of another head in A", back(given(neighbour("value", 1)), DQ, DK), BACKWARD),
    Fault("keys of another head in dq", back(given(neighbour("key", 1)), DQ), BACKWARD),
    Fault("output gradient of another head", back(given(neighbour("output_gradient", 1))), BACKWARD),
    Fault("output gradient of another batch", back(given(neighbour("output_gradient", 0))), BACKWARD),
    Fault(
        "output gradient assumed ones",
        back(given(lambda p: p.with_(output_gradient=np.ones_like(p.output_gradient)))),
        BACKWARD,
    ),
    Fault("keys after 4096 not seen", given(first_keys(4096))),
    Fault("head_dim above 128 cut", given(narrowed(lambda d: min(d, 128)))),
    Fault("odd head_dim cut", given(narrowed(lambda d: d // 2 * 2))),
    Fault("last component of q and k left out", given(narrowed(lambda d: d - 1))),
    Fault("dk and dv swapped", then(swapped), BACKWARD),
    Fault("output of the last row wrong, gradients right", then(output_off), BACKWARD),
    Fault("dk: another shape", then(unasked_shape), BACKWARD),
    Fault("dv: in float64", then(wider), BACKWARD),
)

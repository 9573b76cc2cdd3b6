"""Attention over parts of the keys, each with its ln Z, and how the parts are merged into the whole.

    z_s = ln Σ_{j in s} e^{s_j},   o_s = Σ_{j in s} e^{s_j − z_s} v_j
    z = ln Σ_s e^{z_s},            o = Σ_s e^{z_s − z} o_s

Milakov and Gimelshein 2018 (arXiv:1805.02867), section 3.1, for the sums; Dao et al. 2023, "Flash-Decoding for
long-context inference", for attention. A sink is a term of one part's sum. A part without keys, and one of which a
query sees nothing, has z_s = −inf and no weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.problem.mask_kinds import Given, KeyLengths
from attnlab.problem.mask_part import Part, Place
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload
from attnlab.problem.workload_checks import GIVEN

if TYPE_CHECKING:
    from attnlab.backends.library import Library


def places(keys: int, splits: int) -> list[int]:
    """Where `keys` are cut into so many parts of nearly one size: the ends of the parts, of all but the last."""
    return [at * keys // splits for at in range(1, splits)]


def parts(problem: Problem, cuts: Sequence[int]) -> Iterator[tuple[slice, Problem]]:
    """The keys between one cut and the next, and what `problem` asks of them; parts without keys are left out.

    cuts : ascending numbers from 0 to the keys.
    """
    keys, sinks = problem.shape.keys, problem.sinks
    for start, stop in zip((0, *cuts), (*cuts, keys), strict=True):
        if start == stop:
            continue
        at = slice(start, stop)
        bias = problem.bias_array
        yield (
            at,
            problem.with_(
                key=problem.key[:, :, at],
                value=problem.value[:, :, at],
                mask=_cut(problem, at),
                bias=bias if bias is None or bias.shape[-1] == 1 else bias[..., at],
                sinks=sinks,
            ),
        )
        sinks = None


def _cut(problem: Problem, at: slice) -> Mask:
    """The mask over these keys: lengths as lengths, whatever else hides one of them as an array."""
    lengths = [part for part in problem.mask.parts if isinstance(part, KeyLengths)]
    others = Mask(tuple(part for part in problem.mask.parts if not isinstance(part, KeyLengths)))
    shape = problem.shape
    seen = others.visible(Place(shape, np.arange(shape.queries), np.arange(shape.keys)[at]))
    told: list[Part] = [
        KeyLengths(tuple(min(max(length - at.start, 0), at.stop - at.start) for length in part.lengths))
        for part in lengths
    ]
    if seen is not None and not seen.all():
        told.append(
            Given(np.ascontiguousarray(np.broadcast_to(seen, (*seen.shape[:-1], at.stop - at.start))))
        )
    return Mask(tuple(told))


def hardest_part(workload: Workload) -> Workload:
    """What a backend must do for any part of `workload`: whatever is no plain length as an array."""
    asked = workload.masked.parts
    plain = workload.mask != GIVEN and (not asked or (len(asked) == 1 and isinstance(asked[0], KeyLengths)))
    return workload.with_(
        splits=1,
        causal=False,
        window=None,
        mask="" if plain else GIVEN,
        bias="none" if workload.bias == "none" else GIVEN,
    )


def merge(library: Library, found: Sequence[tuple[Any, Any]], dtype: str) -> tuple[Any, Any]:
    """(output, ln Z) of the whole from those of its parts, arrays of `library`; the output in `dtype`.

    Weights and sums are in the precision of ln Z, float32 at least.
    """
    outputs, log_sums = zip(*found, strict=True)
    of = library.namespace
    top = log_sums[0]
    for one in log_sums[1:]:
        top = of.maximum(top, one)
    shift = of.where(top == -np.inf, of.zeros_like(top), top)  # -inf minus -inf would be NaN
    weights = [of.exp(one - shift) for one in log_sums]
    total = sum(weights[1:], weights[0])
    empty = total == 0
    share = of.where(empty, of.ones_like(total), total)
    summed = sum(
        (
            (weight / share)[..., None] * output
            for weight, output in zip(weights[1:], outputs[1:], strict=True)
        ),
        (weights[0] / share)[..., None] * outputs[0],
    )
    log_sum = of.where(empty, top, shift + of.log(share))
    return library.cast(summed, dtype), log_sum

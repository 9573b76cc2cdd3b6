"""Do gradients vanish without 1/√d_k? In a tail of the rows, and not on average.

What reaches the logits is Jg, with J = diag p − ppᵀ the softmax Jacobian and g the gradient of the weights; for a g
of independent unit components E‖Jg‖² = ‖J‖_F². Its mean square is larger at the freezing point than at either end, so
that the average says the opposite of what is often claimed, while a share of frozen rows does receive nothing.
Measured through the backends in float64, and by automatic differentiation through those that have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from attnlab.contract.discovery import load
from attnlab.contract.errors import Declined
from attnlab.numerics.estimates import mean_row, statistic_over_clusters
from attnlab.numerics.finding import Row, Where
from attnlab.numerics.observables import Array, observe
from attnlab.numerics.responses import logit_gradients
from attnlab.numerics.survey import OpenBackend, Survey, agreement, generator
from attnlab.theory import attention_under_random_inputs, critical_beta, jacobian_norm_squared, random_energy

#: a row with a smaller Jacobian norm than this passes on next to nothing
SMALL = 1e-3
_HEAD_DIM, _KEYS, _SLOW_KEYS, _AUTOGRAD_KEYS = 64, 1024, 64, 192
_HEADS, _QUERIES, _SLOW_QUERIES, _AUTOGRAD_QUERIES = 32, 96, 8, 16
_SCALES: Mapping[str, float] = {"unscaled": 1.0, "scaled": _HEAD_DIM**-0.5}
#: rows of the random energy model drawn for what has no closed form
_REFERENCE_ROWS = 20_000
#: standard deviations of the logits, in units of β_c
SWEEP = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.8, 2.2, 3.0, 4.5)

STATISTICS: Mapping[str, Callable[[Array], float]] = {
    "median ‖J‖": lambda norms: float(np.median(norms)),
    "5 % quantile of ‖J‖": lambda norms: float(np.quantile(norms, 0.05)),
}
#: share of rows below these Jacobian norms, the third of them `SMALL`
THRESHOLDS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)


def measure(survey: Survey) -> None:
    """‖J‖_F of the rows through each backend: mean square, median, 5 % quantile, share below 1e-3.

    Predictions: the exact mean square; for the others rows drawn from the random energy model itself, their own
    sampling error included. Then the gradient of the logits through autograd, its mean square against the same theory.
    """
    survey.each(_through, partial(_autograd, folders=survey.folders))
    survey.one(_sweep)


def _through(one: OpenBackend, seed: int) -> Iterator[Row]:
    keys, queries = (_SLOW_KEYS, _SLOW_QUERIES) if one.slow else (_KEYS, _QUERIES)
    rng = generator(seed, keys)
    q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in (queries, keys))
    means = []
    for number, (scaling, scale) in enumerate(_SCALES.items()):
        squares = observe(one.attend, q, k, scale=scale).jacobian_norm_squared[0]
        where: Where = {"backend": one.name, "scaling": scaling, "keys": keys, "head_dim": _HEAD_DIM}
        expected = attention_under_random_inputs(keys, _HEAD_DIM, scale).jacobian_norm_squared
        means.append(mean_row("mean ‖J‖²", where, squares, predicted=expected, slack=1e-12))
        yield means[-1]
        reference = _reference(keys, scale, (seed, keys, 600 + number))
        for quantity, statistic in STATISTICS.items():
            yield _against(quantity, where, np.sqrt(squares), reference, statistic)
        for threshold in THRESHOLDS:
            yield _against(
                "share of rows below",
                {**where, "norm": threshold},
                np.sqrt(squares),
                reference,
                lambda norms, threshold=threshold: float(np.mean(norms < threshold)),  # type: ignore[misc]
                share=True,
            )
    unscaled, scaled = means
    ratio = math.sqrt(unscaled.measured / scaled.measured)
    yield Row.compare(
        "rms ‖J‖, unscaled over scaled",
        {"backend": one.name, "keys": keys, "head_dim": _HEAD_DIM},
        predicted=math.sqrt(unscaled.predicted / scaled.predicted),
        measured=ratio,
        standard_error=ratio * math.hypot(*(row.standard_error / row.measured for row in means)) / 2,
    )


def _against(
    quantity: str,
    where: Mapping[str, str | float],
    norms: Array,
    reference: Array,
    statistic: Callable[[Array], float],
    share: bool = False,
) -> Row:
    """A statistic of the measured norms against that of the reference rows, which has an error of its own.

    Where a `share` of rows is small, few were seen or none, and their spread says nothing of what might have been: the
    error is then that of the predicted share, and some four rows are too few to judge by.
    """
    measured, error = statistic_over_clusters(norms, statistic)
    predicted, own_error = statistic_over_clusters(reference, statistic)
    if share:
        error = max(error, float(np.sqrt(predicted * (1 - predicted) / norms.size)))
    return Row.compare(
        quantity,
        where,
        predicted=predicted,
        measured=measured,
        standard_error=float(np.hypot(error, own_error)),
        slack=4 / norms.size if share else 0.0,
    )


@lru_cache(maxsize=8)
def _reference(keys: int, scale: float, stream: tuple[int, ...]) -> Array:
    """‖J‖_F of rows of independent normal logits with the standard deviation scale·χ_d, in 100 groups."""
    rng = generator(*stream)
    norms = np.empty((100, _REFERENCE_ROWS // 100))
    for group in norms:
        beta = scale * np.sqrt(rng.chisquare(_HEAD_DIM, group.size))
        logits = beta[:, None] * rng.standard_normal((group.size, keys))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        group[:] = np.sqrt(jacobian_norm_squared(weights))
    return norms


def _autograd(one: OpenBackend, seed: int, folders: Sequence[Path | str]) -> Iterator[Row]:
    """Mean square gradient of a logit, for unit-variance random values and a unit gradient of the output."""
    rng = generator(seed, 700)
    shapes = (_AUTOGRAD_QUERIES, _AUTOGRAD_KEYS)
    q, k = (rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in shapes)
    # values of one dimension and an upstream gradient of 1: then g = v has independent unit components
    v, upstream = (
        rng.standard_normal((1, _HEADS, _AUTOGRAD_KEYS, 1)),
        np.ones((1, _HEADS, _AUTOGRAD_QUERIES, 1)),
    )
    for scaling, scale in _SCALES.items():
        try:
            gradients = logit_gradients(load(one.name, folders), q, k, v, upstream, scale=scale)
        except Declined:
            return  # no automatic differentiation: nothing to measure, and nothing wrong
        where: Where = {
            "backend": one.name,
            "scaling": scaling,
            "keys": _AUTOGRAD_KEYS,
            "head_dim": _HEAD_DIM,
        }
        expected = attention_under_random_inputs(_AUTOGRAD_KEYS, _HEAD_DIM, scale).jacobian_norm_squared
        squares = (gradients**2).sum(axis=-1)[0]
        yield mean_row("mean ‖dL/ds‖² by autograd", where, squares, predicted=expected)


def _sweep(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Mean ‖J‖² and the tail against the logits' standard deviation β, with queries of exactly the length √d."""
    for number, ratio in enumerate(SWEEP):
        beta = ratio * critical_beta(_KEYS)
        rng = generator(seed, 800, number)
        q, k = (rng.standard_normal((1, _HEADS, n, 8)) for n in (_QUERIES, _KEYS))
        q /= np.linalg.norm(q, axis=-1, keepdims=True)
        squares = observe(one.attend, q, k, scale=beta).jacobian_norm_squared[0]
        where: Where = {"backend": one.name, "keys": _KEYS, "beta / critical": ratio}
        expected = random_energy(_KEYS, beta).jacobian_norm_squared
        yield mean_row("mean ‖J‖² against β", where, squares, predicted=expected, slack=1e-12)


def conclusion(rows: Sequence[Row]) -> str:
    """The root mean square and the tail, with and without the scale."""

    def average(quantity: str, scaling: str, norm: float | None = None) -> float:
        wanted = (quantity, scaling, _KEYS, norm)
        found = [
            row.measured
            for row in rows
            if (row.quantity, *(row.where.get(key) for key in ("scaling", "keys", "norm"))) == wanted
        ]
        return float(np.mean(found)) if found else float("nan")

    rms = {scaling: average("mean ‖J‖²", scaling) ** 0.5 for scaling in _SCALES}
    if np.isnan(rms["unscaled"]):
        return f"No backend could be measured at n = {_KEYS}. {agreement(rows, 'the predictions')}."
    tail = {scaling: 100 * average("share of rows below", scaling, SMALL) for scaling in _SCALES}
    expected = next(
        row
        for row in rows
        if (row.quantity, *(row.where.get(key) for key in ("scaling", "keys", "norm")))
        == ("share of rows below", "unscaled", _KEYS, SMALL)
    )
    direction = "larger" if rms["unscaled"] > rms["scaled"] else "smaller"
    return (
        f"At n = {_KEYS}, d_k = {_HEAD_DIM} the unscaled Jacobian is {direction} on average than the "
        f"scaled one (rms {rms['unscaled']:.3f} against {rms['scaled']:.3f}), while {tail['unscaled']:.1f} ± "
        f"{100 * expected.standard_error:.1f} % of its rows (predicted: {100 * expected.predicted:.1f} %) lie below "
        f"{SMALL:g}, against {tail['scaled']:.1f} %. {agreement(rows, 'the predictions')}."
    )

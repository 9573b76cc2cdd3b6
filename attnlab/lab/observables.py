"""What each row of a softmax does, measured through any backend as a black box, without the n×n matrix.

A backend returns softmax(s) V and nothing else. So each quantity is measured by a choice of keys and values:

* *The largest logit*: at a scale 2^b times as large, all weight lies on the largest logit. With V = K the
  output is then the key of that logit (or the mean of the keys that tie), and scale·q·o is the logit. It is
  too low by at most ln(n)/2^b.
* *The partition function* Z = Σ_j e^{s_j}: one more key, the probe, competes with all others. Its logit t is
  chosen for each row, close to the row's largest logit, by one more dimension, in which every other key is 0.
  One column of V marks the probe and another marks all other keys, so that ln Z = t + ln(rest) − ln(probe).
  A zero key would do too, but its weight underflows if Z is large, and 1 − o cancels if Z is small. With the
  probe at the largest logit, the weights of the probe and of the rest differ by at most a factor of n.
* *The mean energy* ⟨s⟩: with V = K the output is Σ_j p_j k_j, and ⟨s⟩ = scale·q·o.
* *The powers of the weights*: Σ_j p_j^a = Z(a·scale)/Z(scale)^a, from calls at two and three times the scale.

This takes four calls of a backend, in its own number format, on arrays with at most nine dimensions more. Memory
is O(n) if the backend's memory is O(n). Under a causal mask the probe is the first key, and an idle query is put
before all queries, so that every row sees the same keys as before.

The functions below measure weights, logits, their variance, and the response to a changed logit in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import float_format, round_to
from attnlab.workload.workload import OUTPUT, Workload

Array = NDArray[np.float64]

#: head dimensions are rounded up to a multiple of this, which fused kernels need
_ALIGNMENT = 8


#: attend(q, k, v, **rest): softmax(scale · q kᵀ) v on arrays (batch, heads, length, dim), in the number format of `q`.
#: `rest` are keywords of `Inputs.of`: causal, scale, mask, ... It returns (batch, heads, n_q, value_dim)
Attend = Callable[..., NDArray[Any]]


def black_box(
    backend: str | Backend,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> Attend:
    """The backend `backend` as a function of NumPy arrays; the name may have settings of the backend's own.

    dtype : number format to compute in, by default that of the arrays; the arrays are rounded to it.
    folders : folders with more backends.

    Raises ValueError for an unknown name and Unavailable if its library is missing. The function raises Declined if
    the backend cannot do the call, and ValueError if shapes do not fit.
    """
    chosen = in_this_process(backend, folders) if isinstance(backend, str) else backend

    def attend(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], **rest: Any) -> NDArray[Any]:
        number_format = dtype or str(q.dtype)
        q, k, v = (round_to(array, number_format) for array in (q, k, v))
        inputs = Inputs.of(q, k, v, dtype=number_format, **rest)
        workload = Workload.of_inputs(inputs, device=device)
        return chosen.named(workload, chosen.bind(workload, inputs)())[OUTPUT]

    return attend


@dataclass(frozen=True)
class Observables:
    """One number per row; each array has the shape (batch, heads, n_q), in float64.

    log_partition : ln Z, the logarithm of the sum of the softmax.
    mean_energy : ⟨s⟩ = Σ p_j s_j, s_j = scale·q·k_j the logit.
    entropy : H = −Σ p ln p, in nats.
    participation : Σ p², the inverse of the effective number of keys.
    jacobian_norm_squared : ‖diag p − ppᵀ‖_F².
    largest_logit : max_j s_j, computed here for the key that the backend picked: it does not show a wrong scale.
    largest_weight : max_j p_j = exp(max s − ln Z).

    All have the rounding error of the number format in which they were measured. Let u be its unit roundoff, and S =
    scale·max‖q‖·max‖k‖ the largest possible logit. The *absolute* error of the first three and of the largest logit is
    about 16 u (1 + S), that of the participation and the squared Jacobian norm 64 u (1 + S). It is usually far smaller.
    So a small Jacobian norm differs visibly from 0 in float64 only, down to about 1e-6 at S = 100.
    """

    log_partition: Array
    mean_energy: Array
    entropy: Array
    participation: Array
    jacobian_norm_squared: Array
    largest_logit: Array
    largest_weight: Array


def observe(
    backend: str | Attend,
    q: NDArray[Any],
    k: NDArray[Any],
    *,
    scale: float,
    causal: bool = False,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> Observables:
    """Measure what each row of softmax(scale · q kᵀ) does, through `backend`.

    backend : a backend's name, or a function ``attend(q, k, v, *, causal, scale)`` of NumPy arrays.
    q : (batch, heads, n_q, head_dim).
    k : (batch, kv_heads, n_k, head_dim), kv_heads a divisor of heads.
    scale : factor on q·k, any finite number.
    causal : query i sees only the keys 0 to i.
    dtype : number format to measure in, by default that of the arrays (bfloat16 arrays come as float32).
    device, folders : the device of a named backend, and folders with more backends.

    Raises ValueError for arrays that do not fit, are empty or not finite, for fewer keys than queries under a causal
    mask, and if the backend's output is not finite or its weights are not positive; Declined or Unavailable if the
    backend cannot be used.
    """
    number_format = dtype or str(q.dtype)
    attend = backend if callable(backend) else black_box(backend, dtype=dtype, device=device, folders=folders)
    arrays = (round_to(array, number_format) if array.dtype.kind == "f" else array for array in (q, k, k))
    inputs = Inputs.of(*arrays, scale=scale, dtype=number_format)
    q, k, factor = inputs.query, inputs.key, inputs.scale
    for name, array in (("q", q), ("k", k)):
        _finite(name, array)
    queries, keys = q.shape[2], k.shape[2]
    if not isinstance(causal, bool):
        raise ValueError(f"causal must be True or False, got {causal!r}")
    if causal and keys < queries:
        raise ValueError(f"a causal row i sees keys 0 to i: {queries} queries need as many keys, got {keys}")
    seen = np.arange(1, queries + 1) if causal else np.full(queries, keys)
    # the smallest b at which ln(n)/2^b is below the rounding of the largest possible logit: 2^b·s then stays below
    # 2(1 + ln n)/u, inside the range of every format
    bound = abs(scale) * _longest(q) * _longest(k)
    room = (1 + math.log(keys)) / float_format(number_format).unit_roundoff
    colder = max(0, math.ceil(math.log2(room / bound))) if bound else 0
    winner = _finite("the output", attend(q, k, k, scale=factor * 2.0**colder, causal=causal))
    largest = factor * _row_dots(q, winner)
    probe, against_probe = _probe(attend, q, k, factor, largest, number_format, causal)
    excess, energy = against_probe(1)
    excess_2, excess_3 = (against_probe(times)[0] for times in (2, 3))
    # the limits below are exact: only rounding errors can exceed them
    square = np.clip(np.exp(excess_2 - 2 * excess), 1 / seen, 1.0)
    cube = np.exp(excess_3 - 3 * excess)
    return Observables(
        log_partition=probe + excess,
        mean_energy=probe + energy,
        entropy=np.clip(excess - energy, 0.0, np.log(seen)),
        participation=square,
        jacobian_norm_squared=np.maximum(square - 2 * cube + square**2, 0.0),
        largest_logit=largest,
        largest_weight=np.exp(np.minimum(largest - probe - excess, 0.0)),
    )


def _probe(
    attend: Attend, q: NDArray[Any], k: NDArray[Any], factor: float, largest: Array, dtype: str, causal: bool
) -> tuple[Array, Callable[[int], tuple[Array, Array]]]:
    """The probe's logit t of each row, the row's largest as closely as `dtype` allows; and a function of `times`.

    The function computes with the scale, and so t, multiplied by `times`. It returns ln Z − times·t, and ⟨s⟩ − t, the
    mean of the unmultiplied logits under these weights.
    """
    dim, keys = q.shape[-1], k.shape[2]
    wide = _ALIGNMENT * math.ceil((dim + 2) / _ALIGNMENT)
    # logit = scale · strength · length: if the length is like that of the keys, the strength is like the queries'
    length = 2.0 ** round(math.log2(_longest(k) or 1.0))
    strength = largest / (factor * length) if factor else np.zeros_like(largest)
    strength = _finite("the probe", round_to(strength, dtype))
    # under a causal mask an idle query is put before all others; it sees only the probe
    idle = int(causal)
    wide_q = np.zeros((*q.shape[:2], q.shape[2] + idle, wide), q.dtype)
    wide_q[..., idle:, :dim], wide_q[..., idle:, dim] = q, strength
    wide_k = np.zeros((*k.shape[:2], keys + 1, wide), k.dtype)
    wide_k[..., 1:, :dim], wide_k[..., 0, dim] = k, length
    # the probe's weight is between 1/(n+1) and 1/2: times a value of about √n it is far from subnormal numbers
    height = 2.0 ** round(math.log2(keys) / 2)
    flags = wide_k.copy()
    flags[..., 0, dim], flags[..., 1:, dim], flags[..., 0, dim + 1] = 0, 1, height
    probe = factor * length * strength.astype(np.float64)

    def against_probe(times: int) -> tuple[Array, Array]:
        answer = attend(wide_q, wide_k, flags, scale=factor * times, causal=causal)
        output = _finite("the output", answer)[..., idle:, :].astype(np.float64)
        rest, alone = output[..., dim], output[..., dim + 1]
        if not (rest.min() > 0 and alone.min() > 0):
            raise ValueError(
                "the probe or all other keys got no weight: the backend computes no softmax, or logits this large "
                f"are too coarse in {dtype} to tell a row's largest"
            )
        energy = factor * _row_dots(wide_q[..., idle:, :dim], output[..., :dim] / rest[..., None])
        return np.log(rest) - np.log(alone) + math.log(height), energy - probe

    return probe, against_probe


def _longest(rows: NDArray[Any]) -> float:
    """Euclidean length of the longest row, along the last axis."""
    return math.sqrt(float(_row_dots(rows, rows).max()))


def _row_dots(left: NDArray[Any], right: NDArray[Any]) -> Array:
    """Σ_c left_c right_c along the last axis, in float64."""
    dots: Array = np.einsum("bhic,bhic->bhi", left, right, dtype=np.float64)
    return dots


def _finite(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return array


def derivative(function: Callable[[float], Array], at: float, step: float) -> Array:
    """f'(at) by central differences of step h and h/2, combined to order h⁴ (Richardson 1911)."""

    wide, narrow = ((function(at + h) - function(at - h)) / (2 * h) for h in (step, step / 2))
    return (4 * narrow - wide) / 3


def weights_of(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float, **options: Any) -> Array:
    """All weights p_ij, (batch, heads, n_q, n_k): the output if the values are the identity matrix.

    q : (batch, heads, n_q, d). k : (batch, heads, n_k, d). Some kernels need the same last dimension for all arrays, so
    shorter ones are padded with zeros. `options` are passed to `attend`; the default is no causal mask.
    """
    n_k = k.shape[2]
    wide = max(q.shape[-1], n_k)
    unit = _padded(np.broadcast_to(np.eye(n_k, dtype=k.dtype), (*k.shape[:2], n_k, n_k)), wide)
    output = attend(_padded(q, wide), _padded(k, wide), unit, scale=scale, **{"causal": False, **options})
    return output[..., :n_k].astype(np.float64)


def read_logits(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """scale · q_i·k_j as `attend` computes it, (batch, heads, n_q, n_k), in float64.

    The weights of a row determine its logits up to a constant. So one key of zeros is added, whose logit is 0 at any
    scale: s_j = ln(p_j/p_0). The error is a few roundoffs if the logits of a row lie within 700 of each other in
    float64, or 80 in float32. Shapes as for `weights_of`; few keys of a large dimension cost least.

    Raises ValueError if a weight is not finite or underflows: its logit is then unknown.
    """
    weights = weights_of(attend, q, np.concatenate([k, np.zeros_like(k[:, :, :1])], axis=2), scale=scale)
    if not (np.isfinite(weights).all() and weights.min() > 0):
        raise ValueError(
            f"a weight is not finite or underflowed in {q.dtype}: these logits are too far apart to be read from it"
        )
    return np.log(weights[..., :-1]) - np.log(weights[..., -1:])


def energy_variance(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """Var_p(s) of each row, (batch, heads, n_q): the heat capacity b² d² ln Z/db² at b = 1.

    q : (batch, heads, n_q, d), k : (batch, heads, n_k, d). Each query has a column of V. In a first call it holds the
    query's logits, in a second call their squared distances from the mean that the first call gave. So a small variance
    is not the difference of large numbers. The columns take O(n_q·n_k) memory, so n_q should be small.
    """
    n_q = q.shape[2]
    wide = max(q.shape[-1], n_q)
    logits = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))

    def own_column(values: Array) -> Array:
        columns = _padded(values.swapaxes(-1, -2).astype(k.dtype), wide)
        output = attend(_padded(q, wide), _padded(k, wide), columns, causal=False, scale=scale)
        return np.diagonal(output[..., :n_q].astype(np.float64), axis1=-2, axis2=-1)

    mean = own_column(logits)
    return own_column((logits - mean[..., None]) ** 2)


def response_to_logit(
    attend: Attend, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], key: int, *, scale: float, step: float
) -> Array:
    """∂o/∂s_j for j = `key`, (batch, heads, n_q, value_dim): the logit of one key is raised and lowered.

    The change is made in one more dimension, in which every query is 1 and every other key is 0.
    """
    wide, value_dim = max(q.shape[-1] + 1, v.shape[-1]), v.shape[-1]
    q, k, v = (_padded(array, wide) for array in (q, k, v))
    q[..., -1] = 1

    def output(change: float) -> Array:
        moved = k.copy()
        moved[..., key, -1] = change / scale
        return attend(q, moved, v, causal=False, scale=scale)[..., :value_dim].astype(np.float64)

    return derivative(output, 0.0, step)


def _padded(array: NDArray[Any], width: int) -> NDArray[Any]:
    padded = np.zeros((*array.shape[:3], width), array.dtype)
    padded[..., : array.shape[-1]] = array
    return padded

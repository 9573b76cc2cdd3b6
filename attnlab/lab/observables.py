"""What every row of a softmax does, read from any backend as a black box, without the n×n matrix.

A backend gives back softmax(s) V and nothing else. So questions are asked through keys and values:

* *The largest logit*: at a scale 2^b times as large the weights sit on the largest logit alone. With V = K
  the output is then the winning key itself (or the mean of those that tie), and scale·q·o is its logit, from
  below and within ln(n)/2^b.
* *The partition function* Z = Σ_j e^{s_j}: one more key, the probe, competes with all others. Its logit t is
  chosen per row, through one more dimension that every other key has 0 in, and lies at the row's largest
  logit. One column of V flags the probe and another all the rest, so that ln Z = t + ln(rest) − ln(probe).
  A zero key would do too, but its weight underflows where Z is large and 1 − o cancels where Z is small; with
  the probe at the largest logit the two flags stay within a factor of n, whatever the logits are.
* *The mean energy* ⟨s⟩: V = K gives Σ_j p_j k_j, and ⟨s⟩ = scale·q·o.
* *The powers of the weights*: Σ_j p_j^a = Z(a·scale)/Z(scale)^a, from calls at two and three times the scale.

This takes four calls of a backend, in its own number format, on arrays with at most nine dimensions more. Memory
is O(n) where the backend's is. Under a causal mask the probe stands before all keys, and one idle query before all
queries moves every row along with it.

Other questions (weights, logits, the answer to a changed logit, gradients of logits) are put in the same way below.
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

#: head dimensions are kept a multiple of this, as fused kernels want them
_ALIGNMENT = 8


#: attend(q, k, v, **rest): softmax(scale · q kᵀ) v on arrays (batch, heads, length, dim), in the number format of `q`.
#: `rest` as for `Inputs.of`: causal, scale, mask, ... It returns (batch, heads, n_q, value_dim)
Attend = Callable[..., NDArray[Any]]


def black_box(
    backend: str | Backend,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> Attend:
    """The backend called `backend`, with its own settings where the name has them, as a function of NumPy arrays.

    dtype : number format to compute in, the arrays' own unless given; the arrays are rounded to it.
    folders : where to look for backends beside those that come with attnlab.

    Raises ValueError for an unknown name and Unavailable where its library is missing; the function raises
    Declined where the backend cannot do what it is asked, and ValueError where shapes do not fit.
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
    """One number a row, each of shape (batch, heads, n_q), in float64.

    log_partition : ln Z, the logarithm of the sum of the softmax.
    mean_energy : ⟨s⟩ = Σ p_j s_j, s_j = scale·q·k_j the logit.
    entropy : H = −Σ p ln p, in nats.
    participation : Σ p², the inverse of the number of keys that take part.
    jacobian_norm_squared : ‖diag p − ppᵀ‖_F².
    largest_logit : max_j s_j, computed here for the key that the backend picked: it sees no wrong scale.
    largest_weight : max_j p_j = exp(max s − ln Z).

    All carry the rounding of the number format they were measured in. With u its unit roundoff and S =
    scale·max‖q‖·max‖k‖ the largest logit there may be, the first three and the largest logit are good to
    about 16 u (1 + S), the participation and the squared Jacobian norm to 64 u (1 + S) *absolutely*, mostly far
    better. So a small Jacobian norm is told from 0 in float64 only, down to about 1e-6 at S = 100.
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
    """What each row of softmax(scale · q kᵀ) does, measured through `backend`.

    backend : a backend's name, or a function ``attend(q, k, v, *, causal, scale)`` of NumPy arrays.
    q : (batch, heads, n_q, head_dim).
    k : (batch, kv_heads, n_k, head_dim), kv_heads a divisor of heads.
    scale : factor on q·k, any finite number.
    causal : query i sees the keys 0 to i alone.
    dtype : number format to measure in, the arrays' own unless given (bfloat16 arrays come as float32).
    device, folders : where a named backend runs, and where it is looked for.

    Raises ValueError for arrays that do not fit, are empty or not finite, for fewer keys than queries under a causal
    mask, and where the backend's answer is not finite or its weights are not positive; Declined or Unavailable where
    the backend cannot be asked.
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
    # as cold as makes ln(n)/2^b a rounding of the largest logit there may be, and no colder: 2^b·s stays
    # below ln(n)/u, inside the range of every format
    bound = abs(scale) * _longest(q) * _longest(k)
    room = (1 + math.log(keys)) / float_format(number_format).unit_roundoff
    colder = max(0, math.ceil(math.log2(room / bound))) if bound else 0
    winner = _finite("the output", attend(q, k, k, scale=factor * 2.0**colder, causal=causal))
    largest = factor * _row_dots(q, winner)
    probe, against_probe = _probe(attend, q, k, factor, largest, number_format, causal)
    excess, energy = against_probe(1)
    excess_2, excess_3 = (against_probe(times)[0] for times in (2, 3))
    # the limits on the next three are exact, and only rounding can step over them
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
    """The probe's logit t of each row, which is the row's largest as far as it can be written; and a question.

    The question: with the scale, and with it t, so many times as large, ln Z − t; and ⟨s⟩ − t at the plain scale.
    """
    dim, keys = q.shape[-1], k.shape[2]
    wide = _ALIGNMENT * math.ceil((dim + 2) / _ALIGNMENT)
    # logit = scale · strength · length: a length like that of the keys asks for a strength like the queries'
    length = 2.0 ** round(math.log2(_longest(k) or 1.0))
    strength = largest / (factor * length) if factor else np.zeros_like(largest)
    strength = _finite("the probe", round_to(strength, dtype))
    # under a causal mask an idle query before all others sees the probe alone
    idle = int(causal)
    wide_q = np.zeros((*q.shape[:2], q.shape[2] + idle, wide), q.dtype)
    wide_q[..., idle:, :dim], wide_q[..., idle:, dim] = q, strength
    wide_k = np.zeros((*k.shape[:2], keys + 1, wide), k.dtype)
    wide_k[..., 1:, :dim], wide_k[..., 0, dim] = k, length
    # the probe's share is between 1/(n+1) and 1/2: a flag of about √n keeps it far from subnormal numbers
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
    """Every weight p_ij, (batch, heads, n_q, n_k): the output with the identity for values.

    q : (batch, heads, n_q, d). k : (batch, heads, n_k, d). Some kernels want one last dimension for all arrays, so
    that the shorter ones are filled up with zeros. `options` go to `attend`, no causal mask by default.
    """
    n_k = k.shape[2]
    wide = max(q.shape[-1], n_k)
    unit = _padded(np.broadcast_to(np.eye(n_k, dtype=k.dtype), (*k.shape[:2], n_k, n_k)), wide)
    output = attend(_padded(q, wide), _padded(k, wide), unit, scale=scale, **{"causal": False, **options})
    return output[..., :n_k].astype(np.float64)


def read_logits(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """scale · q_i·k_j as `attend` computes it, (batch, heads, n_q, n_k), in float64.

    Weights tell logits up to a constant of the row, so one key of zeros is added, whose logit is 0 whatever the scale:
    s_j = ln(p_j/p_0), good to a few roundoffs as long as a row's logits lie within 700 of each other in float64, or 80
    in float32. Shapes as for `weights_of`; short keys and long dimensions cost least.

    Raises ValueError where a weight underflows: then the logit it stands for cannot be known.
    """
    weights = weights_of(attend, q, np.concatenate([k, np.zeros_like(k[:, :, :1])], axis=2), scale=scale)
    if not (np.isfinite(weights).all() and weights.min() > 0):
        raise ValueError(
            f"a weight is not finite or underflowed in {q.dtype}: these logits are too far apart to be read from it"
        )
    return np.log(weights[..., :-1]) - np.log(weights[..., -1:])


def energy_variance(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """Var_p(s) of each row, (batch, heads, n_q): the heat capacity b² d² ln Z/db² at b = 1.

    q : (batch, heads, n_q, d), k : (batch, heads, n_k, d). Each query gets a column of V with its logits, then one
    with their squared distance from the mean just measured: a small number is not the difference of large ones.
    Memory is O(n_q·n_k) for those columns, so few queries are best.
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

    By one more dimension, in which every query is 1 and every other key 0.
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

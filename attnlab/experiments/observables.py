"""What every row of a softmax does, read from any backend as a black box, without the n×n matrix.

A backend gives back softmax(s) V and nothing else, so that the questions are put as keys and values:

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

So a backend needs four calls, in its own number format, on arrays with at most nine dimensions more. Memory
is O(n) where the backend's is. Under a top-left causal mask the probe stands before all keys, and one idle query
before all queries moves every row along with it; any other mask is given to the backend as an array in which every
query sees the probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.experiments.black_box import Attend, black_box
from attnlab.problem.dtypes import round_to
from attnlab.problem.mask_parts import Causal
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Problem
from attnlab.theory import unit_roundoff

Array = NDArray[np.float64]

#: head dimensions are kept a multiple of this, as fused kernels want them
_ALIGNMENT = 8


@dataclass(frozen=True)
class Observables:
    """One number a row, each of shape (batch, heads, n_q), in float64.

    log_partition : ln Z, the logarithm of the sum of the softmax.
    mean_energy : ⟨s⟩ = Σ p_j s_j, s_j = scale·q·k_j the logit.
    entropy : H = −Σ p ln p, in nats.
    participation : Σ p², the inverse of the number of keys that take part.
    jacobian_norm_squared : ‖diag p − ppᵀ‖_F².
    largest_logit : max_j s_j.

    All carry the rounding of the number format they were measured in. With u its unit roundoff and S =
    scale·max‖q‖·max‖k‖ the largest logit there may be, the first three and the last are good to about
    16 u (1 + S), the participation and the squared Jacobian norm to 64 u (1 + S) *absolutely*, mostly far
    better. So a small Jacobian norm is told from 0 in float64 only, down to about 1e-6 at S = 100.
    """

    log_partition: Array
    mean_energy: Array
    entropy: Array
    participation: Array
    jacobian_norm_squared: Array
    largest_logit: Array

    @property
    def largest_weight(self) -> Array:
        """max_j p_j = exp(max s − ln Z), (batch, heads, n_q)."""
        return np.exp(np.minimum(self.largest_logit - self.log_partition, 0.0))


def observe(
    backend: str | Attend,
    q: NDArray[Any],
    k: NDArray[Any],
    *,
    scale: float,
    causal: bool | str = False,
    mask: Mask | ArrayLike | str | None = None,
    window: Any = None,
    key_lengths: Any = None,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> Observables:
    """What each row of softmax(scale · q kᵀ) does, measured through `backend`.

    backend : a backend's name, or a function ``attend(q, k, v, *, causal, scale)`` of NumPy arrays; it must take
    ``mask``, a boolean array, where any other mask than a top-left causal one is asked for.
    q : (batch, heads, n_q, head_dim).
    k : (batch, kv_heads, n_k, head_dim), kv_heads a divisor of heads.
    scale : factor on q·k, any finite number.
    causal, mask, window, key_lengths : which keys a query sees, as in `attnlab.attend`; all of them intersect.
    dtype : number format to measure in, the arrays' own unless given (bfloat16 arrays come as float32).
    device, folders : where a named backend runs, and where it is looked for.

    Raises ValueError for arrays that do not fit, are empty or not finite, for a query that sees no key, for fewer keys
    than queries under a top-left causal mask, and where the backend's answer is not finite or its weights are not
    positive; Declined or Unavailable where the backend cannot be asked.
    """
    number_format = dtype or str(q.dtype)
    attend = backend if callable(backend) else black_box(backend, dtype=dtype, device=device, folders=folders)
    problem = Problem.of(
        *(round_to(array, number_format) if array.dtype.kind == "f" else array for array in (q, k, k)),
        causal=causal,
        mask=mask,
        window=window,
        key_lengths=key_lengths,
        scale=scale,
        dtype=number_format,
    )
    for name, array in (("q", problem.query), ("k", problem.key)):
        _finite(name, array)
    seen = _Seen.of(problem)
    longest_key = _longest(problem.key)
    largest = _largest_logit(attend, problem, seen, abs(scale) * _longest(problem.query) * longest_key)
    probe = _Probe.against(largest, problem, seen, longest_key)
    excess, energy = probe.measure(attend, 1)
    excess_2, excess_3 = (probe.measure(attend, times)[0] for times in (2, 3))
    # the limits on the next three are exact, and only rounding can step over them
    square = np.clip(np.exp(excess_2 - 2 * excess), 1 / seen.keys, 1.0)
    cube = np.exp(excess_3 - 3 * excess)
    return Observables(
        log_partition=probe.logit + excess,
        mean_energy=probe.logit + energy,
        entropy=np.clip(excess - energy, 0.0, np.log(seen.keys)),
        participation=square,
        jacobian_norm_squared=np.maximum(square - 2 * cube + square**2, 0.0),
        largest_logit=largest,
    )


@dataclass(frozen=True)
class _Seen:
    """Which keys each query sees: how many, broadcastable to (batch, heads, n_q), and what a backend is told.

    plain, probed : keywords of `attend`, without the probe and with it before all keys. idle : queries to be put
    before all others with it.
    """

    keys: NDArray[Any]
    plain: Mapping[str, Any]
    probed: Mapping[str, Any]
    idle: int = 0

    @classmethod
    def of(cls, problem: Problem) -> _Seen:
        """What `problem` says. Raises ValueError where a query sees no key."""
        _, _, queries, keys = problem.shape
        masked = problem.mask
        if masked in (Mask(), Mask((Causal("top_left"),))):
            causal = bool(masked)
            if causal and keys < queries:
                raise ValueError(
                    f"a causal row i sees keys 0 to i: {queries} queries need as many keys, got {keys}"
                )
            count = np.arange(1, queries + 1) if causal else np.full(queries, keys)
            return cls(count, {"causal": causal}, {"causal": causal}, int(causal))
        seen = masked.array(problem.shape)
        assert seen is not None, "a mask with parts hides something"
        empty = masked.empty_rows(problem.shape)
        if empty is not None:
            raise ValueError(
                f"every query must see a key, got {int(empty.sum())} that see none; leave them out of q"
            )
        seen = np.broadcast_to(seen, np.broadcast_shapes(seen.shape, (1, 1, queries, keys)))
        probed = np.concatenate([np.ones_like(seen[..., :1]), seen], axis=-1)
        return cls(seen.sum(axis=-1), {"causal": False, "mask": seen}, {"causal": False, "mask": probed})


def _largest_logit(attend: Attend, problem: Problem, seen: _Seen, bound: float) -> Array:
    """max_j s_j of each row, from below, within ln(n)/2^b plus the rounding of the backend's logits.

    No logit lies further from 0 than `bound`.
    """
    # as cold as makes ln(n)/2^b a rounding of the largest logit there may be, and no colder: 2^b·s stays
    # below ln(n)/u, inside the range of every format
    roundoff = unit_roundoff(problem.dtype)
    room = (1 + math.log(problem.shape.keys)) / roundoff
    colder = max(0, math.ceil(math.log2(room / bound))) if bound else 0
    q, k = problem.query, problem.key
    winner = _finite("the output", attend(q, k, k, scale=problem.scale * 2.0**colder, **seen.plain))
    return problem.scale * _row_dots(q, winner)


@dataclass(frozen=True)
class _Probe:
    """Queries and keys with the probe among them, the flags and keys as values, and each row's probe logit.

    `q`, `k` and `v` share one last dimension, because some fused kernels ask for that. In v column
    `column` holds 1 for every key but the probe, and the next one `height` for the probe alone.
    """

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    logit: Array
    height: float
    column: int
    problem: Problem
    seen: _Seen

    @classmethod
    def against(cls, logits: Array, problem: Problem, seen: _Seen, longest_key: float) -> _Probe:
        """A probe with logit `logits`, (batch, heads, n_q), rounded to the number format of queries and keys."""
        q, k = problem.query, problem.key
        dim, keys = q.shape[-1], k.shape[2]
        wide = _ALIGNMENT * math.ceil((dim + 2) / _ALIGNMENT)
        # logit = scale · strength · length: a length like that of the keys asks for a strength like the queries'
        length = 2.0 ** round(math.log2(longest_key or 1.0))
        strength = logits / (problem.scale * length) if problem.scale else np.zeros_like(logits)
        strength = _finite("the probe", round_to(strength, problem.dtype))
        # an idle query before all others sees the probe alone
        wide_q = np.zeros((*q.shape[:2], q.shape[2] + seen.idle, wide), q.dtype)
        wide_q[..., seen.idle :, :dim], wide_q[..., seen.idle :, dim] = q, strength
        wide_k = np.zeros((*k.shape[:2], keys + 1, wide), k.dtype)
        wide_k[..., 1:, :dim], wide_k[..., 0, dim] = k, length
        # the probe's share is between 1/(n+1) and 1/2: a flag of about √n keeps it far from subnormal numbers
        height = 2.0 ** round(math.log2(keys) / 2)
        v = wide_k.copy()
        v[..., 0, dim], v[..., 1:, dim], v[..., 0, dim + 1] = 0, 1, height
        exact = problem.scale * length * strength.astype(np.float64)
        return cls(wide_q, wide_k, v, exact, height, dim, problem, seen)

    def measure(self, attend: Attend, times: int) -> tuple[Array, Array]:
        """ln Z − t and ⟨s⟩ − t, with the scale and with it the probe's logit t `times` as large.

        ⟨s⟩ is in units of the logits at the plain scale, and so is the t taken off it.
        """
        problem, dim, idle = self.problem, self.column, self.seen.idle
        answer = attend(self.q, self.k, self.v, scale=problem.scale * times, **self.seen.probed)
        output = _finite("the output", answer)[..., idle:, :].astype(np.float64)
        rest, probe = output[..., dim], output[..., dim + 1]
        if not (rest.min() > 0 and probe.min() > 0):
            raise ValueError(
                "the probe or all other keys got no weight: the backend computes no softmax, or logits this large "
                f"are too coarse in {problem.dtype} to tell a row's largest"
            )
        excess = np.log(rest) - np.log(probe) + math.log(self.height)
        energy = problem.scale * _row_dots(self.q[..., idle:, :dim], output[..., :dim] / rest[..., None])
        return excess, energy - self.logit


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

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
is O(n) where the backend's is. Under a causal mask the probe stands before all keys, and one idle query
before all queries moves every row along with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.dtypes import round_to
from attnlab.contract.workload import Workload
from attnlab.numerics.black_box import Attend, black_box
from attnlab.theory import unit_roundoff

Array = NDArray[np.float64]

#: head dimensions are kept a multiple of this, as fused kernels want them
_ALIGNMENT = 8


@dataclass(frozen=True)
class Observables:
    """One number a row, each of shape (batch, heads, n_q), in float64.

    `log_partition`: ln Z. `mean_energy`: ⟨s⟩ = Σ p_j s_j, s_j = scale·q·k_j the logit. `entropy`: H =
    −Σ p ln p in nats. `participation`: Σ p², the inverse of the number of keys that take part.
    `jacobian_norm_squared`: ‖diag p − ppᵀ‖_F². `largest_logit`: max_j s_j.

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
    causal: bool = False,
    dtype: str | None = None,
    device: str = "cpu",
    folders: Sequence[Path | str] = (),
) -> Observables:
    """What each row of softmax(scale · q kᵀ) does, measured through `backend`.

    backend : a backend's name, or a function ``attend(q, k, v, *, causal, scale)`` of NumPy arrays.
    q : (batch, heads, n_q, head_dim). k : (batch, heads, n_k, head_dim).
    scale : factor on q·k, any finite number. causal : whether row i sees keys 0 to i only.
    dtype : number format to measure in, the arrays' own unless given (bfloat16 arrays come as float32).
    device, folders : where a named backend runs, and where it is looked for.

    Raises ValueError for arrays that do not fit, are empty or not finite, for a causal mask over fewer keys
    than queries, and where the backend's answer is not finite or its weights are not positive; Declined or
    Unavailable where the backend cannot be asked.
    """
    number_format = dtype or str(q.dtype)
    attend = backend if callable(backend) else black_box(backend, dtype=dtype, device=device, folders=folders)
    workload = Workload.of_arrays(q, k, k, causal=causal, scale=scale, dtype=number_format)
    if causal and workload.keys < workload.queries:
        raise ValueError(
            f"a causal row i sees keys 0 to i: {workload.queries} queries need as many keys, got {workload.keys}"
        )
    q, k = (_finite(name, round_to(array, number_format)) for name, array in (("q", q), ("k", k)))
    longest_key = _longest(k)
    largest = _largest_logit(attend, q, k, workload, abs(scale) * _longest(q) * longest_key)
    probe = _Probe.against(largest, q, k, workload, longest_key)
    excess, energy = probe.measure(attend, 1)
    excess_2, excess_3 = (probe.measure(attend, times)[0] for times in (2, 3))
    visible = np.arange(1, workload.queries + 1) if causal else np.full(workload.queries, workload.keys)
    # the limits on the next three are exact, and only rounding can step over them
    square = np.clip(np.exp(excess_2 - 2 * excess), 1 / visible, 1.0)
    cube = np.exp(excess_3 - 3 * excess)
    return Observables(
        log_partition=probe.logit + excess,
        mean_energy=probe.logit + energy,
        entropy=np.clip(excess - energy, 0.0, np.log(visible)),
        participation=square,
        jacobian_norm_squared=np.maximum(square - 2 * cube + square**2, 0.0),
        largest_logit=largest,
    )


def _largest_logit(
    attend: Attend, q: NDArray[Any], k: NDArray[Any], workload: Workload, bound: float
) -> Array:
    """max_j s_j of each row, from below, within ln(n)/2^b plus the rounding of the backend's logits.

    No logit lies further from 0 than `bound`.
    """
    # as cold as makes ln(n)/2^b a rounding of the largest logit there may be, and no colder: 2^b·s stays
    # below ln(n)/u, inside the range of every format
    roundoff = unit_roundoff(workload.dtype)
    colder = max(0, math.ceil(math.log2((1 + math.log(workload.keys)) / (roundoff * bound)))) if bound else 0
    winner = _finite(
        "the output", attend(q, k, k, causal=workload.causal, scale=workload.scale * 2.0**colder)
    )
    return workload.scale * _row_dots(q, winner)


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
    workload: Workload

    @classmethod
    def against(
        cls, logits: Array, q: NDArray[Any], k: NDArray[Any], workload: Workload, longest_key: float
    ) -> _Probe:
        """A probe with logit `logits`, (batch, heads, n_q), rounded to the number format of `q` and `k`."""
        dim = workload.head_dim
        wide = _ALIGNMENT * math.ceil((dim + 2) / _ALIGNMENT)
        # logit = scale · strength · length: a length like that of the keys asks for a strength like the queries'
        length = 2.0 ** round(math.log2(longest_key or 1.0))
        strength = logits / (workload.scale * length) if workload.scale else np.zeros_like(logits)
        strength = _finite("the probe", round_to(strength, workload.dtype))
        idle = 1 if workload.causal else 0  # one query before all others sees the probe alone
        batch, heads = q.shape[:2]
        wide_q = np.zeros((batch, heads, workload.queries + idle, wide), q.dtype)
        wide_q[..., idle:, :dim], wide_q[..., idle:, dim] = q, strength
        wide_k = np.zeros((batch, heads, workload.keys + 1, wide), k.dtype)
        wide_k[..., 1:, :dim], wide_k[..., 0, dim] = k, length
        # the probe's share is between 1/(n+1) and 1/2: a flag of about √n keeps it far from subnormal numbers
        height = 2.0 ** round(math.log2(workload.keys) / 2)
        v = wide_k.copy()
        v[..., 0, dim], v[..., 1:, dim], v[..., 0, dim + 1] = 0, 1, height
        exact = workload.scale * length * strength.astype(np.float64)
        return cls(wide_q, wide_k, v, exact, height, dim, workload)

    def measure(self, attend: Attend, times: int) -> tuple[Array, Array]:
        """ln Z − t and ⟨s⟩ − t, with the scale and with it the probe's logit t `times` as large.

        ⟨s⟩ is in units of the logits at the plain scale, and so is the t taken off it.
        """
        w, dim = self.workload, self.column
        output = attend(self.q, self.k, self.v, causal=w.causal, scale=w.scale * times)
        output = _finite("the output", output)[..., -w.queries :, :].astype(np.float64)
        rest, probe = output[..., dim], output[..., dim + 1]
        if not (rest.min() > 0 and probe.min() > 0):
            raise ValueError(
                "the probe or all other keys got no weight: the backend computes no softmax, or logits this large "
                f"are too coarse in {w.dtype} to tell a row's largest"
            )
        excess = np.log(rest) - np.log(probe) + math.log(self.height)
        energy = w.scale * _row_dots(self.q[..., -w.queries :, :dim], output[..., :dim] / rest[..., None])
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

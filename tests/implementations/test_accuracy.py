"""Every backend computes attention: against float64 on the inputs as cast, within a derived bound.

The bound is the worst case of rounding, per output component, to first order in the unit roundoff u of the
dtype and u_i of the sums inside (float32 for the half dtypes, else the dtype's own):

    |ô − o| ≤ range(v)·tanh(η/2) + (3u + (n_k + 14) u_i + ε)·Σ_j p_j|v_j| + u|o| + τ(1 + Σ_j|v_j|)

where η bounds what rounding does to a logit: (d + 8) u_i |scale| Σ|q||k| from the product and the scale,
3u|s| from storing scores (twice rounded, and a margin of one), 2u|s − max s| from the shift. |δ| ≤ η in
every logit moves the weights by at most tanh(η/2) in total variation. 3u is for weights stored, normalised
and multiplied in the dtype, n_k + 14 for the two sums, the rescaling and an exp of 4 ulp, ε = 2⁻²⁰ for the
fast exp that fused half-precision kernels use, and τ the smallest subnormal.

On a machine with CUDA the PyTorch backends are tested there too.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnlab.contract.backend import Backend, checked_output
from attnlab.contract.discovery import backends, load
from attnlab.contract.dtypes import DTYPES, round_to
from attnlab.contract.errors import Declined, Unavailable
from attnlab.contract.workload import Workload

Array = NDArray[Any]

ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

PLACES = [
    (name, device) for device in DEVICES for name in backends() if device == "cpu" or name.startswith("torch")
]


@pytest.fixture(params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> tuple[Backend, str]:
    """A backend and a device that it can be opened on."""
    name, device = request.param
    try:
        backend = load(name)
        backend.open(device)
    except Unavailable as missing:
        pytest.skip(str(missing))
    return backend, device


def drawn(workload: Workload) -> tuple[Array, Array, Array]:
    """Standard normal query, key and value of the workload's shapes, rounded to its dtype."""
    rng = np.random.default_rng(workload.seed)
    lead = (workload.batch, workload.heads)
    shapes = (
        (*lead, workload.queries, workload.head_dim),
        (*lead, workload.keys, workload.head_dim),
        (*lead, workload.keys, workload.value_dim),
    )
    query, key, value = (round_to(rng.standard_normal(shape), workload.dtype) for shape in shapes)
    return query, key, value


def exact(workload: Workload, query: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """(output, bound on its error) in float64; both (batch, heads, n_q, d_v)."""
    q, k, v = (array.astype(np.float64) for array in (query, key, value))
    scores = workload.scale * np.einsum("bhid,bhjd->bhij", q, k)
    sizes = abs(workload.scale) * np.einsum("bhid,bhjd->bhij", abs(q), abs(k))
    seen = np.ones(scores.shape[-2:], dtype=bool)
    if workload.causal:
        seen = np.arange(workload.keys)[None, :] <= np.arange(workload.queries)[:, None]
    masked = np.where(seen, scores, -np.inf)
    below = masked - masked.max(axis=-1, keepdims=True)
    weights = np.exp(below)
    weights /= weights.sum(axis=-1, keepdims=True)
    output = np.einsum("bhij,bhjc->bhic", weights, v)

    u, tau = ROUNDOFF[workload.dtype], SUBNORMAL[workload.dtype]
    inner = min(u, 2.0**-24)
    fast_exp = 2.0**-20 if workload.dtype in ("float16", "bfloat16") else 0.0
    moved = (workload.head_dim + 8) * inner * sizes + 3 * u * abs(scores)
    moved += 2 * u * np.where(seen, abs(below), 0) + tau
    eta = np.where(seen, moved, 0).max(axis=-1, keepdims=True)
    spread = np.ptp(v, axis=-2, keepdims=True)
    mixed = np.einsum("bhij,bhjc->bhic", weights, abs(v))
    bound = spread * np.tanh(eta / 2) + (3 * u + (workload.keys + 14) * inner + fast_exp) * mixed
    bound += u * abs(output) + tau * (1 + abs(v).sum(axis=-2, keepdims=True))
    return output, bound


def declined(backend: Backend, workload: Workload, arrays: tuple[Array, Array, Array]) -> bool:
    """Whether `backend` declines; if so, it gives its reason in one line and refuses to run.

    What each backend may decline is asserted elsewhere, word for word.
    """
    reason = backend.declines(workload)
    if not reason:
        return False
    assert "\n" not in reason
    with pytest.raises(Declined, match=re.escape(reason)):
        backend.bind(workload, *arrays)
    return True


def check(backend: Backend, workload: Workload, arrays: tuple[Array, Array, Array]) -> None:
    """`backend` meets the bound on these inputs, with the workload's dtype and shape, or declines."""
    if declined(backend, workload, arrays):
        return
    output = checked_output(backend, workload, backend.bind(workload, *arrays)())
    expected, bound = exact(workload, *arrays)
    assert np.isfinite(output).all()
    excess = (np.abs(output.astype(np.float64) - expected) / bound).max()
    assert excess <= 1, f"{backend.name} errs {excess:.3g} times the bound on {workload.label}"


SHAPES = {
    "square": {"queries": 48, "keys": 48},
    "fewer queries": {"queries": 17, "keys": 48},
    "fewer keys": {"queries": 48, "keys": 17},
    "one query": {"queries": 1, "keys": 33},
    "one key": {"queries": 33, "keys": 1},
    "one of each": {"queries": 1, "keys": 1},
    "head_dim 1": {"queries": 20, "keys": 20, "head_dim": 1},
    "value_dim below": {"queries": 20, "keys": 20, "value_dim": 5},
    "value_dim above": {"queries": 20, "keys": 20, "value_dim": 40},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_is_attention(place: tuple[Backend, str], shape: str, causal: bool, dtype: str) -> None:
    """Every shape, mask and dtype, also n_q != n_k (causal from the top left) and d_v != d_k."""
    backend, device = place
    sizes = {"batch": 2, "heads": 2, "head_dim": 16} | SHAPES[shape]
    workload = Workload(**sizes, causal=causal, dtype=dtype, device=device)
    check(backend, workload, drawn(workload))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("scale", [0.0, 1e-189, -1e-189, -0.25, -1.0, 0.3, 2.0])
def test_any_scale_is_obeyed(place: tuple[Backend, str], scale: float, causal: bool) -> None:
    """Zero gives the mean of what is seen; a negative scale prefers the unlike keys; none gives NaN."""
    backend, device = place
    dtype = "float16" if device == "cuda" else "float32"  # float16 is what every CUDA kernel has
    workload = Workload(
        heads=2, queries=24, keys=24, head_dim=16, scale=scale, causal=causal, device=device, dtype=dtype
    )
    check(backend, workload, drawn(workload))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the fixture holds no state, so that examples may share it
@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    head_dim=st.integers(1, 24),
    value_dim=st.none() | st.integers(1, 24),
    scale=st.none() | st.floats(-2, 2),
    causal=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 9),
)
def test_any_drawn_workload_is_attention_or_declined(place: tuple[Backend, str], **fields: Any) -> None:
    """No shape, scale, mask or dtype gives a wrong answer: it is right, or it is declined with a reason."""
    backend, device = place
    workload = Workload(**fields, device=device)
    check(backend, workload, drawn(workload))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("offset", [1200.0, -52000.0])
def test_rows_of_extreme_logits_stay_right(place: tuple[Backend, str], offset: float, causal: bool) -> None:
    """All logits near +1200 (an unshifted exp overflows) or -52000 (a bad first maximum gives zeros)."""
    backend, device = place
    workload = Workload(heads=2, queries=30, keys=30, head_dim=16, causal=causal, device=device)
    query, key, value = drawn(workload)
    # component 0 of every query and key carries the offset, the other components the spread
    query[..., 0] = np.sqrt(abs(offset) / workload.scale)
    key[..., 0] = np.sign(offset) * query[0, 0, 0, 0]
    check(backend, workload, (query, key, value))


def test_layout_of_the_inputs_does_not_matter(place: tuple[Backend, str]) -> None:
    """Inputs with their last axis strided, as a transposition leaves them, give the contiguous answer."""
    backend, device = place
    dtype = "float16" if device == "cuda" else "float32"
    workload = Workload(heads=2, queries=24, keys=24, head_dim=16, device=device, dtype=dtype)
    library, arrays = backend.open(device), drawn(workload)
    if declined(backend, workload, arrays):
        return
    strided = [
        library.from_numpy(np.ascontiguousarray(array.swapaxes(-1, -2)), dtype).swapaxes(-1, -2)
        for array in arrays
    ]
    output = library.to_numpy(backend.attend(*strided, causal=False, scale=workload.scale))
    expected, bound = exact(workload, *arrays)
    assert (np.abs(output.astype(np.float64) - expected) <= bound).all()


@pytest.mark.parametrize("keys", [1, 9])
def test_output_is_fresh_and_inputs_stay(place: tuple[Backend, str], keys: int) -> None:
    """Two calls return two arrays, neither of which is an input's memory, and leave the inputs alone."""
    backend, device = place
    dtype = "float16" if device == "cuda" else "float32"
    workload = Workload(heads=1, queries=keys, keys=keys, head_dim=8, scale=-1.0, device=device, dtype=dtype)
    library, arrays = backend.open(device), drawn(workload)
    if declined(backend, workload, arrays):
        return
    given_arrays = [library.from_numpy(array, dtype) for array in arrays]
    outputs = [backend.attend(*given_arrays, causal=True, scale=-1.0) for _ in range(2)]
    if device == "cpu":
        seen = [library.to_numpy(array) for array in (*given_arrays, *outputs)]
        for one, other in itertools.combinations(seen, 2):
            assert not np.shares_memory(one, other)
    for array, after in zip(arrays, given_arrays, strict=True):
        np.testing.assert_array_equal(array, library.to_numpy(after))


def test_the_bound_rejects_what_is_nearly_right() -> None:
    """A scale 0.1 % off, and a causal mask aligned at the other end, break the bound in float32."""
    right = Workload(heads=2, queries=24, keys=32, head_dim=16, causal=True)
    arrays = drawn(right)
    expected, bound = exact(right, *arrays)
    off, _ = exact(right.with_(scale=right.scale * 1.001), *arrays)
    assert (np.abs(off - expected) > bound).any()
    full, _ = exact(right.with_(causal=False), *arrays)
    assert (np.abs(full - expected) > bound).any()


@pytest.mark.parametrize("name", ["naive_loop", "numpy_vectorized", "numpy_blocked"])
def test_numpy_backends_decline_bfloat16(name: str) -> None:
    """NumPy has no such format, and says so."""
    backend = load(name)
    assert backend.declines(Workload(dtype="bfloat16")) == "NumPy has no bfloat16"

"""How noise reaches the gradients, against noise put in by hand; and the budget, against passes that round for real."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import Problem
from attnlab.theory import GRADIENT_CLASSES, gradient_budgets
from attnlab.theory.exact_attention import blocks
from attnlab.theory.exact_gradients import backward_rows
from attnlab.theory.gradient_noise import Ways

SCALE = 0.7
STEP = 1e-6


def one_head(seed: int, queries: int = 4, keys: int = 6, dim: int = 5, dim_v: int = 3):
    """q, k, v and g, each (1, 1, length, dim)."""
    rng = np.random.default_rng(seed)
    shapes = ((queries, dim), (keys, dim), (keys, dim_v), (queries, dim_v))
    return tuple(rng.standard_normal((1, 1, *shape)) for shape in shapes)


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": np.linspace(-1, 1, 6)},
    "soft cap": {"softcap": 1.5},
    "sinks": {"sinks": np.array([0.7])},
    "masked": {"mask": np.tri(4, 6, 1, dtype=bool)},
    "all": {"softcap": 2.0, "sinks": np.array([0.3]), "window": (2, 2), "bias": np.linspace(-1, 1, 6)},
}


def way_back(arrays, **features):
    """The block of one head."""
    q, k, v, g = arrays
    (part,) = blocks(Problem.of(q, k, v, scale=SCALE, **features))
    return backward_rows(part, g)


def passed(back, *, s=0.0, a=0.0, d=0.0, r=0.0, factor=0.0, weights=0.0):
    """dq, dk, dv of one head where noise is added at these places, by the definition; 0 for the key of a sink."""
    q, k, v = back.part.q, back.part.k, back.part.v
    scores = back.soft.scores + s
    if back.part.visible is not None:
        scores = np.where(back.part.visible, scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    products = back.g @ v.swapaxes(2, 3) + a
    offset = (p * products).sum(axis=-1, keepdims=True) + d
    p = p * (1 + factor)
    raw = p * (products - offset) * (1 if back.soft.slope is None else back.soft.slope) + r
    found = SCALE * raw @ k, SCALE * raw.swapaxes(2, 3) @ q, (p + weights).swapaxes(2, 3) @ back.g
    for of_keys in found[1:] if back.part.sink else ():
        of_keys[:, :, -1] = 0
    return found


PLACES = {
    "from_scores": ("s", "pairs"),
    "from_products": ("a", "pairs"),
    "from_raw_slopes": ("r", "pairs"),
    "from_weights": ("weights", "pairs"),
    "from_offsets": ("d", "rows"),
    "from_factors": ("factor", "rows"),
}


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", PLACES)
@given(seed=st.integers(0, 50))
@settings(max_examples=3)
def test_noise_spreads_as_derived(name, features, seed):
    """Each noise alone moves the gradients by its derivative; squares times variances add up to what is said."""
    back = way_back(one_head(seed), **FEATURES[features])
    place, kind = PLACES[name]
    shape = back.slopes.shape if kind == "pairs" else back.offset.shape
    variance = np.random.default_rng(seed).uniform(0.5, 2, size=shape)
    if kind == "pairs" and back.part.visible is not None:
        variance = variance * back.part.visible
    if name == "from_raw_slopes" and back.part.sink:
        variance[..., -1] = 0  # f' of a sink is 0
    sums = [0.0, 0.0, 0.0]
    for at in np.ndindex(shape):
        noise = np.zeros(shape)
        noise[at] = STEP
        above, below = passed(back, **{place: noise}), passed(back, **{place: -noise})
        for index in range(3):
            sums[index] = sums[index] + variance[at] * ((above[index] - below[index]) / (2 * STEP)) ** 2
    found = getattr(Ways(back), name)(variance)
    for said, counted in zip((found.query, found.key, found.value), sums, strict=True):
        np.testing.assert_allclose(said, np.broadcast_to(counted, said.shape), rtol=1e-6, atol=1e-9)


def test_scatter_counts_noises_that_point_one_way_together():
    """With keys all alike Σ_j ε_j k moves along k alone: the squared norm of a row has the scatter of one number."""
    q, k, v, g = one_head(3, keys=50)
    k[...] = k[:, :, :1]
    back = way_back((q, k, v, g))
    variance = np.ones_like(back.slopes)
    found = Ways(back).from_raw_slopes(variance)
    rng = np.random.default_rng(0)
    norms = [
        float(((SCALE * rng.standard_normal(variance.shape) @ back.part.k) ** 2).sum()) for _ in range(4000)
    ]
    assert found.scatters[0] == pytest.approx(np.var(norms), rel=0.15)
    assert found.query.sum() == pytest.approx(np.mean(norms), rel=0.1)


def draw(seed: int, dtype: str, heads=4, queries=70, keys=60, dim=16, dim_v=16):
    """As cast, several heads."""
    rng = np.random.default_rng(seed)
    shapes = ((queries, dim), (keys, dim), (keys, dim_v), (queries, dim_v))
    return tuple(round_to(rng.standard_normal((1, heads, *shape)), dtype) for shape in shapes)


def rounding_pass(q, k, v, g, *, dtype, fused=False, summed=False, stored=False):
    """A backward pass in float64, scale 0.3, that rounds to `dtype` where it is told, and its results always."""

    def keep(x, when=True):
        return round_to(x, dtype).astype(np.float64) if when else x

    q, k, v, g = (one.astype(np.float64) for one in (q, k, v, g))
    s = keep(keep(q @ k.swapaxes(2, 3), stored) * 0.3, stored)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    low = keep(p, fused or stored)
    a = keep(g @ v.swapaxes(2, 3), stored)
    if fused:
        offset = (g * keep(low @ v)).sum(axis=-1, keepdims=True)
    else:
        offset = 0.0
        for key in range(a.shape[3]):
            offset = keep(offset + (low * a)[..., key : key + 1], stored)
    t = keep((low if stored else p) * (a - offset), fused or stored)

    def over_queries(x, y):
        step = 32 if summed else x.shape[2]
        total = 0.0
        for start in range(0, x.shape[2], step):
            part = np.s_[:, :, start : start + step]
            total = keep(total + x[part].swapaxes(2, 3) @ y[part], summed)
        return total

    t = keep(t * 0.3, stored)
    return [keep(x) for x in (t @ k, over_queries(t, q), over_queries(low, g))]


def written_out_pass(q, k, v, g, *, dtype):
    """Backwards through s = 0.3 qkᵀ, m = max s, e = exp(s − m), l = Σe, p = e/l, o = pv, each step stored."""

    def keep(x):
        return round_to(x, dtype).astype(np.float64)

    q, k, v, g = (one.astype(np.float64) for one in (q, k, v, g))
    s = keep(keep(q @ k.swapaxes(2, 3)) * 0.3)
    top = s.max(axis=-1, keepdims=True)
    e = keep(np.exp(keep(s - top)))
    total = keep(e.sum(axis=-1, keepdims=True))
    p = keep(e / total)
    a = keep(g @ v.swapaxes(2, 3))
    of_total = -keep(keep(a * keep(p / total)).sum(axis=-1, keepdims=True))
    fall = keep(keep(keep(a / total) + of_total) * e)
    ties = s == top
    of_top = keep(-keep(fall.sum(axis=-1, keepdims=True)) / ties.sum(axis=-1, keepdims=True))
    t = keep(keep(fall + ties * of_top) * 0.3)
    return [keep(x) for x in (t @ k, t.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g)]


PASSES = {
    "full precision inside": {},
    "weights rounded": {"fused": True},
    "partial sums rounded": {"fused": True, "summed": True},
    "scores rounded": {"stored": True, "summed": True},
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", [*PASSES, "written out"])
def test_a_pass_that_rounds_has_the_error_of_its_budget(kind, dtype):
    """Between .5 (an upper model: chains of additions, every unfused form) and 1.2; and under the worst case.

    A softmax that is written out has its maximum differentiated too, so that what the slopes of a row are off comes to
    lie on one key: the loosest budget is for that.
    """
    for seed in range(3):
        arrays = draw(seed, dtype)
        budgets = gradient_budgets(*arrays, dtype=dtype, scale=0.3)
        sources = GRADIENT_CLASSES.get(kind, GRADIENT_CLASSES["scores rounded"])
        passed = (
            rounding_pass(*arrays, dtype=dtype, **PASSES[kind])
            if kind in PASSES
            else written_out_pass(*arrays, dtype=dtype)
        )
        for found, budget in zip(passed, budgets, strict=True):
            error = found - budget.output
            measured = np.linalg.norm(error) / np.linalg.norm(budget.output)
            assert 0.5 < measured / budget.restricted_to(*sources).relative < 1.2
            assert (np.abs(error) <= budget.worst_case).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_classes_nest(dtype):
    arrays = draw(0, dtype)
    for budget in gradient_budgets(*arrays, dtype=dtype, causal=True):
        sizes = [budget.restricted_to(*sources).relative for sources in GRADIENT_CLASSES.values()]
        assert sizes == sorted(sizes)
        assert sizes[-1] == budget.relative


def test_unseen_keys_are_exact_and_grouped_heads_add_up():
    q, k, v, g = draw(1, "bfloat16", queries=20, keys=30)
    budgets = gradient_budgets(q, k, v, g, dtype="bfloat16", causal=True)
    for budget in budgets[1:]:
        assert budget.worst_case is not None
        assert (budget.worst_case[:, :, 20:] == 0).all() and (budget.rms[:, :, 20:] == 0).all()
    grouped = gradient_budgets(q, k[:, :2], v[:, :2], g, dtype="bfloat16")
    apart = gradient_budgets(q, k[:, :2].repeat(2, axis=1), v[:, :2].repeat(2, axis=1), g, dtype="bfloat16")
    summed = apart.key.output.reshape(1, 2, 2, *k.shape[2:]).sum(axis=2)
    np.testing.assert_allclose(grouped.key.output, summed, atol=1e-12)
    assert grouped.value.output.shape == (1, 2, *v.shape[2:])


@given(
    seed=st.integers(0, 99),
    std=st.sampled_from([0.1, 1.0, 8.0, 40.0]),
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
)
@settings(max_examples=30)
def test_the_worst_case_is_never_passed(seed, std, queries, keys):
    """Also where the first order is of no use: saturated rows, large scores, one key, one query."""
    q, k, v, g = draw(seed, "bfloat16", heads=1, queries=queries, keys=keys)
    arrays = (round_to(std * q, "bfloat16"), k, v, g)
    budgets = gradient_budgets(*arrays, dtype="bfloat16", scale=0.3)
    for options in PASSES.values():
        for found, budget in zip(rounding_pass(*arrays, dtype="bfloat16", **options), budgets, strict=True):
            assert (np.abs(found - budget.output) <= budget.worst_case).all()


def test_a_format_that_is_none_is_refused():
    with pytest.raises(ValueError, match="dtype must be one of"):
        gradient_budgets(*draw(0, "float32"), dtype="float8")

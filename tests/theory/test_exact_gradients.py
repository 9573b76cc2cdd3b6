"""The exact gradients against automatic differentiation, and what must hold of them by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab.theory import exact_gradients


def draw(seed: int, heads=2, key_heads=2, queries=7, keys=9, dim=5, dim_v=3):
    """q, k, v and the output's gradient."""
    rng = np.random.default_rng(seed)
    rows, columns = (1, heads, queries), (1, key_heads, keys)
    shapes = ((*rows, dim), (*columns, dim), (*columns, dim_v), (*rows, dim_v))
    return tuple(rng.standard_normal(shape) for shape in shapes)


def by_autograd(q, k, v, g, *, causal: bool, scale: float):
    """The same by PyTorch in float64; k and v are repeated for grouped heads."""
    leaves = [torch.tensor(one).requires_grad_() for one in (q, k, v)]
    query, *rest = leaves
    key, value = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in rest)
    s = query @ key.transpose(-1, -2) * scale
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    found = torch.autograd.grad(torch.softmax(s, -1) @ value, leaves, torch.tensor(g))
    return [one.numpy() for one in found]


@given(
    seed=st.integers(0, 99),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    group=st.integers(1, 3),
    causal=st.booleans(),
    scale=st.sampled_from([-0.5, 0.0, 0.3, 2.0]),
)
def test_they_are_those_of_automatic_differentiation(seed, queries, keys, group, causal, scale):
    arrays = draw(seed, heads=2 * group, queries=queries, keys=keys)
    found = exact_gradients(*arrays, causal=causal, scale=scale)
    for mine, theirs in zip(found, by_autograd(*arrays, causal=causal, scale=scale), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


@given(seed=st.integers(0, 99), causal=st.booleans())
def test_weights_that_sum_to_one_hand_the_whole_gradient_on(seed, causal):
    """Σ_j ∂L/∂v_j = Σ_i g_i; a vector added to all keys changes nothing: Σ_j ∂L/∂k_j = 0; scores are bilinear."""
    q, k, v, g = draw(seed)
    query, key, value = exact_gradients(q, k, v, g, causal=causal)
    np.testing.assert_allclose(value.sum(axis=2), g.sum(axis=2), atol=1e-12)
    np.testing.assert_allclose(key.sum(axis=2), 0, atol=1e-12)
    np.testing.assert_allclose((q * query).sum(axis=(2, 3)), (k * key).sum(axis=(2, 3)), atol=1e-12)


def test_a_key_that_no_query_sees_has_none():
    q, k, v, g = draw(0, queries=4, keys=9)
    _, key, value = exact_gradients(q, k, v, g, causal=True)
    assert (key[:, :, 4:] == 0).all() and (value[:, :, 4:] == 0).all()
    assert (key[:, :, :4] != 0).all()


def test_what_does_not_fit_is_refused():
    q, k, v, g = draw(0)
    with pytest.raises(ValueError, match=r"output_gradient must have the output's shape \(1, 2, 7, 3\)"):
        exact_gradients(q, k, v, g[:, :, :5])
    with pytest.raises(ValueError, match="output_gradient must be finite"):
        exact_gradients(q, k, v, np.full_like(g, np.nan))
    with pytest.raises(ValueError, match="key and value must have the same length"):
        exact_gradients(q, k[:, :, 1:], v, g)

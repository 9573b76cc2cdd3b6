"""Gradients by `attnlab.gradients`, and the errors for a library without them or a broken backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnlab
from attnlab.backends.backend import Backend
from attnlab.correctness.expected import expect
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import GRADIENTS, Workload

RNG = np.random.default_rng(0)
Q, K, V, G = (
    RNG.standard_normal((1, 2, n, d)).astype(np.float32) for n, d in ((6, 4), (7, 4), (7, 3), (6, 3))
)


def written(folder: Path, body: str) -> list[Path]:
    """Write a torch backend `mine` with this body; returns its folder in a list."""
    source = "import torch\nLIBRARY = 'torch'\ndef attend(query, key, value, *, causal, scale):\n    " + body
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return [folder]


@pytest.mark.parametrize("name", ["torch_eager", "torch_sdpa", "torch_sdpa_math"])
@pytest.mark.parametrize("causal", [False, True])
def test_they_are_the_exact_ones(name: str, causal: bool) -> None:
    found = attnlab.gradients(name, Q, K, V, G, causal=causal, scale=0.7)
    exact = expect(Inputs.of(Q, K, V, output_gradient=G, causal=causal, scale=0.7))
    for mine, name in zip(found, GRADIENTS, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, exact[name].output, atol=1e-5)


def test_bfloat16_comes_and_goes_in_float32() -> None:
    query, key, value = attnlab.gradients("torch_eager", Q, K, V, G, dtype="bfloat16")
    assert (query.shape, key.shape, value.shape) == (Q.shape, K.shape, V.shape)
    assert query.dtype == np.float32 and (query.view(np.uint32) & 0xFFFF == 0).all()


def test_what_has_no_gradients_is_told() -> None:
    with pytest.raises(attnlab.Declined, match="NumPy has no automatic differentiation"):
        attnlab.gradients("numpy_vectorized", Q, K, V, G)
    with pytest.raises(ValueError, match=r"output_gradient must have shape \(1, 2, 6, 3\)"):
        attnlab.gradients("torch_eager", Q, K, V, V)


FORWARD = """return Forward.apply(query, key, value)

class Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return torch.softmax(q @ k.transpose(2, 3), -1) @ v
"""
RAISING = "raise NotImplementedError('no way back here')"


@pytest.mark.parametrize(
    ("body", "raised", "message"),
    [
        ("return (query @ key.mT @ value).detach()", attnlab.Declined, "cut off from automatic"),
        ("return (query @ key.detach().mT).softmax(-1) @ value", ValueError, "no key gradient arrived"),
        (FORWARD, attnlab.Declined, "PyTorch says: You must implement"),
        (RAISING, attnlab.Declined, "no way back here"),
    ],
    ids=["cut off", "an array alone", "no backward pass", "refused before"],
)
def test_a_backend_without_a_way_back_says_so(tmp_path, body, raised, message) -> None:
    with pytest.raises(raised, match=message):
        attnlab.gradients("mine", Q, K, V, G, folders=written(tmp_path, body + "\n"))


def test_gradients_of_a_row_that_an_array_hides_are_declined() -> None:
    """A caller's mask is checked when the call is bound. A mask that hides nothing is accepted."""

    def attend(query: Any, key: Any, value: Any, *, causal: bool, scale: float, mask: Any = None) -> Any:
        return (query @ key.mT * scale).masked_fill(~mask, -np.inf).softmax(-1) @ value

    backend = Backend("mine", "torch", attend, options=frozenset({"causal", "scale", "mask"}))
    seen = np.arange(6)[:, None] != np.full(7, 1)
    whole, hidden = (Inputs.of(Q, K, V, mask=one, output_gradient=G) for one in (seen | True, seen))
    workload = Workload.of_inputs(whole, direction="training")
    assert all(one.isfinite().all() for one in backend.bind(workload, whole)())
    with pytest.raises(attnlab.Declined, match="a query sees no key"):
        backend.bind(workload, hidden)

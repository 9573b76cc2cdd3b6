"""Gradients through a backend: `attnlab.gradients`, and what a library without them, or a broken backend, says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnlab
from attnlab.theory import exact_gradients

RNG = np.random.default_rng(0)
Q, K, V, G = (
    RNG.standard_normal((1, 2, n, d)).astype(np.float32) for n, d in ((6, 4), (7, 4), (7, 3), (6, 3))
)


def written(folder: Path, body: str) -> list[Path]:
    """A torch backend `mine` of this body, in a folder."""
    source = "import torch\nLIBRARY = 'torch'\ndef attend(query, key, value, *, causal, scale):\n    " + body
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return [folder]


@pytest.mark.parametrize("name", ["torch_eager", "torch_sdpa", "torch_sdpa_math"])
@pytest.mark.parametrize("causal", [False, True])
def test_they_are_the_exact_ones(name: str, causal: bool) -> None:
    found = attnlab.gradients(name, Q, K, V, G, causal=causal, scale=0.7)
    for mine, exact in zip(found, exact_gradients(Q, K, V, G, causal=causal, scale=0.7), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, exact, atol=1e-5)


def test_bfloat16_comes_and_goes_in_float32() -> None:
    query, key, value = attnlab.gradients("torch_eager", Q, K, V, G, dtype="bfloat16")
    assert (query.shape, key.shape, value.shape) == (Q.shape, K.shape, V.shape)
    assert query.dtype == np.float32 and (query.view(np.uint32) & 0xFFFF == 0).all()


def test_numpy_has_none() -> None:
    with pytest.raises(attnlab.Declined, match="NumPy has no automatic differentiation"):
        attnlab.gradients("numpy_vectorized", Q, K, V, G)


def test_an_upstream_that_does_not_fit_is_refused_before_any_call() -> None:
    with pytest.raises(ValueError, match=r"output_gradient must have shape \(1, 2, 6, 3\)"):
        attnlab.gradients("torch_eager", Q, K, V, V)


def test_a_backend_that_cuts_itself_off_has_none(tmp_path: Path) -> None:
    folders = written(tmp_path, "return (query @ key.transpose(2, 3) @ value).detach()\n")
    with pytest.raises(attnlab.Declined, match="cut off from automatic differentiation"):
        attnlab.gradients("mine", Q, K, V, G, folders=folders)


def test_an_array_that_is_cut_off_alone_is_told(tmp_path: Path) -> None:
    folders = written(tmp_path, "return torch.softmax(query @ key.detach().transpose(2, 3), -1) @ value\n")
    with pytest.raises(ValueError, match="no key gradient arrived"):
        attnlab.gradients("mine", Q, K, V, G, folders=folders)


def test_an_operator_without_a_way_back_declines_with_pytorchs_reason(tmp_path: Path) -> None:
    folders = written(tmp_path, "return Forward.apply(query, key, value)\n")
    (tmp_path / "mine.py").write_text(
        (tmp_path / "mine.py").read_text()
        + "class Forward(torch.autograd.Function):\n"
        + "    @staticmethod\n"
        + "    def forward(ctx, q, k, v):\n"
        + "        return torch.softmax(q @ k.transpose(2, 3), -1) @ v\n",
        encoding="utf-8",
    )
    with pytest.raises(attnlab.Declined, match="PyTorch says: You must implement"):
        attnlab.gradients("mine", Q, K, V, G, folders=folders)


def test_who_says_so_before_the_way_back_has_none_either(tmp_path: Path) -> None:
    """As PyTorch's FlexAttention on the CPU; any other exception comes through."""
    asked = (
        "if query.requires_grad:\n        raise {}('no way back here')\n    return query @ key.mT @ value\n"
    )
    folders = written(tmp_path, asked.format("NotImplementedError"))
    with pytest.raises(attnlab.Declined, match="no way back here"):
        attnlab.gradients("mine", Q, K, V, G, folders=folders)
    folders = written(tmp_path, asked.format("ValueError"))
    with pytest.raises(ValueError, match="no way back here"):
        attnlab.gradients("mine", Q, K, V, G, folders=folders)

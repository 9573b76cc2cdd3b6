"""Attentions as users write them: whatever they round, they are right, and so are their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab.problem.dtypes import DTYPES
from attnlab.runs.check import check

ANY_MASK = (Path(__file__).with_name("written") / "any_mask_in_one_array.py").read_text(encoding="utf-8")
AT_ONCE = """
import torch
LIBRARY = "torch"
def attend(query, key, value, *, causal, scale):
    inner = {inner}
    scores = query.to(inner) @ key.to(inner).mT * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), {hidden})
    {weights}
    return (weights @ value.to(inner)).to(query.dtype)
"""
IN_BLOCKS = """
import torch
LIBRARY = "torch"
def attend(query, key, value, *, causal, scale):
    inner = {inner}
    q, k, v = (one.to(inner) for one in (query, key, value))
    rows = torch.arange(query.shape[-2])[:, None]
    top = torch.full((*query.shape[:-1], 1), -1e30, dtype=inner)
    total = torch.zeros_like(top)
    output = torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=inner)
    for block in {blocks}:
        scores = q @ k[..., block, :].mT * scale
        if causal:
            scores = scores.masked_fill(rows < torch.arange(key.shape[-2])[block], float("-inf"))
        highest = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, fade = (scores - highest).exp(), (top - highest).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        output = output * fade + {weights} @ v[..., block, :]
        top = highest
    return (output / total).to(query.dtype)
"""
WIDER = "torch.float64 if query.dtype == torch.float64 else torch.float32"
EXP = "weights = (scores - scores.amax(-1, keepdim=True)).exp(); weights = weights / "
WRITTEN = {
    "any mask in one array": ANY_MASK,
    # float32 inside whatever comes in, a mask of −10^9 instead of −∞, and 10^-9 in the denominator
    "float32 inside": AT_ONCE.format(
        inner="torch.float32", hidden="-1e9", weights=EXP + "(weights.sum(-1, keepdim=True) + 1e-9)"
    ),
    # stored step by step in the dtype of the inputs, its maximum differentiated too. In float16 it has float32 inside:
    # the derivative of the quotient would fall below what float16 holds
    "softmax written out": AT_ONCE.format(
        inner="torch.float32 if query.dtype == torch.float16 else query.dtype",
        hidden='float("-inf")',
        weights=EXP + "weights.sum(-1, keepdim=True)",
    ),
    "ln Z in one number": AT_ONCE.format(
        inner=WIDER,
        hidden='float("-inf")',
        weights="weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))",
    ),
    # differentiation goes back through every maximum
    "online softmax": IN_BLOCKS.format(
        inner=WIDER,
        blocks="[slice(at, at + 64) for at in range(0, key.shape[-2], 64)]",
        weights="weights.to(query.dtype).to(inner)",
    ),
    "last key first": IN_BLOCKS.format(
        inner="torch.float32",
        blocks="[slice(max(0, stop - 37), stop) for stop in range(key.shape[-2], 0, -37)]",
        weights="weights",
    ),
}


#: one that has all scores at once, one that goes over the keys in blocks
BRIEF = ("any mask in one array", "online softmax")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in BRIEF else pytest.mark.thorough) for one in WRITTEN]
)
@pytest.mark.usefixtures("in_this_process")
def test_what_users_write_passes(name: str, tmp_path: Path) -> None:
    """In every dtype, or the dtype is one that it does not have."""
    (tmp_path / "mine.py").write_text(WRITTEN[name], encoding="utf-8")
    found = check("mine", [str(tmp_path)], keep=True)
    assert found.reason is None
    assert found.passed is True and found.no_gradients is None
    lacking = {"float64"} if name in ("float32 inside", "last key first") else set()
    assert set(found.no_dtypes) == lacking
    assert set(found.precision) == set(found.gradients) == set(DTYPES) - lacking

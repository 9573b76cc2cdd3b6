"""Several heads: how they are split, kept apart and put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import allowed, distance, error_in_budgets
from attnlab.numerics.black_box import Attend

THEME = Theme("Heads")
VASWANI = "Vaswani et al. 2017, §3.2.2"


def split(x: Array, heads: int) -> Array:
    """(batch, tokens, heads·d) as (batch, heads, tokens, d): reshape, then swap the two middle axes."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).swapaxes(1, 2)


def unpermuted(x: Array, heads: int) -> Array:
    """The same shape by one reshape alone, which deals every head a stretch of tokens: wrong."""
    batch, tokens, width = x.shape
    return x.reshape(batch, heads, tokens, width // heads)


def joined(z: Array) -> Array:
    """(batch, heads, tokens, d) as (batch, tokens, heads·d): the concatenation of the heads."""
    batch, heads, tokens, dim = z.shape
    return z.swapaxes(1, 2).reshape(batch, tokens, heads * dim)


def _projected(lab: Laboratory, width: int, tokens: int) -> tuple[Array, list[Array]]:
    """An input (2, tokens, width) and three projections (width, width)."""
    x = lab.normal(2, tokens, width, stream=1)
    return x, [lab.normal(width, width, stream=2 + i) / math.sqrt(width) for i in range(3)]


@THEME.claim(
    "heads-split-weights",
    "S0:34",
    kind="identity",
    says="Heads come from splitting the weight matrices.",
    truth="Head h has columns h·d_k to (h + 1)·d_k of each; a loop over heads and one batched call "
    "give the same.",
    reference=VASWANI,
)
def heads_split_weights(lab: Laboratory) -> Sequence[Check]:
    heads, dim = 4, 8
    x, weights = _projected(lab, heads * dim, 10)
    cut: Callable[[Array, int], Array] = lab.part("split", split)
    q, k, v = (cut(x @ w, heads) for w in weights)

    def difference(attend: Attend) -> float:
        looped = [
            attend(
                *((x @ w[:, h * dim : (h + 1) * dim])[:, None] for w in weights),
                causal=False,
                scale=dim**-0.5,
            )
            for h in range(heads)
        ]
        return distance(attend(q, k, v, causal=False, scale=dim**-0.5), np.concatenate(looped, axis=1))

    worst = lab.worst(difference)
    return [
        claimed(
            "loop over heads against one batched call, relative",
            worst.figure,
            "≤",
            allowed(q, k, v, times=2),
            where=worst.where,
        )
    ]


@THEME.claim(
    "reshape-then-permute",
    "S2:37-41",
    kind="shape",
    says="Project 768 to 768, reshape to [B, S, 12, 64], and swap axes to [B, 12, S, 64].",
    truth="Right, and the swap is needed: reshaping to [B, 12, S, 64] at once has the right shape "
    "and wrong contents.",
    reference=VASWANI,
)
def reshape_then_permute(lab: Laboratory) -> Sequence[Check]:
    cut: Callable[[Array, int], Array] = lab.part("split", split)
    x, weights = _projected(lab, 768, 6)
    whole = [x @ w for w in weights]
    apart = [np.stack([y[..., h * 64 : (h + 1) * 64] for h in range(12)], axis=1) for y in whole]
    right_shape = cut(whole[0], 12).shape == (2, 12, 6, 64)
    elements = sum(int((cut(y, 12) != one).sum()) for y, one in zip(whole, apart, strict=True))
    wrong = [unpermuted(y, 12) for y in whole]
    limit = allowed(*apart)

    def caught(attend: Attend) -> float:
        expected = attend(apart[0], apart[1], apart[2], causal=False, scale=0.125)
        return -distance(attend(wrong[0], wrong[1], wrong[2], causal=False, scale=0.125), expected) / limit

    blind = lab.worst(caught, fast=True)
    return [
        claimed("shape is [B, 12, S, 64]", right_shape, "=", 1),
        claimed("elements not in the place of their head", elements, "=", 0, where="B = 2, S = 6"),
        control("error without the swap over the largest allowed", -blind.figure, ">", 1, where=blind.where),
    ]


@THEME.claim(
    "heads-independent",
    "S3:23-24; S4:319; S4:345",
    kind="identity",
    says="Heads work independently of each other; their outputs are concatenated and mapped.",
    truth="So it is, to the last bit: what changes one head's input leaves the output of the others"
    " as it was.",
    reference=VASWANI,
)
def heads_independent(lab: Laboratory) -> Sequence[Check]:
    q, k, v = (lab.normal(1, 4, 12, 16, stream=stream).astype(np.float32) for stream in (1, 2, 3))
    moved = [x.copy() for x in (q, k, v)]
    for x in moved:
        x[:, 1] += 1

    def changes(attend: Attend, *, own: bool) -> float:
        before = attend(q, k, v, causal=False, scale=0.25)
        after = attend(moved[0], moved[1], moved[2], causal=False, scale=0.25)
        changed = before != after
        return float(-changed[:, 1].sum() if own else np.delete(changed, 1, axis=1).sum())

    others, own = lab.worst(partial(changes, own=False)), lab.worst(partial(changes, own=True))
    return [
        claimed("numbers that change in the other heads", others.figure, "=", 0, where=others.where),
        control("numbers that change in the head itself", -own.figure, ">", 0, where=own.where),
    ]


def _module(width: int, heads: int, seed: int) -> Any:
    """`nn.MultiheadAttention` in double precision, for inputs (batch, tokens, width)."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.MultiheadAttention(width, heads, bias=False, batch_first=True, dtype=torch.float64)


def _through(module: Any, x: Array) -> tuple[list[Array], Array]:
    """The module's q, k, v by head, and its output."""
    import torch

    heads = int(module.num_heads)
    with torch.no_grad():
        answer = module(*[torch.from_numpy(x)] * 3, need_weights=False)[0].numpy()
    projections = np.split(module.in_proj_weight.detach().numpy(), 3)
    return [split(x @ w.T, heads) for w in projections], answer


@THEME.claim(
    "concatenation-is-output",
    "S1:22; S1:78; S4:348",
    kind="identity",
    says="The output of multi-head attention is the concatenation of its heads.",
    truth="The concatenation is multiplied by W_O.",
    condition="W_O = I",
    reference=VASWANI,
)
def concatenation_is_output(lab: Laboratory) -> Sequence[Check]:
    import torch

    x = lab.normal(2, 10, 32, stream=1)
    checks = []
    change: Callable[[Array], Array] = lab.part("output_weights", lambda drawn: drawn)
    drawn = lab.normal(32, 32, stream=2) / math.sqrt(32)
    for role, name, w_o in ((claimed, "W_O = I", np.eye(32)), (beyond, "W_O drawn", change(drawn))):
        module = _module(32, 4, lab.seed)
        with torch.no_grad():
            module.out_proj.weight.copy_(torch.from_numpy(w_o))
        (q, k, v), answer = _through(module, x)
        limit = allowed(q, k, v, times=2)
        plain = lab.worst(partial(_mapped_distance, q=q, k=k, v=v, w_o=np.eye(32), answer=answer))
        mapped = lab.worst(partial(_mapped_distance, q=q, k=k, v=v, w_o=w_o, answer=answer))
        # a product with W_O adds roundings of its own, and may cancel
        room = limit * float(np.linalg.cond(w_o))
        checks += [
            role("Concat(z) against nn.MultiheadAttention, relative", plain.figure, "≤", limit, where=name),
            right("Concat(z)W_O against the same", mapped.figure, "≤", room, where=f"{name}; {mapped.where}"),
        ]
    return checks


def _mapped_distance(attend: Attend, *, q: Array, k: Array, v: Array, w_o: Array, answer: Array) -> float:
    z = attend(q, k, v, causal=False, scale=q.shape[-1] ** -0.5)
    return distance(joined(z) @ w_o.T, answer)


@THEME.claim(
    "example-has-two-heads",
    "S1:35",
    kind="shape",
    says="The example has two heads, as `num_heads = 2` says.",
    truth="The number is set and never used; what the example computes is one head of width d_v.",
    reference=VASWANI,
)
def example_has_two_heads(lab: Laboratory) -> Sequence[Check]:
    example: Callable[[Array, list[Array], int], Array] = lab.part("example", _one_head)
    x = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
    weights = [lab.rng(i).random((4, 2)) for i in (1, 2, 3)]
    outputs = [example(x, weights, heads) for heads in (1, 2)]
    width = outputs[1].shape[-1]
    checks = [
        claimed("width of its output", width, "=", 4, where="num_heads·d_v"),
        right("width of its output", width, "=", 2, where="d_v"),
    ]
    if outputs[0].shape == outputs[1].shape:
        changed = int((outputs[0] != outputs[1]).sum())
        q, k, v = ((x @ w)[None, None] for w in weights)
        same = lab.worst(
            lambda attend: distance(attend(q, k, v, causal=False, scale=2**-0.5)[0, 0], outputs[1])
        )
        checks += [
            right("numbers that change between num_heads = 1 and 2", changed, "=", 0),
            right(
                "distance from a single head", same.figure, "≤", allowed(q, k, v, times=2), where=same.where
            ),
        ]
    return checks


def _one_head(x: Array, weights: list[Array], num_heads: int) -> Array:
    """What the example computes, in our words: `num_heads` is there and nothing depends on it."""
    q, k, v = (x @ w for w in weights)
    boltzmann = np.exp(q @ k.T / math.sqrt(q.shape[1]))
    return np.asarray(boltzmann / boltzmann.sum(axis=1, keepdims=True) @ v)


@THEME.claim(
    "concatenation-raises-dimension",
    "S4:357",
    kind="shape",
    says="Concatenating the heads raises the dimension, and W_O brings it down again.",
    truth="H·d_v = d_model: the concatenation is as wide as the input, and W_O is square.",
    reference=VASWANI,
)
def concatenation_raises_dimension(lab: Laboratory) -> Sequence[Check]:
    model_dim, heads = 512, 8
    module = _module(model_dim, heads, lab.seed)
    head_dim = lab.part("value_dim", int(module.head_dim))
    rows, columns = lab.part("output_shape", tuple(module.out_proj.weight.shape))
    q, k = (lab.normal(1, heads, 4, 64, stream=stream) for stream in (1, 2))
    v = lab.normal(1, heads, 4, head_dim, stream=3)
    wide = lab.worst(lambda attend: joined(attend(q, k, v, causal=False, scale=0.125)).shape[-1])
    where = f"d_model = 512, H = 8, d_v = {head_dim}; {wide.where}"
    return [
        claimed("width of the concatenation over d_model", wide.figure / model_dim, ">", 1, where=where),
        claimed("columns over rows of W_O", columns / rows, ">", 1, where="nn.MultiheadAttention"),
        right("width of the concatenation", wide.figure, "=", model_dim, where=where),
        right("columns over rows of W_O", columns / rows, "=", 1, where=f"{rows} × {columns}"),
    ]


@THEME.claim(
    "output-mixes-heads",
    "S4:359",
    kind="identity",
    says="W_O combines the information of all heads.",
    truth="Concat(z)W_O = Σ_h z^h W_O^h, W_O^h being the rows of head h: every output number "
    "depends on every head.",
    reference="Elhage et al. 2021, A Mathematical Framework for Transformer Circuits",
)
def output_mixes_heads(lab: Laboratory) -> Sequence[Check]:
    heads, dim = 4, 8
    q, k, v = (lab.normal(1, heads, 10, dim, stream=stream) for stream in (1, 2, 3))
    w_o: Array = lab.part("output_weights", lambda drawn: drawn)(
        lab.normal(heads * dim, heads * dim, stream=4)
    )
    blocks = w_o.reshape(heads, dim, heads * dim)

    def found(attend: Attend, *, untouched: bool) -> float:
        z = attend(q, k, v, causal=False, scale=dim**-0.5)
        whole, parts = joined(z) @ w_o, z[0] @ blocks
        if untouched:
            return float((parts == 0).sum())
        return distance(parts.sum(axis=0), whole[0])

    terms = lab.worst(partial(found, untouched=False))
    idle = lab.worst(partial(found, untouched=True))
    limit = allowed(q, k, v, times=2) * float(np.linalg.cond(w_o))
    return [
        claimed("Σ_h z^h W_O^h against Concat(z)W_O, relative", terms.figure, "≤", limit, where=terms.where),
        claimed("(output number, head) pairs without influence", idle.figure, "=", 0, where=idle.where),
    ]


@THEME.claim(
    "eight-heads-of-64",
    "S4:371",
    kind="shape",
    says="With d_model = 512 and 8 heads each head has 64 dimensions, and together they have 512.",
    truth="512/8 = 64 and 8 × 64 = 512.",
    reference=VASWANI,
)
def eight_heads_of_64(lab: Laboratory) -> Sequence[Check]:
    module = _module(512, lab.part("heads", 8), lab.seed)
    (q, k, v), answer = _through(module, lab.normal(1, 4, 512, stream=1))
    worst = lab.worst(lambda attend: error_in_budgets(attend, q, k, v))
    return [
        claimed("dimension of a head", q.shape[-1], "=", 64, where="nn.MultiheadAttention(512, 8)"),
        claimed("width of the output", answer.shape[-1], "=", 512),
        control("error of the heads over the largest allowed", worst.figure, "≤", 1, where=worst.where),
    ]

"""Associative recall, and a small transformer that can learn it.

The task (Ba et al. 2016, 1610.06258; Arora et al. 2023, 2312.04927): a sequence of pairs of a key and a value, drawn
anew each time, and then the keys again in any order; at each of them the value is asked that this sequence paired with
it. It cannot be answered without looking back at the pair. A pair is one token, the sum of its two embeddings, so that
one layer of attention is enough.

The model: embeddings; attention from the keys that are asked to the pairs, and an MLP, each on normalised tokens and
added to them (pre-norm); a norm and an output layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, softmax

#: keys and values that there are, pairs of one sequence, sequences of one step
KEYS, VALUES, PAIRS, BATCH = 32, 16, 16, 8
MODEL_DIM, MLP_DIM = 32, 64
#: keeps the square root of a zero vector's size from being divided by
_NEVER_ZERO = 1e-6

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Attention:
    """How weights come from q·k: softmax(cap·tanh(scale · q·k / cap)), of normalised q and k where `normed`.

    shrunk : what both projections' weights are multiplied by at the start.
    """

    head_dim: int
    scale: float
    shrunk: float = 1.0
    cap: float = math.inf
    normed: bool = False


def start(attention: Attention, seed: int) -> dict[str, Tensor]:
    """The parameters of one run: matrices that preserve variance, embeddings of variance 1, gains of 1.

    Every attention of the same sizes starts from the same draws.
    """
    source = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=source) / math.sqrt(rows)

    inner, dim = attention.head_dim, MODEL_DIM
    found = {f"embedding of {name}": torch.randn(size, dim, generator=source) for name, size in _EMBEDDED}
    found |= {"value": matrix(dim, dim), "output": matrix(dim, dim), "widen": matrix(dim, MLP_DIM)}
    found |= {"narrow": matrix(MLP_DIM, dim), "guess": matrix(dim, VALUES)}
    found |= {name: attention.shrunk * matrix(dim, inner) for name in ("query", "key")}
    return found | {f"{name} gain": torch.ones(attention.head_dim) for name in ("query", "key")}


_EMBEDDED = (("keys", KEYS), ("values", VALUES))


def sequences(source: torch.Generator) -> Tensor:
    """Keys, values and the places that are asked for, (3, batch, pairs). All keys of a sequence differ."""
    keys, asked = (
        torch.rand(BATCH, count, generator=source).argsort(-1)[:, :PAIRS] for count in (KEYS, PAIRS)
    )
    return torch.stack([keys, torch.randint(VALUES, (BATCH, PAIRS), generator=source), asked])


def normalised(x: Tensor) -> Tensor:
    """Every vector at |x|² = its dimension (Zhang and Sennrich 2019, 1910.07467, without a gain)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _NEVER_ZERO)


def scores(parameters: Parameters, attention: Attention, x: Tensor, pairs: Tensor) -> Tensor:
    """The scores of one head, (batch, asked, pairs). x, pairs : (batch, length, d_model), normalised."""
    q, k = x @ parameters["query"], pairs @ parameters["key"]
    if attention.normed:
        q, k = normalised(q) * parameters["query gain"], normalised(k) * parameters["key gain"]
    s = attention.scale * (q @ k.transpose(-1, -2))
    return s if math.isinf(attention.cap) else attention.cap * torch.tanh(s / attention.cap)


def forward(parameters: Parameters, attention: Attention, batch: Tensor) -> tuple[Tensor, Tensor]:
    """The guesses, (batch, asked, values), and the weights, (batch, asked, pairs). batch : of `sequences`."""
    pairs, x = tokens(parameters, batch)
    weights = softmax(scores(parameters, attention, normalised(x), pairs), dim=-1)
    x = x + weights @ (pairs @ parameters["value"]) @ parameters["output"]
    x = x + gelu(normalised(x) @ parameters["widen"]) @ parameters["narrow"]
    return normalised(x) @ parameters["guess"], weights


def tokens(parameters: Parameters, batch: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs, normalised, and the keys that are asked, (batch, pairs, d_model) each."""
    keys, values, asked = batch
    named = parameters["embedding of keys"]
    pairs = normalised(named[keys] + parameters["embedding of values"][values])
    return pairs, named[keys.gather(-1, asked)]


def loss(parameters: Parameters, attention: Attention, batch: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The cross-entropy of the guesses in nats; and the share that is right, and the mean entropy of the weights."""
    guesses, weights = forward(parameters, attention, batch)
    right = batch[1].gather(-1, batch[2])
    cost = cross_entropy(guesses.flatten(0, 1), right.flatten())
    accuracy = (guesses.argmax(-1) == right).float().mean()
    return cost, (accuracy, torch.special.entr(weights).sum(-1).mean())

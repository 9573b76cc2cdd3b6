"""Associative recall, a small transformer that can learn it, and many training runs in one tensor program.

The task (Ba et al. 2016, 1610.06258; Arora et al. 2023, 2312.04927): a sequence of pairs of a key and a value, drawn
anew each time, and then the keys again in any order; at each of them the value is asked that this sequence paired with
it. It cannot be answered without looking back at the pair. A pair is one token, the sum of its two embeddings, so that
one layer of attention is enough.

The model: embeddings; attention from the keys that are asked to the pairs, and an MLP, each on normalised tokens and
added to them (pre-norm); a norm and an output layer.

`torch.func.vmap` turns the gradient of one run into that of all. By Adam (Kingma and Ba 2015, 1412.6980), which divides
each gradient by its own size, so that a factor on all of them changes nothing; or by gradient descent with momentum
(Polyak 1964), which does not. The learning rate is constant: no warm-up, no clipping and no weight decay, each of which
hides what is looked for here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.functional import cross_entropy, gelu, softmax

#: keys and values that there are, pairs of one sequence, sequences of one step
KEYS, VALUES, PAIRS, BATCH = 32, 16, 16, 8
MODEL_DIM, MLP_DIM = 32, 64
#: keeps the square root of a zero vector's size from being divided by
_NEVER_ZERO = 1e-6
ADAM, MOMENTUM = "Adam", "momentum"
_KEPT, _SQUARES_KEPT, _EPSILON = 0.9, 0.999, 1e-8
#: of the steps, over which the end of a run is averaged
_LAST = 0.1
#: share of right answers from which on the task counts as learned
LEARNED = 0.9

Array = NDArray[np.float64]
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

    inner, dim, embedded = attention.head_dim, MODEL_DIM, (("keys", KEYS), ("values", VALUES))
    found = {f"embedding of {name}": torch.randn(size, dim, generator=source) for name, size in embedded}
    found |= {"value": matrix(dim, dim), "output": matrix(dim, dim), "widen": matrix(dim, MLP_DIM)}
    found |= {"narrow": matrix(MLP_DIM, dim), "guess": matrix(dim, VALUES)}
    found |= {name: attention.shrunk * matrix(dim, inner) for name in ("query", "key")}
    return found | {f"{name} gain": torch.ones(inner) for name in ("query", "key")}


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


@dataclass(frozen=True)
class Runs:
    """What the runs showed at each step before it was taken: (steps, learning rates, seeds) each.

    entropy : mean of the weights', in nats. gradient : its norm; query_key_gradient : that of the weights which make
    queries and keys.
    """

    loss: Array
    accuracy: Array
    entropy: Array
    gradient: Array
    query_key_gradient: Array

    @property
    def final_loss(self) -> Array:
        """The mean over the last tenth of the steps, (learning rates, seeds); infinite where one is not finite."""
        mean = self.loss[-self._last :].mean(axis=0)
        return np.where(np.isfinite(self.loss).all(axis=0), mean, np.inf)

    @property
    def learned(self) -> NDArray[np.bool_]:
        """Whether at least `LEARNED` of the answers are right in the last tenth of the steps, (rates, seeds)."""
        right = self.accuracy[-self._last :].mean(axis=0) >= LEARNED
        return np.asarray(right & np.isfinite(self.final_loss))

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Whether the loss is not finite, or ends above ln(values), that of knowing nothing: (rates, seeds)."""
        return np.asarray((self.final_loss > np.log(VALUES)) & ~self.learned)

    @property
    def steps_to_learn(self) -> NDArray[np.int64]:
        """Steps before `LEARNED` of the answers are right over ten steps, all steps where never: (rates, seeds)."""
        total = np.cumsum(self.accuracy, axis=0)
        right = total[10:] - total[:-10] >= 10 * LEARNED
        return np.where(right.any(axis=0), right.argmax(axis=0) + 10, len(self.loss))

    @property
    def _last(self) -> int:
        return max(1, round(_LAST * len(self.loss)))


def train(
    attention: Attention, rates: Sequence[float], seeds: Sequence[int], steps: int, optimiser: str = ADAM
) -> Runs:
    """Every learning rate with every seed. Runs of one seed start alike and see the same sequences."""
    if optimiser not in (ADAM, MOMENTUM):
        raise ValueError(f"optimiser must be {ADAM} or {MOMENTUM}, got {optimiser!r}")
    started = [start(attention, seed) for seed in seeds]
    weights = {
        name: torch.stack([one[name] for one in started]).repeat(len(rates), *[1] * started[0][name].dim())
        for name in started[0]
    }
    every_rate = torch.tensor(rates).repeat_interleave(len(seeds))
    means, squares = ({name: torch.zeros_like(one) for name, one in weights.items()} for _ in range(2))
    sources = [torch.Generator().manual_seed(seed + 2**32) for seed in seeds]
    derive = vmap(grad_and_value(lambda parameters, batch: loss(parameters, attention, batch), has_aux=True))
    seen: list[tuple[Tensor, ...]] = []
    for step in range(1, steps + 1):
        batches = torch.stack([sequences(source) for source in sources]).repeat(len(rates), 1, 1, 1)
        gradients, (cost, (accuracy, entropy)) = derive(weights, batches)
        sizes = {name: one.square().flatten(1).sum(-1) for name, one in gradients.items()}
        whole, part = torch.as_tensor(sum(sizes.values())), sizes["query"] + sizes["key"]
        seen.append((cost, accuracy, entropy, whole.sqrt(), part.sqrt()))
        for name, gradient in gradients.items():
            if optimiser == ADAM:
                mean = means[name].lerp_(gradient, 1 - _KEPT)
                square = squares[name].lerp_(gradient.square(), 1 - _SQUARES_KEPT)
                size = (square / (1 - _SQUARES_KEPT**step)).sqrt_().add_(_EPSILON)
                change = mean / (1 - _KEPT**step) / size
            else:
                change = means[name].mul_(_KEPT).add_(gradient)
            weights[name] -= every_rate.reshape(-1, *[1] * (change.dim() - 1)) * change
    shape = (steps, len(rates), len(seeds))
    return Runs(*(torch.stack(one).double().numpy().reshape(shape) for one in zip(*seen, strict=True)))

"""Training runs, as many as there are learning rates and seeds, in one tensor program.

`torch.func.vmap` turns the gradient of one run into that of all. By Adam (Kingma and Ba 2015, 1412.6980), which divides
each gradient by its own size, so that a factor on all of them changes nothing; or by gradient descent with momentum
(Polyak 1964), which does not. The learning rate is constant: no warm-up, no clipping and no weight decay, each of which
hides what is looked for here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad_and_value, vmap

from attnlab.experiments.recall import VALUES, Attention, loss, sequences, start

ADAM, MOMENTUM = "Adam", "momentum"
_KEPT, _SQUARES_KEPT, _EPSILON = 0.9, 0.999, 1e-8
#: of the steps, over which the end of a run is averaged
_LAST = 0.1
#: share of right answers from which on the task counts as learned
LEARNED = 0.9

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Runs:
    """What the runs showed at each step before it was taken: (steps, learning rates, seeds) each.

    entropy : mean of the weights', in nats. gradient : its norm; query_key_gradient : that of the weights which make
    queries and keys.
    """

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    entropy: NDArray[np.float64]
    gradient: NDArray[np.float64]
    query_key_gradient: NDArray[np.float64]

    @property
    def final_loss(self) -> NDArray[np.float64]:
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
    started = [start(attention, seed) for seed in seeds]
    weights = {
        name: torch.stack([one[name] for one in started]).repeat(len(rates), *[1] * started[0][name].dim())
        for name in started[0]
    }
    take = _Step(optimiser, torch.tensor(rates).repeat_interleave(len(seeds)), weights)
    sources = [torch.Generator().manual_seed(seed + 2**32) for seed in seeds]
    derive = vmap(grad_and_value(partial(_loss, attention), has_aux=True))
    seen: list[tuple[Tensor, ...]] = []
    for _ in range(steps):
        batches = torch.stack([sequences(source) for source in sources]).repeat(len(rates), 1, 1, 1)
        gradients, (cost, (accuracy, entropy)) = derive(weights, batches)
        squares = {name: one.square().flatten(1).sum(-1) for name, one in gradients.items()}
        whole, part = sum(squares.values()), squares["query"] + squares["key"]
        seen.append((cost, accuracy, entropy, torch.as_tensor(whole).sqrt(), part.sqrt()))
        take(weights, gradients)
    shape = (steps, len(rates), len(seeds))
    return Runs(
        *(
            torch.stack([one[i] for one in seen]).double().numpy().reshape(shape)
            for i in range(len(fields(Runs)))
        )
    )


def _loss(
    attention: Attention, weights: Mapping[str, Tensor], batch: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    return loss(weights, attention, batch)


class _Step:
    """One step of all runs, each at its own learning rate; changes the weights in place."""

    def __init__(self, optimiser: str, rate: Tensor, weights: Weights) -> None:
        if optimiser not in (ADAM, MOMENTUM):
            raise ValueError(f"optimiser must be {ADAM} or {MOMENTUM}, got {optimiser!r}")
        self._adam, self._rate, self._count = optimiser == ADAM, rate, 0
        self._mean, self._square = (
            {name: torch.zeros_like(one) for name, one in weights.items()} for _ in range(2)
        )

    def __call__(self, weights: Weights, gradients: Weights) -> None:
        self._count += 1
        for name, gradient in gradients.items():
            mean = self._mean[name]
            if self._adam:
                mean.lerp_(gradient, 1 - _KEPT)
                square = self._square[name].lerp_(gradient.square(), 1 - _SQUARES_KEPT)
                size = (square / (1 - _SQUARES_KEPT**self._count)).sqrt_().add_(_EPSILON)
                change = mean / (1 - _KEPT**self._count) / size
            else:
                change = mean.mul_(_KEPT).add_(gradient)
            weights[name] -= self._rate.reshape(-1, *[1] * (change.dim() - 1)) * change

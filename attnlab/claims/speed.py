"""What takes longer than what, on this machine, in this run.

Timed in this process with one thread, in pairs that alternate (`attnlab.claims.stopwatch`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.rounding import allowed, distance
from attnlab.claims.stopwatch import time_ratio
from attnlab.numerics.black_box import Attend

THEME = Theme("Speed")


def looped(x: Any, weights: Sequence[Any]) -> Any:
    """A projection for each head in turn: (tokens, 768) to (heads, tokens, 64)."""
    import torch

    return torch.stack([torch.nn.functional.linear(x, w) for w in weights])


def at_once(x: Any, weight: Any, heads: int = 12) -> Any:
    """One projection for all heads, then a view: (tokens, 768) to (heads, tokens, 64)."""
    import torch

    return torch.nn.functional.linear(x, weight).view(len(x), heads, -1).transpose(0, 1)


@THEME.claim(
    "separate-linears-slower",
    "S2:32",
    kind="time",
    says="Twelve separate Linear layers in a loop are slower than one large one.",
    truth="The outputs are the same; what the loop costs is the fixed price of every call, which "
    "many tokens at once can hide. The ratio is measured here, on this device.",
    condition="few tokens at once",
    reference="Vaswani et al. 2017, §3.2.2",
)
def separate_linears_slower(lab: Laboratory) -> Sequence[Check]:
    import torch

    separate: Callable[[Any, Sequence[Any]], Any] = lab.part("separate", looped)
    checks = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        weight = _tensor(lab.normal(768, 768, stream=1) / math.sqrt(768), device)
        pieces = [piece.contiguous() for piece in weight.split(64)]
        for role, tokens in ((claimed, 4), (beyond, 512)):
            x = _tensor(lab.normal(tokens, 768, stream=2), device)
            apart, together = partial(separate, x, pieces), partial(at_once, x, weight)
            difference = distance(apart().cpu().numpy(), together().cpu().numpy())
            clock = time.process_time if device == "cpu" else time.perf_counter
            ratio = time_ratio(_finished(apart, device), _finished(together, device), 21, clock)
            checks += [
                role(
                    "time of the loop over one product, lower end of its interval",
                    ratio.low,
                    ">",
                    1,
                    where=f"{device}, {tokens} tokens; ratio {ratio.ratio:.3g}, {ratio.text}",
                ),
                right(
                    "room between the interval and 1",
                    ratio.decided,
                    ">",
                    0,
                    where=f"{device}, {tokens} tokens",
                ),
                # a sum of 768 products, each partial sum rounded: twice that for two orders
                control("difference of the outputs", difference, "≤", 2 * 768 * 2.0**-24, where=device),
            ]
    return checks


def _tensor(array: Array, device: str) -> Any:
    import torch

    return torch.from_numpy(array.astype(np.float32)).to(device)


def _finished(call: Callable[[], Any], device: str) -> Callable[[], Any]:
    """`call` that returns when the device is done."""
    import torch

    if device == "cpu":
        return call

    def wait() -> None:
        call()
        torch.cuda.synchronize()

    return wait


@THEME.claim(
    "parallel-over-positions",
    "S3:104",
    kind="time",
    says="Attention works on all positions in parallel, where a recurrent network goes one by one.",
    truth="In training and in prefill, where all tokens are known. In decoding each token waits for"
    " the one before it, and a step with n_q = 1 costs far more a token.",
    condition="all tokens are known: training and prefill",
    reference="Vaswani et al. 2017, table 1; Shazeer 2019 (1911.02150)",
)
def parallel_over_positions(lab: Laboratory) -> Sequence[Check]:
    n = 64
    stepwise: Callable[..., Array] = lab.part("stepwise", one_by_one)
    q, k, v = (lab.normal(1, 4, n, 32, stream=stream).astype(np.float32) for stream in (1, 2, 3))
    checks = []
    for name, attend in lab.backends(fast=True):
        together = partial(attend, q, k, v, causal=True, scale=0.2)
        apart = partial(stepwise, attend, q, k, v)
        ratio = time_ratio(apart, together, rounds=9)
        step = time_ratio(partial(attend, q[:, :, -1:], k, v, causal=False, scale=0.2), together, rounds=9)
        checks += [
            claimed(
                "time one by one over all at once, lower end of its interval",
                ratio.low,
                ">",
                1,
                where=f"{name}, {n} tokens; ratio {ratio.ratio:.3g}, {ratio.text}",
            ),
            beyond(
                "time of a decoding step over prefill's time a token, lower end",
                n * step.low,
                "≤",
                1,
                where=f"{name}, {n} keys; ratio {n * step.ratio:.3g}",
            ),
            control(
                "difference of the outputs, relative",
                distance(apart(), together()),
                "≤",
                allowed(q, k, v, scale=0.2, causal=True, times=2),
                where=name,
            ),
        ]
    return checks


def one_by_one(attend: Attend, q: Array, k: Array, v: Array) -> Array:
    """Causal attention a position at a time, each over the keys up to itself."""
    rows = [
        attend(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], causal=False, scale=0.2)
        for i in range(q.shape[2])
    ]
    return np.concatenate(rows, axis=2)

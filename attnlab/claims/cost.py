"""How many multiplications attention takes, counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnlab.claims.check import Check, beyond, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Array, Laboratory
from attnlab.claims.stopwatch import Ratio, time_ratio

THEME = Theme("Cost")
VASWANI = "Vaswani et al. 2017, table 1"


def flops(call: Callable[[], Any]) -> int:
    """Floating-point operations of the matrix products in `call()`, by PyTorch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


def _all_products(n: int, d: int) -> None:
    """The n² dot products of n queries and n keys of d components, without any number in them."""
    import torch

    q, k = (torch.empty(n, d, device="meta") for _ in "qk")
    _ = q @ k.T


def multiplications_each(products: Callable[[int, int], None], n: int, d: int) -> float:
    """Multiplications a dot product; an addition goes with each, which the counter counts too."""
    return flops(partial(products, n, d)) / 2 / n**2


@THEME.claim(
    "dot-product-d-squared",
    "S4:80",
    kind="count",
    says="A dot product of two vectors of dimension d takes d² multiplications.",
    truth="It takes d of them; all n² of a score matrix take n²d.",
    reference=VASWANI,
)
def dot_product_d_squared(lab: Laboratory) -> Sequence[Check]:
    products = lab.part("products", _all_products)
    checks = []
    for d in (64, 1024):
        each = multiplications_each(products, 128, d)
        where = f"d = {d}, FLOP counter"
        checks += [
            claimed("multiplications a dot product", each, "=", d * d, where=where),
            right("multiplications a dot product", each, "=", d, where=where),
        ]
    return checks


@THEME.claim(
    "sixty-eight-billion",
    "S4:82",
    kind="count",
    says="At d = 8192 and n = 1024 each of the n(n + 1)/2 dot products takes 8192² "
    "multiplications, 68,719,476,736 in all.",
    truth="That number is n·d², not even the text's own n(n + 1)/2·d². Right is n(n + 1)/2·d = "
    "4,299,161,600.",
    reference=VASWANI,
)
def sixty_eight_billion(lab: Laboratory) -> Sequence[Check]:
    n, d = 1024, 8192
    products = lab.part("products", _all_products)
    count = lab.part("count", n * (n + 1) // 2)
    each = multiplications_each(products, n, d)
    return [
        claimed("multiplications a dot product", each, "=", 8192**2, where="FLOP counter, d = 8192"),
        claimed("multiplications in all", count * each, "=", 68_719_476_736, where="n = 1024"),
        right("multiplications in all", count * each, "=", 4_299_161_600, where="n(n + 1)/2·d"),
        right("n·d²", n * d * d, "=", 68_719_476_736),
    ]


@THEME.claim(
    "half-the-table",
    "S4:65; S4:78",
    kind="identity",
    says="The table of scores is symmetric, so that n(n + 1)/2 dot products make it up.",
    truth="XXᵀ is symmetric. QKᵀ is not, as W_QᵀW_K is not: ‖S − Sᵀ‖/‖S‖ tends to √2, as for "
    "independent entries, and all n² products are needed.",
    condition="XXᵀ, without projections",
    reference="Kim et al. 2021 (2006.04710) for the symmetric case",
)
def half_the_table(lab: Laboratory) -> Sequence[Check]:
    n, width, head_dim, draws = 48, 64, 16, 48
    x = lab.normal(n, width, stream=1)
    tie: Callable[[Array, Array], Array] = lab.part("key_weights", lambda w_q, w_k: w_k)
    squares, totals = np.empty(draws), np.empty(draws)
    for draw in range(draws):
        w_q, w_k = (lab.normal(width, head_dim, stream=10 + 2 * draw + i) for i in (0, 1))
        s = (x @ w_q) @ (x @ tie(w_q, w_k)).T
        squares[draw], totals[draw] = ((s - s.T) ** 2).sum(), (s**2).sum()
    plain = x @ x.T
    ratio = float(squares.mean() / totals.mean())
    error = float((squares - ratio * totals).std(ddof=1)) / math.sqrt(draws) / float(totals.mean())
    # E s_ij s_ji over weights is (x_i·x_j)², where E s_ij² is |x_i|²|x_j|²
    kept = float((plain**2).sum() / np.outer(d := np.diag(plain), d).sum())
    return [
        claimed(
            "‖S − Sᵀ‖/‖S‖ of XXᵀ",
            float(np.linalg.norm(plain - plain.T) / np.linalg.norm(plain)),
            "=",
            0,
            slack=1e-14,
        ),
        beyond("‖S − Sᵀ‖²/‖S‖² of QKᵀ", ratio, "=", 0, slack=1e-14, where=f"{draws} draws of the weights"),
        right(
            "‖S − Sᵀ‖²/‖S‖² of QKᵀ",
            ratio,
            "=",
            2 * (1 - kept),
            error=error,
            where="2(1 − Σ(x_i·x_j)²/Σ|x_i|²|x_j|²), → 2",
        ),
    ]


def _attention_flops(n: int, model_dim: int, heads: int) -> int:
    """Of eager attention on `heads` heads of model_dim/heads components, without any number in them."""
    import torch

    from attnlab.contract.discovery import load

    attend = load("torch_eager").attend
    q, k, v = (torch.empty(1, heads, n, model_dim // heads, device="meta") for _ in "qkv")
    return flops(lambda: attend(q, k, v, causal=False, scale=1.0))


@THEME.claim(
    "heads-cut-cost",
    "S4:84; S4:334; S4:369",
    kind="count",
    says="Working in smaller dimensions, head by head, cuts the cost of attention.",
    truth="The heads together take 4n²·d_model operations, however many there are; and more heads "
    "mean more softmaxes.",
    reference=VASWANI,
)
def heads_cut_cost(lab: Laboratory) -> Sequence[Check]:
    n, model_dim = 256, 128
    counted: Callable[[int, int, int], int] = lab.part("flops", _attention_flops)
    checks = []
    for heads in (2, 8, 32):
        found = counted(n, model_dim, heads)
        where = f"{heads} heads, n = {n}, d_model = {model_dim}"
        checks += [
            claimed("FLOPs over those of one head", found / counted(n, model_dim, 1), "<", 1, where=where),
            right("FLOPs", found, "=", 4 * n**2 * model_dim, where="4n²·d_model"),
        ]
    timed = lab.part("time", _time_of_heads)(lab, n, model_dim)
    return [
        *checks,
        *(
            claimed(
                "time of 8 heads over one, upper end of its interval",
                ratio.high,
                "<",
                1,
                where=f"{name}; ratio {ratio.ratio:.3g}, {ratio.text}",
            )
            for name, ratio in timed.items()
        ),
    ]


def _time_of_heads(lab: Laboratory, n: int, model_dim: int) -> dict[str, Ratio]:
    """Time of 8 heads over time of one, at the same d_model, by backend."""

    def shaped(heads: int) -> Array:
        return lab.normal(1, heads, n, model_dim // heads).astype(np.float32)

    one, eight = shaped(1), shaped(8)
    return {
        name: time_ratio(
            partial(attend, eight, eight, eight, causal=False, scale=0.25),
            partial(attend, one, one, one, causal=False, scale=0.1),
            rounds=9,
        )
        for name, attend in lab.backends(fast=True)
    }


@THEME.claim(
    "one-matmul-serves-heads",
    "S2:43",
    kind="count",
    says="With heads as an axis of their own, one matrix multiplication serves all of them.",
    truth="One batched product makes all scores, and one more all outputs, whatever the number of heads.",
    reference="PyTorch, torch.bmm",
)
def one_matmul_serves_heads(lab: Laboratory) -> Sequence[Check]:
    calls: Callable[[int], int] = lab.part("calls", _matmul_calls)
    checks = [
        claimed(
            "batched products a product of the formula",
            calls(heads) / 2,
            "=",
            1,
            where=f"{heads} heads; QKᵀ and PV, torch_eager, by the profiler",
        )
        for heads in (12, 16)
    ]
    return [*checks, control("the same with one head", calls(1) / 2, "=", 1)]


def _matmul_calls(heads: int) -> int:
    """Matrix products that PyTorch runs for one call of eager attention."""
    import torch

    from attnlab.contract.discovery import load

    attend = load("torch_eager").attend
    q = torch.ones(1, heads, 16, 64)
    return profiled_products(lambda: attend(q, q, q, causal=False, scale=0.125))


def profiled_products(call: Callable[[], Any]) -> int:
    """Runs of a matrix-product operator in `call()`, by PyTorch's profiler."""
    import os

    # PyTorch 2.13's profiler announces itself on standard error; it reads this when first started
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch

    # the tracing library takes a second to start and is needed for device kernels only
    with torch.autograd.profiler.profile(use_kineto=False) as record:
        call()
    products = ("aten::bmm", "aten::mm", "aten::baddbmm", "aten::addmm")
    return sum(event.count for event in record.key_averages() if event.key in products)

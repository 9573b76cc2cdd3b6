"""Ring attention: every process holds a part of the length, and keys and values go round.

Liu, Zaharia and Abbeel 2023 (arXiv:2310.01889). A rank attends from its queries to the keys that it holds while it
sends these to the next rank, and merges what it finds by ln Z. In the backward pass the gradients of keys and values
go round with them. Each rank runs PyTorch's flash kernel for the CPU on its parts, in float32 for lower formats, and
rounds once at the end. ``[processes=N]`` sets the number of ranks, connected by gloo; they share the threads of one
process.

A causal mask is balanced: of 2N stretches of the length, rank r holds r and 2N - 1 - r, so that all ranks see as many
pairs.

On the clock are the attention, its communication, and writing the output into memory that all processes share. The
ranks hold their parts of query, key and value before; the output's gradient is sent to them in every call.

Time: 4·b·h·n_q·n_k·d / N floating-point operations a rank, causal half of them and 1/N of that half more. A rank sends
(N - 1)/N of key and value; backward the same again and N times its part of their gradients. Memory: two to three times
the rank's part of key and value, and of the output in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnlab.libraries.host import Made, positive_scale
from attnlab.libraries.torch_attention import ForcedKernel
from attnlab.libraries.torch_ranks import Cut, Held, Rank, Team, even, team
from attnlab.workload.workload import Workload

LIBRARY = "torch_ranks"
EMPTY_ROWS = "zeros"
ON_REQUEST = "it starts processes of its own"
SETTINGS = {"processes": ("2", "1", "3", "4", "6", "8", "16")}
PROCESSES = 2

_ATEN: Any = torch.ops.aten
_Parts = tuple[Sequence[Tensor], Any]


def configure(processes: str) -> None:
    """Use so many ranks."""
    global PROCESSES
    PROCESSES = int(processes)


def declines(workload: Workload) -> tuple[str, str] | None:
    """What the ring cannot cut, and what its kernel cannot do."""
    queries, keys, count = workload.queries, workload.keys, PROCESSES
    if workload.causal and queries != keys:
        return "causal", f"a causal ring needs as many queries as keys, got {queries} and {keys}"
    if workload.causal and keys % (2 * count):
        return (
            "keys",
            f"a causal ring of {count} processes needs a multiple of {2 * count} positions, got {keys}",
        )
    if keys % count:
        return "keys", f"a ring of {count} processes needs a multiple of {count} keys, got {keys}"
    if queries < count:
        return "queries", f"{count} processes need a query each, got {queries}"
    return ForcedKernel("flash").declines(workload)


def prepare(workload: Workload, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same arrays, once every rank has its part of them."""
    for one in (query, key, value):
        _held(one, team(PROCESSES), bool(workload.causal))
    return query, key, value


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float, enable_gqa: bool = False
) -> Tensor:
    """softmax(scale · Q Kᵀ) V: query (batch, heads, n_q, d), key and value (batch, kv_heads, n_k, d)."""
    query, scale = positive_scale(query, scale)
    output: Tensor = _Ring.apply(query, key, value, causal, scale)  # type: ignore[no-untyped-call]
    return output


def _cut(length: int, count: int, causal: bool) -> Cut:
    if not causal or count == 1:
        return even(length, count)
    stretches = even(length, 2 * count)
    return [[*stretches[rank], *stretches[2 * count - 1 - rank]] for rank in range(count)]


def _put(tensor: Tensor, ranks: Team, causal: bool) -> Held:
    return ranks.put(tensor, _cut(tensor.shape[2], ranks.count, causal))


_held = Made(_put)


class _Ring(torch.autograd.Function):
    """The attention of whole arrays in this process, by ranks that hold parts of them."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
        ranks = ctx.ranks = team(PROCESSES)
        ctx.causal, ctx.scale = causal, scale
        ctx.given = [_held(one, ranks, causal) for one in (query, key, value)]
        ctx.results = [
            (one.shape, one.dtype, _cut(one.shape[2], ranks.count, causal)) for one in (query, key, value)
        ]
        (output,), ctx.kept = ranks.call(
            round_the_ring, ctx.given, ctx.results[:1], causal=causal, scale=scale
        )
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        upstream = _put(gradients[0], ctx.ranks, ctx.causal)
        found, _ = ctx.ranks.call(
            back_round, [*ctx.given, ctx.kept, upstream], ctx.results, causal=ctx.causal, scale=ctx.scale
        )
        return *found, None, None


def _seen(ranks: Rank, source: int, query: Tensor, key: Tensor, causal: bool) -> tuple[slice, slice, bool]:
    """Which queries of this rank see which keys that rank `source` holds, and whether under a causal mask.

    Of the stretches in causal order, r < 2N - 1 - r, an earlier rank's first one is seen by all queries here, and both
    of a later rank by the second half of the queries.
    """
    if not causal or source == ranks.rank:
        return slice(None), slice(None), causal
    if source < ranks.rank:
        return slice(None), slice(0, key.shape[2] // 2), False
    return slice(query.shape[2] // 2, None), slice(None), False


def round_the_ring(
    ranks: Rank, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float
) -> _Parts:
    """On one rank: the output of its queries over the keys of all; kept are the output before rounding, and ln Z."""
    dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
    query, pair = query.to(wide), torch.stack((key, value))
    output = torch.zeros_like(query)
    log_sum = torch.full(query.shape[:3], -torch.inf, dtype=wide)
    for turn in range(ranks.count):
        arriving = ranks.pass_on(pair) if turn + 1 < ranks.count else None
        rows, columns, own = _seen(ranks, (ranks.rank - turn) % ranks.count, query, key, causal)
        k, v = pair[..., columns, :].to(wide)
        part, log_part = _ATEN._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, rows], k, v, 0.0, own, scale=scale
        )
        before = log_sum[:, :, rows]
        # shares from sigmoids: o - w (o - o') would lose o' beside an o that is 10^8 times as large
        share, rest = (torch.sigmoid(one).unsqueeze(-1) for one in (log_part - before, before - log_part))
        output[:, :, rows] = output[:, :, rows] * rest + part * share
        log_sum[:, :, rows] = torch.logaddexp(before, log_part)
        pair = arriving() if arriving else pair
    return (output.to(dtype),), (output, log_sum)


def back_round(
    ranks: Rank,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kept: tuple[Tensor, Tensor],
    upstream: Tensor,
    *,
    causal: bool,
    scale: float,
) -> _Parts:
    """On one rank: the gradients of its queries, keys and values."""
    dtype, (output, log_sum) = query.dtype, kept
    query, upstream, pair = query.to(output.dtype), upstream.to(output.dtype), torch.stack((key, value))
    of_query, of_pair = torch.zeros_like(query), torch.zeros_like(pair, dtype=output.dtype)
    for turn in range(ranks.count):
        arriving = ranks.pass_on(pair) if turn + 1 < ranks.count else None
        rows, columns, own = _seen(ranks, (ranks.rank - turn) % ranks.count, query, key, causal)
        k, v = pair[..., columns, :].to(output.dtype)
        asked = (upstream[:, :, rows], query[:, :, rows], k, v, output[:, :, rows], log_sum[:, :, rows])
        by_query, by_key, by_value = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            *asked, 0.0, own, scale=scale
        )
        of_query[:, :, rows] += by_query
        of_pair[..., columns, :] += torch.stack((by_key, by_value))
        of_pair = ranks.pass_on(of_pair)()  # after as many turns as there are ranks it is home
        pair = arriving() if arriving else pair
    return (of_query.to(dtype), *of_pair.to(dtype)), None

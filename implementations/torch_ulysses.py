"""Attention over processes that each hold a part of the length, exchanged all-to-all for a part of the heads.

DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509, section 3): a rank holds queries, keys and values of its
positions for all heads. An all-to-all gives it all positions for its heads, of which it computes PyTorch's
scaled_dot_product_attention; another gives the output of all heads for its positions. By `torch.distributed`: gloo on
the CPU, NCCL on CUDA. ``[processes=N]`` says how many; they share the threads of one.

On the clock are the attention and its communication: inputs lie cut on the ranks before, and the output stays cut.

Time: 4·b·h·n_q·n_k·d / N floating-point operations a rank; where N does not divide the heads, the first have more.
A rank sends (N - 1)/N² of query, key, value and output.
Memory: beside the kernel's, three more arrays of the size of the rank's part of query, key and value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlab.libraries.host import positive_scale
from attnlab.libraries.torch_ranks_library import Sharded, on_ranks, spread, use
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    from attnlab.libraries.torch_rank import Ranks

LIBRARY = "torch_ranks"
ON_REQUEST = "it starts processes of its own"
SETTINGS = {"processes": ("2", "1", "3", "4", "6", "8", "16")}
PROCESSES = 2


def configure(processes: str) -> None:
    """So many ranks."""
    global PROCESSES
    PROCESSES = int(processes)
    use(PROCESSES)


def declines(workload: Workload) -> str | None:
    """Fewer heads than ranks."""
    if workload.kv_heads < PROCESSES:
        return f"{PROCESSES} processes need a head of key and value each, got {workload.kv_heads}"
    return None


def prepare(workload: Workload, query: Sharded, key: Sharded, value: Sharded) -> tuple[Sharded, ...]:
    """The arrays cut along their length, a part on every rank."""
    return spread(query, key, value)


def attend(
    query: Sharded, key: Sharded, value: Sharded, *, causal: bool, scale: float, enable_gqa: bool = False
) -> Sharded:
    """softmax(scale · Q Kᵀ) V: query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v)."""
    lengths = query.shape[2], key.shape[2]
    asked = {"lengths": lengths, "causal": causal, "scale": scale, "enable_gqa": enable_gqa}
    return on_ranks(of_heads, query, key, value, **asked)


def of_heads(
    ranks: Ranks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: tuple[int, int],
    causal: bool,
    scale: float,
    enable_gqa: bool,
) -> Tensor:
    """On one rank: all positions of its heads, attention, and all heads of its positions."""
    queries, keys = map(ranks.shares, lengths)
    of_keys = ranks.shares(key.shape[1])
    of_queries = [each * (query.shape[1] // key.shape[1]) for each in of_keys]
    query = to_heads(ranks, query, of_queries, queries)
    key, value = (to_heads(ranks, part, of_keys, keys) for part in (key, value))
    query, scale = positive_scale(query, scale)
    output = scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scale, enable_gqa=enable_gqa
    )
    return to_positions(ranks, output, of_queries, queries)


def to_heads(ranks: Ranks, part: Tensor, heads: list[int], positions: list[int]) -> Tensor:
    """(batch, heads, own positions, dim) of every rank to (batch, own heads, positions, dim)."""
    batch, _, own, dim = part.shape
    given = torch.cat([piece.reshape(-1) for piece in torch.split(part, heads, 1)])
    sizes = [batch * heads[ranks.rank] * each * dim for each in positions]
    found = ranks.exchange(given, [batch * each * own * dim for each in heads], sizes)
    pieces = zip(torch.split(found, sizes), positions, strict=True)
    return torch.cat([piece.view(batch, heads[ranks.rank], each, dim) for piece, each in pieces], 2)


def to_positions(ranks: Ranks, whole: Tensor, heads: list[int], positions: list[int]) -> Tensor:
    """(batch, own heads, positions, dim) of every rank to (batch, heads, own positions, dim)."""
    batch, mine, _, dim = whole.shape
    given = torch.cat([piece.reshape(-1) for piece in torch.split(whole, positions, 2)])
    own = positions[ranks.rank]
    sizes = [batch * each * own * dim for each in heads]
    found = ranks.exchange(given, [batch * mine * each * dim for each in positions], sizes)
    pieces = zip(torch.split(found, sizes), heads, strict=True)
    return torch.cat([piece.view(batch, each, own, dim) for piece, each in pieces], 1)

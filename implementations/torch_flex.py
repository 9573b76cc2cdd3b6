"""PyTorch's FlexAttention, compiled: tiles and online softmax, skipping blocks of keys that no query sees.

``torch.nn.attention.flex_attention`` (Dong et al. 2024, https://arxiv.org/abs/2412.05496) through torch.compile, which
writes a C++ kernel for the call. Soft cap, bias and ALiBi are its `score_mod`; causal masks, windows, lengths and
arrays are its `mask_mod`. A block mask says which blocks of 128 × 128 pairs are seen in part, in full or not at all.
Without a mask all blocks are seen in full, because without a block mask PyTorch takes all keys as one block.

A kernel is compiled for the shapes of a call, which takes seconds. If a head has fewer than 2^16 scores and no array is
looked up, it is compiled once for many shapes. Making the block mask visits every pair once. Both happen in the first
call.

Compiled for AVX2 by PyTorch 2.13, the kernel reads past the end of its arrays for some lengths, which makes rows of the
last head wrong: 8, 24, 40, … and 120 keys of head_dim 8 or 16 are declined.

On the CPU FlexAttention has no backward pass and no float64. It also returns no ln Z, with which sinks could be added.
So gradients, float64 and sinks are declined.

Time: 4·b·h·n_q·n_k·d floating-point operations over the blocks that are seen. Memory: the output, copies of key and
value for float16 and bfloat16, and a tile for each thread, O(n); the block mask takes eight bytes per block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from attnlab.libraries.library import Made
from attnlab.libraries.torch_attention import Compiled, tensor_of
from attnlab.workload.mask_kinds import band
from attnlab.workload.workload import Workload

LIBRARY = "torch"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 0, "outputs": 6.1}
ON_REQUEST = "it compiles for seconds at every shape"

_BLOCK = 128


class Seen(NamedTuple):
    """A mask without arrays.

    Query i sees key j if lowest ≤ j − i ≤ highest, None for no limit, and j < lengths[batch element].
    """

    n_q: int
    n_k: int
    lowest: int | None
    highest: int | None
    lengths: tuple[int, ...] | None


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why the kernel for the CPU cannot do it, or None."""
    if workload.device != "cpu":
        return "device", "attnlab has run FlexAttention on the CPU only"
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "device", "FlexAttention's kernel for the CPU needs AVX2 or AVX-512"
    if workload.dtype == "float64":
        return "dtype", "FlexAttention's kernel for the CPU has no float64"
    if workload.backward:
        return "direction", "FlexAttention has no backward pass on the CPU"
    past = workload.head_dim in (8, 16) and workload.keys < _BLOCK and workload.keys % 16 == 8
    if past and torch.backends.cpu.get_cpu_capability() == "AVX2":
        return "keys", f"FlexAttention reads past {workload.keys} keys of head_dim 8 or 16 (pytorch#159247)"
    return None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool = False,
    causal_bottom_right: bool = False,
    window: tuple[int, int] | None = None,
    window_bottom_right: tuple[int, int] | None = None,
    key_lengths: tuple[int, ...] | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias of four axes,
    broadcastable to (batch, heads, n_q, n_k).
    """
    n_q, n_k = query.shape[2], key.shape[2]
    lowest, highest = band(n_q, n_k, causal, causal_bottom_right, window, window_bottom_right)
    seen = Seen(
        n_q,
        n_k,
        None if lowest <= 1 - n_q else lowest,
        None if highest >= n_k - 1 else highest,
        key_lengths,
    )
    blocks = _blocks(seen) if mask is None else _array_blocks(mask, n_q, n_k)
    slopes = None if alibi_slopes is None else tensor_of(alibi_slopes, torch.float32)
    shift = 0 if slopes is None else n_k - n_q
    sizes = query.shape[1], key.shape[1], query.shape[3], value.shape[3]  # FlexAttention compiles them in
    asked = (scale, softcap, enable_gqa, shift, seen.lowest, seen.highest, key_lengths is None, sizes)
    arrays = (query, key, value, bias, slopes, mask, blocks.kv_indices)
    arguments = (query, key, value, bias, slopes, blocks, scale, softcap, shift, enable_gqa)
    # if the sizes of an array are open, PyTorch 2.13 writes C++ with wrong names of variables
    given = not (mask is None and bias is None and key_lengths is None)
    output: Tensor = _compiled(asked, arrays, arguments, own=given or n_q == 1)
    return output


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    blocks: BlockMask,
    scale: float,
    softcap: float | None,
    shift: int,
    enable_gqa: bool,
) -> Tensor:
    """The function that is compiled; the mask is in `blocks`."""
    added = None if bias is None else _looked_up(bias)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if added is not None:
            score = score + added(b, h, q, k)
        if slopes is not None:
            score = score - slopes[h] * torch.abs(q + shift - k)
        return score

    output: Tensor = flex_attention(
        query, key, value, score_mod=score_mod, block_mask=blocks, scale=scale, enable_gqa=enable_gqa
    )
    return output


_compiled = Compiled(_attention)


@functools.lru_cache(maxsize=64)
def _blocks(seen: Seen) -> BlockMask:
    """The block mask of a band and lengths."""
    n_q, n_k, lowest, highest, told = seen
    lengths = None if told is None else torch.tensor(told)

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        kept = b.new_ones((), dtype=torch.bool)
        if lowest is not None:
            kept = kept & (k - q >= lowest)
        if highest is not None:
            kept = kept & (k - q <= highest)
        return kept if lengths is None else kept & (k < lengths[b])

    return _block_mask(mask_mod, n_q, n_k, 1 if told is None else len(told), 1)


def _of_array(mask: Tensor, n_q: int, n_k: int) -> BlockMask:
    """The block mask of a boolean array of four axes."""
    return _block_mask(_looked_up(mask), n_q, n_k, *mask.shape[:2])


_array_blocks = Made(_of_array)


def _looked_up(array: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A function that gives the number of an array at (b, h, q, k); an axis of length 1 has one number for all."""
    long = [size > 1 for size in array.shape]
    values = array.squeeze()

    def at(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        index = tuple(one for one, kept in zip((b, h, q, k), long, strict=True) if kept)
        return values[index]

    return at


def _block_mask(mask_mod: Callable[..., Tensor], n_q: int, n_k: int, batch: int, heads: int) -> BlockMask:
    """The block mask of `mask_mod`, made one row of blocks at a time: PyTorch's own function holds the whole mask."""
    b = torch.arange(batch)[:, None, None, None]
    h = torch.arange(heads)[None, :, None, None]
    columns = torch.arange(n_k)
    some, every = [], []
    for start in range(0, n_q, _BLOCK):
        rows = torch.arange(start, min(start + _BLOCK, n_q))[:, None]
        seen = mask_mod(b, h, rows, columns).expand(batch, heads, len(rows), n_k)
        blocks = [seen[..., at : at + _BLOCK].flatten(-2) for at in range(0, n_k, _BLOCK)]
        some.append(torch.stack([one.any(-1) for one in blocks], dim=-1))
        every.append(torch.stack([one.all(-1) for one in blocks], dim=-1))
    full = torch.stack(every, dim=2)
    part = torch.stack(some, dim=2) & ~full
    return BlockMask.from_kv_blocks(
        *_listed(part), *_listed(full), BLOCK_SIZE=_BLOCK, mask_mod=mask_mod, seq_lengths=(n_q, n_k)
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of blocks of a row that are True, and the numbers of all its blocks, these first."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)

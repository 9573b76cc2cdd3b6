"""FlashInfer's attention over a batch of sequences, by its wrapper for prefill or for decoding, on CUDA.

``flashinfer.BatchPrefillWithRaggedKVCacheWrapper`` (https://github.com/flashinfer-ai/flashinfer, 0.2 or newer;
arXiv:2501.01005): the kernels that serving engines prefill with, in float16 and bfloat16, sums in float32, head_dim 64,
128, 256, or 192 with value_dim 128, grouped heads, soft cap. It has no backward pass.

It plans a batch once, on the host, and then computes it as often as is wanted: the plan, with the compilation of the
kernel that it needs, is made when a workload is prepared. Its arrays are (tokens of all sequences, heads, dim); the
inputs are laid out so when a workload is prepared, off the clock. Its causal mask and the left side of its window lie
along the bottom-right diagonal, and a window has no right side but the diagonal; top-left ones are told by leaving out
keys that no query sees, which copies the others in every call where there are several sequences. A scale of 0 or below
is folded into the query.

``wrapper=decode`` asks ``BatchDecodeWithPagedKVCacheWrapper`` instead, made for one query a sequence; with
``wrapper=decode_tensor_cores`` it is told to use tensor cores, as serving engines do where heads are grouped. Its
keys and values are read where they lie, as pages of at most 256 tokens that stand one after another.

Time: 4·b·h·n_q·n_k·d floating-point operations, of hidden tiles none. Memory: the output and a workspace of 128 MiB,
which is taken when a workload is prepared, O(n).
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.backends.keywords import told
from attnlab.libraries.foreign_kernels import positive_scale
from attnlab.libraries.library import required
from attnlab.libraries.torch_attention import KEYWORDS, Limits, Sides, refusal
from attnlab.workload.workload import Workload

flashinfer: Any = required("flashinfer", extra="flashinfer")

LIBRARY = "torch"
MEMORY = {"scores": 0, "outputs": 4.1}
SETTINGS = {"wrapper": ("prefill", "decode", "decode_tensor_cores")}
_wrapper = "prefill"

_LIMITS = Limits("FlashInfer", equal_dims=False, backward=False)
_DIMS = ((64, 64), (128, 128), (192, 128), (256, 256))
_WORKSPACE_BYTES = 128 * 2**20
#: tokens of a page, at most
_PAGE = 256


class Form(NamedTuple):
    """All that a plan depends on."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    sides: Sides
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    softcap: float | None


def configure(wrapper: str) -> None:
    """Which of its wrappers computes."""
    global _wrapper
    _wrapper = wrapper


def prepare(workload: Workload, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """The arrays, in memory as (batch, length, heads, dim), and the plan for them."""
    _, scale = positive_scale(query, workload.scale)
    _planned(_form(query, key, value, scale, workload.softcap, **(told(workload, KEYWORDS) or {})))
    return tuple(array.transpose(1, 2).contiguous().transpose(1, 2) for array in (query, key, value))


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
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ)) V over the keys that are seen.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (batch, kv_heads, n_k, d_v).
    """
    query, scale = positive_scale(query, scale)
    form = _form(query, key, value, scale, softcap, causal, causal_bottom_right, window, window_bottom_right)
    keys = form.sides.keys
    q, k, v = (array.transpose(1, 2).flatten(0, 1) for array in (query, key[:, :, :keys], value[:, :, :keys]))
    if _wrapper == "prefill":
        output: Tensor = _planned(form).run(q, k, v)
    else:
        output = _planned(form).run(q, tuple(one.view(-1, _page(form), *one.shape[1:]) for one in (k, v)))
    return output.view(form.batch, form.queries, form.heads, form.value_dim).transpose(1, 2)


def declines(workload: Workload) -> tuple[str, str] | None:
    """Why FlashInfer cannot do it, or None."""
    reason = _LIMITS.declines(workload)
    if reason:
        return reason
    dims = (workload.head_dim, workload.value_dim)
    if dims not in _DIMS:
        known = ", ".join("/".join(map(str, sorted(set(one), reverse=True))) for one in _DIMS)
        return (
            "head_dim",
            f"FlashInfer's kernels are made for head_dim {known}, got {'/'.join(map(str, dims))}",
        )
    if _wrapper != "prefill" and (workload.queries > 1 or dims[0] != dims[1]):
        return "queries", (
            f"its wrapper for decoding takes one query and value_dim = head_dim; leave out wrapper={_wrapper}"
        )
    sides = Sides.of_flags(workload, told(workload, KEYWORDS))
    if sides is None or sides.right > 0:
        return (
            "mask",
            "its band of keys cannot be told by FlashInfer's bottom-right causal mask and left window",
        )
    return refusal(attend if _wrapper == "prefill" else _of_one_query, workload)


def _of_one_query(query: Tensor, key: Tensor, value: Tensor, **asked: Any) -> Tensor:
    return attend(query[:, :, :1], key, value, **asked)


def _form(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None, *flags: Any, **named: Any
) -> Form:
    batch, heads, queries, head_dim = query.shape
    sides = Sides.of(queries, key.shape[2], *flags, **named)
    assert sides is not None, "declined"
    dims = (head_dim, value.shape[3])
    return Form(batch, heads, key.shape[1], queries, sides, *dims, query.dtype, query.device, scale, softcap)


@functools.lru_cache(maxsize=16)
def _planned(form: Form) -> Any:
    """The wrapper that computes `form`, planned now."""
    if _wrapper != "prefill":
        return _planned_decoding(form)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(_workspace(form.device), kv_layout="NHD")
    starts = torch.arange(form.batch + 1, dtype=torch.int32, device=form.device)
    wrapper.plan(
        starts * form.queries,
        starts * form.sides.keys,
        form.heads,
        form.kv_heads,
        form.head_dim,
        head_dim_vo=form.value_dim,
        causal=form.sides.right == 0,
        window_left=form.sides.left,
        logits_soft_cap=form.softcap,
        sm_scale=form.scale,
        q_data_type=form.dtype,
        kv_data_type=form.dtype,
    )
    return wrapper


def _planned_decoding(form: Form) -> Any:
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(form.device), kv_layout="NHD", use_tensor_cores=_wrapper == "decode_tensor_cores"
    )
    page = _page(form)
    made = functools.partial(torch.arange, dtype=torch.int32, device=form.device)
    pages = form.sides.keys // page
    wrapper.plan(
        made(form.batch + 1) * pages,
        made(form.batch * pages),
        torch.full((form.batch,), page, dtype=torch.int32, device=form.device),
        form.heads,
        form.kv_heads,
        form.head_dim,
        page,
        window_left=form.sides.left,
        logits_soft_cap=form.softcap,
        sm_scale=form.scale,
        q_data_type=form.dtype,
        kv_data_type=form.dtype,
    )
    return wrapper


def _page(form: Form) -> int:
    """Tokens of a page: of the keys of a sequence none is left over."""
    return math.gcd(form.sides.keys, _PAGE)


@functools.lru_cache(maxsize=1)
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)

"""Ring attention: every process holds a part of the length, and the keys and values go round.

Liu, Zaharia and Abbeel 2023 (arXiv:2310.01889), by the ring of PyTorch's own context parallel
(`torch.distributed.tensor.experimental`): a rank attends from its queries to the keys that it holds while these go on
to the next rank, and merges what it finds by ln Z; on the way back their gradients go round with them.
``[processes=N]`` says how many; they share the threads of one. By gloo on the CPU, NCCL on CUDA.

PyTorch's ``context_parallel`` itself takes its CUDA operators alone (2.13 says of the CPU's that it "does not have a
sharding strategy registered"), so its ring is called here with the flash operator of the device, as it calls it on
CUDA. It sends by all-to-all, where a rank holds two parts at a time, not all keys as its other way does. Parts are
merged here: PyTorch's own merging loses an answer beside larger values without weight (see `_Merged`).

A causal mask is balanced as there: of 2N stretches of the length rank r holds r and 2N - 1 - r, so that all ranks see
as many pairs.

On the clock are the attention and its communication: inputs lie cut on the ranks before, and the output stays cut.

Time: 4·b·h·n_q·n_k·d / N floating-point operations a rank, causal half of them and 1/N of that half more.
A rank sends (N - 1)/N of key and value; backward the same again and, in float32 at least, all of their gradients' part
N times. Memory: beside the kernel's, two to three times the rank's part of key and value, and of the output in float32.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnlab.libraries.host import positive_scale
from attnlab.libraries.torch_attention import ForcedKernel
from attnlab.libraries.torch_ranks_library import Sharded, on_ranks, spread, use
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    from attnlab.libraries.torch_rank import Ranks

LIBRARY = "torch_ranks"
ON_REQUEST = "it starts processes of its own"
SETTINGS = {"processes": ("2", "1", "3", "4", "6", "8", "16")}
PROCESSES = 2
#: two stretches of the length on every rank
PARTS = 2 * PROCESSES

_kernel = ForcedKernel("flash")
_LENGTH = 2
#: what the CUDA operator returns for its way back, beside output and ln Z
_KEPT = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")


def configure(processes: str) -> None:
    """So many ranks."""
    global PARTS, PROCESSES
    PROCESSES = int(processes)
    PARTS = 2 * PROCESSES if PROCESSES > 1 else 1
    use(PROCESSES)


def declines(workload: Workload) -> str | None:
    """What PyTorch's ring cannot cut, and what its kernel cannot do."""
    queries, keys = workload.queries, workload.keys
    if workload.causal and queries != keys:
        return f"PyTorch's ring is causal where queries and keys are as many, got {queries} and {keys}"
    if workload.causal and keys % (2 * PROCESSES):
        return f"a causal ring of {PROCESSES} processes needs a multiple of {2 * PROCESSES} positions, got {keys}"
    if keys % PROCESSES:
        return f"a ring of {PROCESSES} processes needs a multiple of {PROCESSES} keys, got {keys}"
    if queries < PROCESSES:
        return f"{PROCESSES} processes need a query each, got {queries}"
    return _kernel.declines(workload)


def prepare(workload: Workload, query: Sharded, key: Sharded, value: Sharded) -> tuple[Sharded, ...]:
    """The arrays cut along their length, a part on every rank; where causal, two stretches of it."""
    return spread(query, key, value, order=balanced if workload.causal else None)


def balanced(length: int, ranks: int) -> list[int]:
    """The positions in the order in which the ranks hold them: two of 2N stretches each, one from either end."""
    size = length // (2 * ranks)
    stretches = [at for rank in range(ranks) for at in (rank, 2 * ranks - 1 - rank)]
    return [position for at in stretches for position in range(at * size, (at + 1) * size)]


def attend(
    query: Sharded, key: Sharded, value: Sharded, *, causal: bool, scale: float, enable_gqa: bool = False
) -> Sharded:
    """softmax(scale · Q Kᵀ) V: query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d)."""
    return on_ranks(round_the_ring, query, key, value, causal=causal, scale=scale)


def round_the_ring(
    ranks: Ranks, query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float
) -> Tensor:
    """On one rank: its queries over the keys of all."""
    query, scale = positive_scale(query, scale)
    output: Tensor = _Ring.apply(query, key, value, causal, scale)  # type: ignore[no-untyped-call]
    return output


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Tensor:
        operators = torch.ops.aten
        on_cuda = query.is_cuda
        operator = (
            operators._scaled_dot_product_flash_attention
            if on_cuda
            else operators._scaled_dot_product_flash_attention_for_cpu
        )
        ring = _context_parallel(causal, query.dtype)._templated_ring_attention
        output: Tensor
        output, log_sum, *kept = ring(
            torch.distributed.group.WORLD, _LENGTH, operator, query, key, value, causal, scale=scale
        )
        ctx.save_for_backward(query, key, value, output, log_sum)
        ctx.kept = dict(zip(_KEPT, kept, strict=False)) if on_cuda else {}
        ctx.causal, ctx.scale = causal, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, output, log_sum = ctx.saved_tensors
        operators = torch.ops.aten
        operator = (
            operators._scaled_dot_product_flash_attention_backward
            if query.is_cuda
            else operators._scaled_dot_product_flash_attention_for_cpu_backward
        )
        ring = _context_parallel(ctx.causal, query.dtype)._templated_ring_attention_backward
        found = ring(
            torch.distributed.group.WORLD,
            _LENGTH,
            operator.default,
            grad_out=gradients[0],
            grad_out_name="grad_out",
            query=query,
            key=key,
            value=value,
            out=output,
            logsumexp=log_sum,
            is_causal=ctx.causal,
            dropout_p=0.0,
            scale=ctx.scale,
            **ctx.kept,
        )
        return *found[:3], None, None


class _Merged:
    """A rank's output and ln Z over the keys that it has seen, in float32 at least; for PyTorch's class of this use.

    With w the share of the new part, o becomes (1 − w)·o + w·o', 1 − w by its own sigmoid. PyTorch takes
    o − w·(o − o'): at w = 1 what is left of o' is what the difference held of it, and beside an o that is 10^8 times as
    large, of float32, that is nothing.
    """

    def __init__(self, convert_to_f32: bool, seq_dim: int) -> None:
        self._along = seq_dim
        self._found: tuple[Tensor, Tensor] | None = None

    def step(self, output: Tensor, log_sum: Tensor, partial: bool) -> None:
        """Take in a part; one that is `partial` is of the second half of the queries."""
        self._dtypes = output.dtype, log_sum.dtype
        output, log_sum = (one.to(torch.promote_types(one.dtype, torch.float32)) for one in (output, log_sum))
        if self._found is None:
            self._found = output, log_sum
            return
        rows = output.shape[self._along]
        held, total = (one.narrow(self._along, one.shape[self._along] - rows, rows) for one in self._found)
        share, rest = (torch.sigmoid(one).unsqueeze(-1) for one in (log_sum - total, total - log_sum))
        held.mul_(rest).addcmul_(output, share)
        torch.logaddexp(total, log_sum, out=total)

    def results(self) -> tuple[Tensor, Tensor]:
        """Output and ln Z, in the precision in which they came."""
        assert self._found is not None
        output, log_sum = (one.to(dtype) for one, dtype in zip(self._found, self._dtypes, strict=True))
        return output, log_sum


def _context_parallel(causal: bool, dtype: torch.dtype) -> ModuleType:
    """PyTorch's module, whose options are the process's, set for one call."""
    module = _module()
    module._cp_options.enable_load_balance = causal
    module._cp_options.convert_to_f32 = dtype != torch.float64  # it would round float64 to float32
    return module


@functools.cache
def _module() -> ModuleType:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention.set_rotate_method("alltoall")
    vars(_attention)["_SDPAMerger"] = _Merged
    return _attention

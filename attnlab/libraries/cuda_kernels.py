"""What PyTorch's extensions with kernels for CUDA share: what they take, a trial on the device, and their band masks.

These kernels know a band of the score matrix by its place along the bottom-right diagonal alone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from attnlab.backend.keywords import told
from attnlab.errors import Unavailable
from attnlab.problem.mask_kinds import band
from attnlab.problem.workload import Workload

#: the number formats that tensor cores multiply without losing any of their digits
HALVES = ("float16", "bfloat16")
#: heads, queries and keys of a trial: lengths that every kernel tiles
_TRIAL = (2, 16, 16)

Attend = Callable[..., Any]


class Limits(NamedTuple):
    """What a family of kernels takes, whatever is asked of it."""

    library: str
    dtypes: Collection[str] = HALVES
    largest_head_dim: int = 256
    equal_dims: bool = True
    backward: bool = True

    def declines(self, workload: Workload) -> str | None:
        """Why these kernels cannot do `workload`, or None."""
        w = workload
        if w.device != "cuda":
            return f"{self.library} computes on CUDA only, not on {w.device}"
        if w.dtype not in self.dtypes:
            return f"{self.library} computes in {' and '.join(self.dtypes)} only, not in {w.dtype}"
        if self.equal_dims and w.value_dim != w.head_dim:
            return f"{self.library} needs value_dim = head_dim, got {w.value_dim} and {w.head_dim}"
        if max(w.head_dim, w.value_dim) > self.largest_head_dim:
            return f"{self.library} has no head_dim above {self.largest_head_dim}, got {w.head_dim}"
        if w.backward and not self.backward:
            return f"{self.library} has no backward pass"
        return None


def dense_rows(*arrays: Any) -> tuple[Any, ...]:
    """The arrays, copied where their last axis has gaps."""
    return tuple(one if one.stride(-1) == 1 else one.contiguous() for one in arrays)


def at_least(module: Any, release: tuple[int, int], why: str) -> None:
    """Raises Unavailable, with the reason, where the version of `module` is older than `release`."""
    found = str(getattr(module, "__version__", "0.0"))
    numbers = [int("".join(filter(str.isdigit, part)) or 0) for part in found.split(".")[:2]]
    if tuple(numbers) < release:
        wanted = ".".join(map(str, release))
        raise Unavailable(
            f"{module.__name__} {found} is too old: {why}; pip install '{module.__name__}>={wanted}'"
        )


def refusal(attend: Attend, workload: Workload) -> str | None:
    """What a kernel says against so small a call of the same format and dimensions, or None; tried once for each.

    For what no documentation tells: too old a device, a kernel that was not built, a compiler that is missing.
    """
    group = workload.heads // workload.kv_heads
    return _tried(attend, workload.dtype, group, workload.head_dim, workload.value_dim, workload.backward)


@functools.cache
def _tried(
    attend: Attend, dtype: str, group: int, head_dim: int, value_dim: int, gradients: bool
) -> str | None:
    torch: Any = importlib.import_module("torch")
    heads, queries, keys = _TRIAL
    shapes = ((1, heads * group, queries, head_dim), (1, heads, keys, head_dim), (1, heads, keys, value_dim))
    made = {"dtype": getattr(torch, dtype), "device": "cuda", "requires_grad": gradients}
    try:
        arrays = [torch.zeros(*shape, **made) for shape in shapes]
        with torch.set_grad_enabled(gradients):
            output = attend(*arrays, scale=1.0, enable_gqa=group > 1)
        if gradients:
            torch.autograd.grad(output, arrays, torch.zeros_like(output))
        torch.cuda.synchronize()
    except Exception as refused:  # whatever it raises, it does not compute this
        said = " ".join(str(refused).split())[:200] or type(refused).__name__
        return f"on this device it says: {said}"
    return None


#: the keywords of `attend` that say a band
KEYWORDS = ("causal", "causal_bottom_right", "window", "window_bottom_right")


class Sides(NamedTuple):
    """Query i of n_q sees key j of the first `keys` where −left ≤ j − (i + keys − n_q) ≤ right; −1 for no limit."""

    keys: int
    left: int
    right: int

    @classmethod
    def of(cls, n_q: int, n_k: int, *flags: Any, **named: Any) -> Sides | None:
        """What these `KEYWORDS` say together of n_q queries and n_k keys; None where this diagonal cannot.

        Keys that no query sees are left out first, which moves the diagonal: with as many keys as queries left, it is
        the top-left one. It cannot where no query sees a key, or where the last one sees none.
        """
        lowest, highest = band(n_q, n_k, *flags, **named)
        keys = min(n_k, n_q + highest)
        shift = keys - n_q
        from_the_first = lowest <= 1 - n_q
        if keys < 1 or not (from_the_first or lowest <= shift):
            return None
        return cls(
            keys, -1 if from_the_first else shift - lowest, -1 if highest >= keys - 1 else highest - shift
        )

    @classmethod
    def asked(cls, workload: Workload) -> Sides | None:
        """What the mask of `workload` is along this diagonal; None also where it is no band."""
        flags = told(workload, KEYWORDS)
        return None if flags is None else cls.of(workload.queries, workload.keys, **flags)

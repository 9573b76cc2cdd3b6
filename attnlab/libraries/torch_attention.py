"""What backends on PyTorch share: the formula, a forced kernel, CUDA kernels of other packages, torch.compile.

`attend` is matmul, softmax, matmul, for backends that run it eagerly or compiled.

`ForcedKernel` forces one kernel of ``scaled_dot_product_attention``. Which kernels the dispatcher may choose is a state
of the whole process. It is set before every call and restored after it, so that a caller's own choice holds everywhere
else. PyTorch's context manager ``sdpa_kernel`` takes 9 to 14 µs per call for that (PyTorch 2.13, CPU; a whole call at
n = 64 takes 21 µs). The switches under ``torch.backends.cuda``, which the CPU dispatcher obeys too, take 2 to 3 µs with
this class. This time is part of the measured time. Leaving the state set between calls would take no time, but it would
change the process.

`Limits`, `Sides` and `refusal` are for packages with CUDA kernels: what they support, their band masks, and a trial on
the device. These kernels support only bands along the bottom-right diagonal of the score matrix.

`Compiled` compiles a function once for each kind of call. It does not compile again on the clock, and never
runs the function uncompiled.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import sysconfig
import types
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.backends.cuda
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlab.errors import Unavailable
from attnlab.libraries.library import positive_scale
from attnlab.text import one_line
from attnlab.workload.mask_kinds import Causal, band
from attnlab.workload.masks import EVERYTHING, Mask
from attnlab.workload.workload import GIVEN, Workload

Attend = Callable[..., Any]
Kernel = Literal["flash", "efficient", "math", "cudnn"]

#: the switches under `torch.backends.cuda`, by the kernel that they allow
_SWITCHES = {"flash": "flash_sdp", "efficient": "mem_efficient_sdp", "math": "math_sdp", "cudnn": "cudnn_sdp"}
#: the number formats whose products tensor cores compute exactly
HALVES = ("float16", "bfloat16")
#: heads, queries and keys of a trial; the lengths fit the tiles of every kernel
_TRIAL = (2, 16, 16)
#: the keywords of `attend` for a band
KEYWORDS = ("causal", "causal_bottom_right", "window", "window_bottom_right")
#: a call with at least this many scores per head is compiled for its own shapes, others once for many shapes
OWN_SHAPES = 2**16
#: modules with the settings of the compiler, imported only if something is compiled
_SETTINGS = ("torch._dynamo.config", "torch._inductor.config", "torch.fx.experimental._config")


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    scale: float,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,).
    """
    asked: dict[str, Any] = {"causal": causal, "scale": scale, "bias": bias, "softcap": softcap}
    scores, value = _scored(query, key, value, mask=mask, enable_gqa=enable_gqa, **asked)
    return _weights(scores, mask, sinks) @ value


@functools.wraps(attend)
def attend_with_log_sum(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Any = None, sinks: Any = None, **asked: Any
) -> tuple[Tensor, Tensor]:
    """What `attend` returns, and ln Z, (batch, heads, n_q), −inf where no key is seen.

    ln Z is computed in float32 from the rounded scores: in bfloat16 its error would be some per cent.
    """
    scores, value = _scored(query, key, value, mask=mask, **asked)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if sinks is not None:
        wide = torch.cat((wide, sinks[:, None, None].to(wide.dtype).expand(*wide.shape[:-1], 1)), dim=-1)
    return _weights(scores, mask, sinks) @ value, torch.logsumexp(wide, dim=-1)


def _scored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    scale: float,
    mask: Tensor | None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scores, (batch, heads, n_q, n_k), -inf where a key is not seen; and values, repeated for the query's heads."""
    if enable_gqa:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = query @ key.transpose(-2, -1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores if mask is None else scores.masked_fill(~mask, float("-inf")), value


def _weights(scores: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
    """The softmax of the scores, with a sink in the sum; 0 where no key is seen."""
    if sinks is not None:
        sink = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    weights = torch.softmax(scores, dim=-1)
    # the softmax of a row that sees no key is NaN
    return weights if mask is None else weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


class ForcedKernel:
    """``scaled_dot_product_attention`` with one kernel allowed and no other.

    Not for several threads at once: the dispatcher has one state for the process, as with ``sdpa_kernel``.
    """

    def __init__(self, kernel: Kernel) -> None:
        cuda = torch.backends.cuda
        self._kernel: Kernel = kernel
        #: for each kernel: a function that reports if it is allowed, one that allows or forbids it, and if it is wanted
        self._switches = [
            (getattr(cuda, f"{switch}_enabled"), getattr(cuda, f"enable_{switch}"), name == kernel)
            for name, switch in _SWITCHES.items()
        ]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool,
        scale: float,
        attn_mask: Tensor | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """softmax(scale · Q Kᵀ + bias) V over the keys that are seen, by this kernel.

        query: (batch, heads, n_q, d), key: (batch, kv_heads, n_k, d), value: (…, n_k, d_v), attn_mask broadcastable to
        (batch, heads, n_q, n_k). A scale of 0 or below is folded into the query (`positive_scale`). If the last axis of
        an input is not contiguous, the inputs are copied. Raises RuntimeError if the kernel cannot do it.
        """
        query, scale = positive_scale(query, scale)
        if not query.stride(-1) == key.stride(-1) == value.stride(-1) == 1:
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        before = [allowed() for allowed, _, _ in self._switches]
        try:
            for _, allow, wanted in self._switches:
                allow(wanted)
            return scaled_dot_product_attention(
                query, key, value, attn_mask=attn_mask, is_causal=causal, scale=scale, enable_gqa=enable_gqa
            )
        finally:
            for (_, allow, _), was_allowed in zip(self._switches, before, strict=True):
                allow(was_allowed)

    def declines(self, workload: Workload) -> tuple[str, str] | None:
        """Why this kernel cannot do `workload`, or None: a known limit, or the error of a tiny trial."""
        if self._kernel == "math":
            return None  # it can do everything that the keywords express
        return _known_limit(self._kernel, workload) or _refusal(self, _trial(workload))


def _known_limit(kernel: Kernel, w: Workload) -> tuple[str, str] | None:
    """The limits that PyTorch documents or that its dispatcher checks, in words for users."""
    name = {"efficient": "memory-efficient", "cudnn": "cuDNN"}.get(kernel, kernel)
    on_cpu = w.device == "cpu"
    if on_cpu and kernel in ("efficient", "cudnn"):
        return "device", f"PyTorch has no {name} kernel for the CPU; it runs on CUDA only"
    if kernel == "flash" and w.value_dim != w.head_dim:
        got = f"got value_dim {w.value_dim} and head_dim {w.head_dim}"
        return "value_dim", f"the flash kernel needs value_dim = head_dim, {got}"
    if not on_cpu and kernel in ("flash", "cudnn") and w.dtype not in HALVES:
        return "dtype", f"the {name} kernel on CUDA computes in float16 and bfloat16 only, not in {w.dtype}"
    if kernel == "efficient" and w.dtype == "float64":
        return "dtype", "the memory-efficient kernel has no float64"
    if not on_cpu and kernel == "flash" and w.causal == "top_left" and w.queries != w.keys:
        aligned = "the flash kernel's causal mask is bottom-right on CUDA: it needs as many queries as keys"
        return "causal", f"{aligned}, got {w.queries} and {w.keys}"
    return None


def _trial(workload: Workload) -> Workload:
    """A small workload that keeps what kernels distinguish: which length is longer, a length of 1, grouped heads."""
    shortest, longest = (
        1 if one == 1 else size for one, size in zip(sorted(workload.shape[2:]), (8, 16), strict=True)
    )
    flagged = workload.bias == "none" and workload.masked == Mask((Causal(),))
    masked = workload.mask == GIVEN or (workload.masked != EVERYTHING and not flagged)
    equal = workload.queries == workload.keys
    return Workload(
        device=workload.device,
        dtype=workload.dtype,
        heads=2,
        kv_heads=2 if workload.heads == workload.kv_heads else 1,
        queries=shortest if workload.queries < workload.keys else longest,
        keys=longest if equal or workload.queries < workload.keys else shortest,
        head_dim=workload.head_dim,
        value_dim=workload.value_dim,
        causal="top_left" if flagged else False,
        bias="none" if workload.bias == "none" else GIVEN,
        mask=GIVEN if masked and workload.bias == "none" else "",
        direction="training" if workload.backward else "forward",
    )


@functools.cache
def _refusal(forced: ForcedKernel, trial: Workload) -> tuple[str, str] | None:
    """The reason that PyTorch gives if it cannot compute the workload `trial`, or None.

    The answer is cached, because PyTorch gives some of its reasons only once in a process.
    """
    made: dict[str, Any] = {"dtype": getattr(torch, trial.dtype), "device": trial.device}
    added = torch.zeros(1, 1, trial.queries, trial.keys, **made)
    attend = functools.partial(
        forced.attend,
        scale=1.0,
        attn_mask=added if trial.bias == GIVEN else added == 0 if trial.mask == GIVEN else None,
        causal=bool(trial.causal),
        enable_gqa=trial.heads != trial.kv_heads,
    )
    shapes = (
        (1, trial.heads, trial.queries, trial.head_dim),
        (1, trial.kv_heads, trial.keys, trial.head_dim),
        (1, trial.kv_heads, trial.keys, trial.value_dim),
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            _try(attend, shapes, gradients=trial.backward, **made)
        except RuntimeError as refused:
            # leave out headings, other kernels, and the place in the sources where a warning was raised
            said = (" ".join(str(one.message).partition("(Triggered internally")[0].split()) for one in found)
            reasons = [one for one in said if one and not one.endswith(":") and "runtime disabled" not in one]
            told = "; ".join(dict.fromkeys(reasons)) or one_line(str(refused).partition("\n")[0], 200)
            return "", f"PyTorch says: {told}"
    return None


def _try(attend: Attend, shapes: Sequence[tuple[int, ...]], *, gradients: bool, **made: Any) -> None:
    """Call `attend` on zeros, with gradients if they are asked for."""
    arrays = [torch.zeros(*shape, requires_grad=gradients, **made) for shape in shapes]
    with torch.set_grad_enabled(gradients):
        output = attend(*arrays)
    if gradients:
        torch.autograd.grad(output, arrays, torch.zeros_like(output))


@functools.lru_cache(maxsize=64)
def tensor_of(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """The numbers as a tensor on the device; cached, so that they are copied there once."""
    return torch.tensor(numbers, dtype=dtype, device=device)


class Limits(NamedTuple):
    """The limits of a family of kernels."""

    library: str
    dtypes: Collection[str] = HALVES
    largest_head_dim: int = 256
    equal_dims: bool = True
    backward: bool = True

    def declines(self, w: Workload) -> tuple[str, str] | None:
        """Why these kernels cannot do a workload, or None."""
        equal, largest = w.value_dim == w.head_dim, max(w.head_dim, w.value_dim)
        formats, dims = " and ".join(self.dtypes), f"{w.value_dim} and {w.head_dim}"
        most = self.largest_head_dim
        limits = {
            "device": (w.device == "cuda", f"computes on CUDA only, not on {w.device}"),
            "dtype": (w.dtype in self.dtypes, f"computes in {formats} only, not in {w.dtype}"),
            "value_dim": (equal or not self.equal_dims, f"needs value_dim = head_dim, got {dims}"),
            "head_dim": (largest <= most, f"has no head_dim above {most}, got {w.head_dim}"),
            "direction": (self.backward or not w.backward, "has no backward pass"),
        }
        lacking = [(name, f"{self.library} {why}") for name, (fits, why) in limits.items() if not fits]
        return lacking[0] if lacking else None


def dense_rows(*arrays: Any) -> tuple[Any, ...]:
    """The arrays; one whose last axis has gaps is copied."""
    return tuple(one if one.stride(-1) == 1 else one.contiguous() for one in arrays)


def refusal(attend: Attend, workload: Workload) -> tuple[str, str] | None:
    """The error of a kernel in a small call of the same format and dimensions, or None. Each kind is tried once.

    This finds reasons that are not documented: a device that is too old, a kernel that was not built, no compiler.
    """
    group = workload.heads // workload.kv_heads
    return _tried(attend, workload.dtype, group, workload.head_dim, workload.value_dim, workload.backward)


@functools.cache
def _tried(
    attend: Attend, dtype: str, group: int, head_dim: int, value_dim: int, gradients: bool
) -> tuple[str, str] | None:
    heads, queries, keys = _TRIAL
    shapes = ((1, heads * group, queries, head_dim), (1, heads, keys, head_dim), (1, heads, keys, value_dim))
    asked = functools.partial(attend, scale=1.0, enable_gqa=group > 1)
    try:
        _try(asked, shapes, gradients=gradients, dtype=getattr(torch, dtype), device="cuda")
        torch.cuda.synchronize()
    except Exception as refused:  # any error means that the kernel cannot compute this
        said = one_line(str(refused), 200) or type(refused).__name__
        return "", f"on this device it says: {said}"
    return None


class Sides(NamedTuple):
    """Query i of n_q sees key j of the first `keys` if −left ≤ j − (i + keys − n_q) ≤ right; −1 for no limit."""

    keys: int
    left: int
    right: int

    @classmethod
    def of(cls, n_q: int, n_k: int, *flags: Any, **named: Any) -> Sides | None:
        """The band of these `KEYWORDS` for n_q queries and n_k keys; None if this diagonal cannot express it.

        Keys at the end that no query sees are cut off first, which moves the diagonal: if as many keys as queries are
        left, it is the top-left one. The band cannot be expressed if no query sees a key, or the last query sees none.
        """
        lowest, highest = band(n_q, n_k, *(flags or map(named.get, KEYWORDS)))
        keys = min(n_k, n_q + highest)
        shift = keys - n_q
        from_the_first = lowest <= 1 - n_q
        if keys < 1 or not (from_the_first or lowest <= shift):
            return None
        return cls(
            keys, -1 if from_the_first else shift - lowest, -1 if highest >= keys - 1 else highest - shift
        )

    @classmethod
    def of_flags(cls, workload: Workload, flags: Mapping[str, Any] | None) -> Sides | None:
        """The band of the mask of `workload`, given by these flags; None also without flags, as it is then no band."""
        return None if flags is None else cls.of(workload.queries, workload.keys, **flags)


# -- torch.compile ---------------------------------------------------------------------------------------


class Compiled:
    """`function`, compiled when a kind of call is first made. The result stays for the life of the process.

    torch.compile stores all compiled versions with the code of the function, searches them at every call, and after
    eight kinds of arguments silently runs the function uncompiled. Here each kind of call has its own copy of the code,
    and a function that cannot be compiled as a whole raises an error.

    Raises Unavailable if torch.compile cannot build its code: Inductor's loops for the CPU are C++.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        compiler, headers = os.environ.get("CXX") or "g++", Path(sysconfig.get_path("include"))
        if shutil.which(compiler) is None:
            raise Unavailable(
                f"torch.compile needs a C++ compiler, and {compiler} is not there; install g++, or set CXX"
            )
        if not (headers / "Python.h").exists():
            raise Unavailable(
                f"torch.compile needs Python's headers, and {headers} has none; install python3-dev"
            )
        assert isinstance(function, types.FunctionType), "what is compiled has code"
        self._function = function
        self._found: dict[Hashable, Callable[..., Any]] = {}
        self._tracing, self._compiling, self._shapes = map(importlib.import_module, _SETTINGS)

    def __call__(
        self,
        asked: tuple[Hashable, ...],
        arrays: tuple[Any, ...],
        arguments: tuple[Any, ...],
        own: bool = False,
        **options: Any,
    ) -> Any:
        """``function(*arguments, **options)``.

        asked : the numbers and flags among the arguments that decide the code; fractions are compiled in. arrays : the
        tensors among the arguments, query and key first, or None. own : compile for these shapes even if they are
        small. If shapes are left open, whole numbers in `asked` are left open too.
        """
        own = own or arrays[0].shape[2] * arrays[1].shape[2] >= OWN_SHAPES
        # torch.compile treats 0 and 1 as constants; other whole numbers are left open
        opened = ["whole number" if type(one) is int and one not in (0, 1) else one for one in asked]
        kind = (
            asked if own else tuple(opened),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            *[None if one is None else _deciding(one, own) for one in arrays],
        )
        found = self._found.get(kind)
        if found is not None:
            return found(*arguments, **options)
        compiled = torch.compile(_copied(self._function), fullgraph=True, dynamic=not own)
        with (
            # PyTorch now imports modules of its own that warn of deprecation
            warnings.catch_warnings(action="ignore"),
            # a scale is compiled in: as an input it would keep Inductor from recognising attention
            self._tracing.patch(specialize_float=True),
            # no pool of compiler processes that would stay during the measurement
            self._compiling.patch(compile_threads=1),
            # two lengths that are equal in this call may differ in another one
            self._shapes.patch(use_duck_shape=False),
        ):
            output = compiled(*arguments, **options)
        self._found[kind] = compiled
        return output


def _deciding(array: Tensor, own: bool) -> Hashable:
    """The properties of an array that decide the code: its sizes, or, if they are left open, which of them are 1."""
    shape, strides = tuple(array.shape), array.stride()
    if own:
        return array.dtype, array.requires_grad, shape, strides
    return (
        array.dtype,
        array.requires_grad,
        array.is_contiguous(),
        tuple(one == 1 for one in shape),
        tuple(min(one, 2) for one in strides),
    )


def _copied(function: types.FunctionType) -> types.FunctionType:
    """The same function with its own code object."""
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied

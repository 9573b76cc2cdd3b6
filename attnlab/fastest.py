"""`fastest`: PyTorch's ``scaled_dot_product_attention``, but each call uses the backend that a run found fastest.

A call goes to another backend only under two conditions. The run shows that this backend is right and clearly faster
than PyTorch's own function at the nearest measured workload of the same kind. And this process is in the same state as
during the measurement. All other calls go to PyTorch's own function, and `Fastest.explain` says why.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import scaled_dot_product_attention as own_function

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.backends.discovery import digest, on_request
from attnlab.backends.keywords import given_nothing
from attnlab.environment import environment
from attnlab.errors import Unavailable
from attnlab.runs.store import Run, read_run
from attnlab.stats.analysis import Cell
from attnlab.stats.intervals import Kind, Verdict, verdicts_against
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

#: the backend that is PyTorch's own function
OWN = "torch_sdpa"
#: most calls whose choice is kept; decoding has a new length at every step
_REMEMBERED = 8192
#: entries of a run's environment that must be the same here
_MACHINE = ("cpu", "cpu_features", "cores")
_AXES = 4
#: queries, keys, and batch × heads: they may differ from the measured ones by a factor
_Sizes = tuple[int, int, int]
_Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Choice:
    """Which backend computes a call, and why.

    backend : its name; "torch_sdpa" is PyTorch's own function.
    why : the reason in one sentence.
    workload : the nearest measured workload; None if none is of the call's kind or near enough.
    distance : the largest factor, 1 or more, by which a size of the call differs from that workload.
    verdict : the backend against PyTorch's own function there; None if the backend is that function.
    left_out : backends that were faster there but may not compute the call, with the reasons.
    """

    backend: str
    why: str
    workload: Workload | None = None
    distance: float | None = None
    verdict: Verdict | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


class Fastest:
    """A function with the signature of ``torch.nn.functional.scaled_dot_product_attention``, made by `fastest`."""

    def __init__(self, run: Run, *, factor: float, compiled: bool, elsewhere: bool) -> None:
        if not isinstance(factor, int | float) or not factor >= 1:
            raise ValueError(f"factor must be 1 or more, got {factor!r}")
        self._run, self._factor, self._compiled = run, factor, compiled
        self._measured: dict[Workload, dict[_Sizes, list[Cell]]] = {}
        for cell in run.judged().cells:
            if cell.measured:
                alike = self._measured.setdefault(_kind_of(cell.workload), {})
                alike.setdefault(_sizes_of(cell.workload), []).append(cell)
        if not self._measured:
            holds = f"{run.folder} holds no measured speed of a call of scaled_dot_product_attention"
            raise ValueError(f"{holds}; measure forward or training, with torch_sdpa among the backends")
        pools = run.environment.get("contenders", {}).get(OWN, {}).get("pools", ())
        counts = (pool.get("num_threads") for pool in pools if pool.get("user_api") == "openmp")
        #: number of threads with which PyTorch's own function was measured; None if unknown
        self._threads = max((count for count in counts if isinstance(count, int)), default=None)
        self._elsewhere = None if elsewhere else _measured_elsewhere(run)
        if self._elsewhere:
            warnings.warn(f"{self._elsewhere}: every call goes to PyTorch's own", stacklevel=3)
        self._remembered: dict[Any, tuple[Choice, _Attend | None]] = {}

    def __repr__(self) -> str:
        return f"attnlab.fastest({str(self._run.folder)!r})"

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """softmax(scale · Q Kᵀ + attn_mask) V, (batch, heads, n_q, d_v), computed by the backend that `explain` names.

        query: (batch, heads, n_q, d), key: (batch, kv_heads, n_k, d), value: (batch, kv_heads, n_k, d_v), attn_mask:
        broadcastable to (batch, heads, n_q, n_k), booleans (True keeps a score) or numbers to add to the scores.
        """
        if not torch.compiler.is_compiling():
            attend = self._find(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)[1]
            if attend is not None:
                return attend(query, key, value)
        return own_function(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def explain(self, *call: Any, **named: Any) -> Choice:
        """Which backend would compute a call with these arguments, and why. Nothing is computed."""
        given = inspect.signature(self).bind(*call, **named)
        given.apply_defaults()
        return self._find(*given.arguments.values())[0]

    def _find(self, *asked: Any) -> tuple[Choice, _Attend | None]:
        """The choice for a call, and the function to call; None for PyTorch's own. Both are kept for equal calls."""
        reason = self._elsewhere or _unmeasured(asked[:4], self._threads)
        if reason:
            return Choice(OWN, reason), None
        grad, tensors = torch.is_grad_enabled(), asked[:3]
        kinds = [(one.dtype, one.device, grad and one.requires_grad) for one in tensors]
        question = (*kinds, *((one.shape, one.stride()) for one in tensors), *asked[4:])
        if question not in self._remembered:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            try:
                self._remembered[question] = self._choose(*asked)
            except ValueError as outside:
                self._remembered[question] = Choice(OWN, str(outside)), None
        return self._remembered[question]

    def _choose(self, *asked: Any) -> tuple[Choice, _Attend | None]:
        """Like `_find`, without the kept choices. Raises ValueError for a call outside what was measured."""
        call = _asked(asked[:3], *asked[4:])
        cell, distance = self._nearest(call)
        by_name, workload = cell.measured, cell.workload
        left_out: dict[str, str] = {}
        verdicts = verdicts_against(by_name.values(), OWN, margin=cell.margin)
        for name in sorted(verdicts, key=lambda name: verdicts[name].ratio):
            verdict = verdicts[name]
            if verdict.kind is not Kind.FASTER:
                continue
            found = self._able(by_name[name], call)
            if not isinstance(found, str):
                why = f"the fastest that is right at {workload.label}, {1 / verdict.ratio:.2f}× faster than {OWN}"
                return Choice(name, why, workload, distance, verdict, left_out), _function(found, call)
            left_out[name] = found
        why = f"nothing that may answer was clearly faster than {OWN} at {workload.label}"
        if OWN not in by_name:
            why = f"{OWN} was not measured at {workload.label}: nothing is known to be faster"
        return Choice(OWN, why, workload, distance, None, left_out), None

    def _nearest(self, call: Workload) -> tuple[Cell, float]:
        """The nearest workload that was measured, and its distance. Raises ValueError if it is too far.

        If several workloads have the nearest sizes, it is the one that has the most fields in common with the call.
        """

        def apart(other: _Sizes) -> list[float]:
            pairs = zip(_sizes_of(call), other, strict=True)
            return sorted((max(pair) / min(pair) for pair in pairs), reverse=True)

        measured = self._measured.get(_kind_of(call))
        if measured is None:
            raise ValueError(f"nothing of the kind of {call.label} was measured")
        nearest = min(measured, key=apart)
        distance = apart(nearest)[0]
        asked = asdict(call).items()
        cell = min(measured[nearest], key=lambda one: len(asdict(one.workload).items() - asked))
        if distance > self._factor:
            far = f"its sizes differ by a factor of up to {distance:.3g} from the nearest measured workload"
            raise ValueError(f"{far}, {cell.workload.label}, and {self._factor:g} is allowed")
        return cell, distance

    def _able(self, result: Result, call: Workload) -> Backend | str:
        """The backend of the contender in `result`, or why it may not compute the call."""
        folders, told = self._run.plan.folders, self._run.environment.get("contenders", {})
        backend = _loaded(result.contender, result.backend, result.library, folders, self._compiled)
        if isinstance(backend, str):
            return backend
        measured, now = told.get(result.contender, {}).get("file"), digest(result.backend, folders)
        if measured not in (None, now):
            return "its file has changed since it was measured"
        if result.computes_in is not None:
            return f"it computes in {result.computes_in}, less precisely than its inputs"
        rounded = result.accuracy is not None and "scores" in (result.accuracy.kind or "")
        if call.dtype == "float16" and rounded:
            return "it rounds its scores to float16, and answers NaN where one is beyond 65504"
        if call.causal and "causal" not in backend.options:
            return "it takes no causal"
        refusal = backend.declines(call)
        return backend if refusal is None else refusal.reason


@lru_cache
def _loaded(
    name: str, backend: str, library: str | None, folders: tuple[str, ...], compiled: bool
) -> Backend | str:
    """The `backend` of the contender `name`, loaded in this process, or why it may compute no call at all."""
    if library not in (None, "torch"):
        return f"it computes on arrays of {library}, not on tensors"
    try:
        slow = on_request(backend, folders)
        if slow and not compiled:
            return f"{slow}; fastest(..., compiled=True) lets it answer"
        found = in_this_process(name, folders)
    except (ValueError, Unavailable) as fault:
        return str(fault)
    if found.library != "torch" or found.prepare is not None:
        return "it converts tensors before the clock starts, and that time was not measured"
    return found


def fastest(
    run: Run | Path | str, *, factor: float = 2.0, compiled: bool = False, elsewhere: bool = False
) -> Fastest:
    """A function like ``scaled_dot_product_attention`` that sends each call to the fastest measured backend.

    run : a run, or its folder. A call goes to the fastest backend that is right and clearly faster than PyTorch's own
    at the nearest measured workload of the same device, dtype, mask (none or causal), head dimensions, grouping of
    heads and direction (training if gradients may be needed, else forward).

    PyTorch's own function computes all other calls: attn_mask, dropout, a size beyond `factor` times the nearest
    measured one, autocast, torch.compile, torch.func, deterministic algorithms, another number of threads, and
    everything that the run did not race against ``torch_sdpa``. `explain`, with the same arguments, gives the reason.

    factor : queries, keys, and batch × heads may each differ by this factor, 1 or more, from the measured workload.
    compiled : also use backends that race only if they are named; most of them compile for seconds at every new shape.
    elsewhere : use the run even if it was measured on another processor or with another PyTorch. Otherwise such a run
    gives a warning, and every call goes to PyTorch's own function.

    A backend that forces one of PyTorch's kernels changes a state of the whole process during its call, as
    ``sdpa_kernel`` does: do not call from several threads at once.

    Raises ValueError for a folder without a run, for a run that measured no such call, and for a factor below 1.
    """
    found = run if isinstance(run, Run) else read_run(run)
    return Fastest(found, factor=factor, compiled=compiled, elsewhere=elsewhere)


def _kind_of(one: Workload) -> Workload:
    """The kind of a workload, which must be as measured: all but sizes, scale, and layout and values of the inputs.

    A single query is a separate kind. With as many queries as keys, both alignments of a causal mask are the same.
    """
    aligned = {"causal": "top_left"} if one.causal and one.queries == one.keys else {}
    drawn = {"scale": 1.0, "distribution": "normal", "seed": 0, "layout": "bhsd"}
    sizes = {"batch": 1, "heads": one.heads // one.kv_heads, "kv_heads": 1, "queries": min(2, one.queries)}
    try:
        return one.with_(**sizes, keys=2, **drawn, **aligned)
    except ValueError:  # its mask does not fit these sizes: no call has such a mask
        return one


def _sizes_of(one: Workload) -> _Sizes:
    return one.queries, one.keys, one.batch * one.heads


def _asked(
    arrays: Sequence[Tensor], dropout: float, causal: bool, scale: float | None, gqa: bool
) -> Workload:
    """The workload of a call. Raises ValueError if no measured workload can be like it."""
    if any(one.ndim != _AXES or 0 in one.shape or one.stride(-1) != 1 for one in arrays):
        raise ValueError("only arrays of four axes were measured, none of them empty, the last contiguous")
    (batch, heads, queries, dim), of_key, of_value = (tuple(one.shape) for one in arrays)
    alike = of_key[:3] == of_value[:3] and (of_key[0], of_key[3]) == (batch, dim)
    for measured, what in (
        (dropout == 0, "dropout"),
        (scale is None or 1e-30 < scale < math.inf, f"scale {scale}"),
        (len({(one.dtype, one.device) for one in arrays}) == 1, "a call of several dtypes or devices"),
        (alike and (gqa or heads == of_key[1]), "a call that PyTorch broadcasts or refuses"),
    ):
        if not measured:
            raise ValueError(f"{what} was not measured")
    training = torch.is_grad_enabled() and any(one.requires_grad for one in arrays)
    return Workload(
        batch=batch,
        heads=heads,
        kv_heads=of_key[1],
        queries=queries,
        keys=of_key[2],
        head_dim=dim,
        value_dim=of_value[3],
        dtype=str(arrays[0].dtype).removeprefix("torch."),
        device=arrays[0].device.type,
        causal="top_left" if causal else False,
        scale=dim**-0.5 if scale is None else scale,
        direction="training" if training else "forward",
    )


def _function(backend: Backend, workload: Workload) -> _Attend:
    """The function of (query, key, value) with which `backend` computes calls of `workload`."""
    grouped = workload.heads != workload.kv_heads
    asked = {"scale": workload.scale, "causal": bool(workload.causal), "enable_gqa": grouped}
    taken = {name: value for name, value in asked.items() if name in backend.options}
    return partial(backend.attend, **{**given_nothing(backend.options), **taken})


def _unmeasured(tensors: Sequence[Tensor | None], threads: int | None) -> str | None:
    """Why the run says nothing about these tensors or about this process in its present state; else None.

    threads : the number of threads with which it was measured. A call takes about two microseconds.
    """
    if tensors[3] is not None:
        return "attn_mask was not measured"
    if any(type(one) not in (Tensor, Parameter) or one.is_nested for one in tensors[:3] if one is not None):
        return "subclasses of tensors and nested tensors were not measured"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast was not measured"
    if torch.are_deterministic_algorithms_enabled() or torch.get_float32_matmul_precision() != "highest":
        return "deterministic algorithms and float32 products of lower precision were not measured"
    traced = torch._C._get_tracing_state() or torch._C._functorch.peek_interpreter_stack()
    if traced is not None or forward_mode._current_level >= 0:
        return "torch.jit.trace, torch.func and forward-mode differentiation were not measured"
    now = torch.get_num_threads()
    return None if threads in (None, now) else f"{now} threads were not measured, but {threads}"


def _measured_elsewhere(run: Run) -> str | None:
    """Why the figures of `run` may not hold on this machine, or None. Entries that it lacks are not compared."""
    now = environment()
    different = [name for name in _MACHINE if run.environment.get(name) not in (None, now[name])]
    if different:
        was = run.environment.get("cpu")
        return f"the run was measured on another machine ({was}; other {', '.join(different)})"
    contenders = run.environment.get("contenders", {}).values()
    versions = {one.get("versions", {}).get("torch") for one in contenders} - {None, torch.__version__}
    if versions:
        return f"the run was measured with PyTorch {versions.pop()}, and this is {torch.__version__}"
    return None

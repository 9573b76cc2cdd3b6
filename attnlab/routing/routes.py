"""What a call asks, and who may answer it at each measured workload, in which order, and why the others may not.

A call and a measured workload are brought into the same form, so that they can be held against each other: what must be
equal, and what need only be near. The order is that of the report: those that were measured, believed and right; who
shares the first place goes by memory. Only backends on PyTorch's tensors take part. To call another library, arrays
would have to be converted, and its threads would spin beside PyTorch's in one process, which alone makes a call up to
twice as long (decision 1): what was measured in a process of its own would not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from attnlab.backend.backend import Backend
from attnlab.backend.contender import in_this_process
from attnlab.backend.discovery import on_request
from attnlab.backend.keywords import flag_and_array, given_nothing, told
from attnlab.errors import Unavailable
from attnlab.judge.analysis import MORE_MEMORY, Cell
from attnlab.judge.pairing import Verdict
from attnlab.judge.ranking import Ranking, decidable, rank
from attnlab.libraries.host import LEAST_SCALE
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.result import Result
from attnlab.problem.workload import CONTIGUOUS, DEVICES, GIVEN, Workload
from attnlab.runs.store import Run
from attnlab.theory.error_budget import SCORES

#: the backend that is PyTorch's own function, as it chooses its kernel itself
OWN = "torch_sdpa"
#: what a call may be: one whose gradients may be asked for pays for the way back too
FORWARD, TRAINING = "forward", "training"
_AXES = 4


class Outside(Exception):
    """The call is not of what was measured; the message says what it has, and what would have been needed."""


class Call(NamedTuple):
    """The arguments of a call of ``scaled_dot_product_attention``, and whether gradients may be asked of it."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool
    differentiable: bool


class Kind(NamedTuple):
    """What of a call must be equal to what was measured, in the order in which a difference is told.

    `mask` is "", "causal", "booleans" or "numbers": what PyTorch is given. `grouped` is how many heads share a key
    head. `one_query` tells decoding, which is another problem than a short sequence.
    """

    device: str
    dtype: str
    direction: str
    mask: str
    head_dim: int
    value_dim: int
    grouped: int
    one_query: bool


class Sizes(NamedTuple):
    """What of a call may differ from what was measured; `heads` of all batch elements together."""

    queries: int
    keys: int
    heads: int

    @classmethod
    def of(cls, workload: Workload) -> Sizes:
        """The sizes of what `workload` measures."""
        return cls(workload.queries, workload.keys, workload.batch * workload.heads)

    def factor(self, other: Sizes) -> float:
        """The factor, 1 or more, by which the size that differs most differs."""
        return max(max(one, two) / min(one, two) for one, two in zip(self, other, strict=True))

    def apart(self, other: Sizes) -> float:
        """The distance of the logarithms, by which the nearer of two equal factors is chosen."""
        return math.dist(tuple(map(math.log, self)), tuple(map(math.log, other)))


def kind_of(workload: Workload) -> Kind | None:
    """The kind of call that `workload` measures, or None where no call of PyTorch's function asks for it."""
    further = workload.d_model, workload.softcap, workload.storage, workload.splits, workload.sinks
    if further != (None, None, CONTIGUOUS, 1, False) or workload.direction not in (FORWARD, TRAINING):
        return None
    causal, array = flag_and_array(workload)
    return Kind(
        device=workload.device,
        dtype=workload.dtype,
        direction=workload.direction,
        mask=array or ("causal" if causal else ""),
        head_dim=workload.head_dim,
        value_dim=workload.value_dim,
        grouped=workload.heads // workload.kv_heads,
        one_query=workload.queries == 1,
    )


def workload_of(call: Call) -> Workload:
    """The workload that `call` poses. Raises Outside for what none can be.

    query: (batch, heads, queries, head_dim), key: (batch, kv_heads, keys, head_dim), value: (batch, kv_heads, keys,
    value_dim).
    """
    query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, differentiable = call
    for name, number in (("dropout_p", dropout_p), ("scale", scale)):
        if number is not None and not isinstance(number, int | float):
            raise Outside(f"{name} is no number of Python's, but {type(number).__name__}")
    if dropout_p != 0:
        raise Outside(f"dropout was not measured, and dropout_p is {dropout_p:g}")
    tensors, dtype = (query, key, value), str(query.dtype).removeprefix("torch.")
    if any(one.dtype != query.dtype or one.device != query.device for one in tensors) or dtype not in DTYPES:
        given = ", ".join(f"{one.dtype} on {one.device}" for one in tensors)
        raise Outside(f"query, key and value must be of one measured dtype on one device, got {given}")
    if query.device.type not in DEVICES:
        raise Outside(f"{query.device.type} was not measured: attnlab measures on {' and '.join(DEVICES)}")
    _require_shapes([tuple(one.shape) for one in tensors], enable_gqa)
    if scale is not None and not LEAST_SCALE <= scale < math.inf:
        raise Outside(f"only a scale above 0 was measured, got {scale!r}")
    _require_mask(call)
    batch, heads, queries, head_dim = query.shape
    booleans = mask is not None and str(mask.dtype) == "torch.bool"
    return Workload(
        batch=batch,
        heads=heads,
        kv_heads=key.shape[1],
        queries=queries,
        keys=key.shape[2],
        head_dim=head_dim,
        value_dim=value.shape[3],
        dtype=dtype,
        device=query.device.type,
        causal="top_left" if is_causal else False,
        mask=GIVEN if booleans else "",
        bias="none" if booleans or mask is None else GIVEN,
        scale=1 / math.sqrt(head_dim) if scale is None else scale,
        layout="bshd" if query.stride(1) < query.stride(2) else "bhsd",
        direction=TRAINING if differentiable else FORWARD,
    )


def _require_shapes(shapes: Sequence[tuple[int, ...]], enable_gqa: bool) -> None:
    """Raises Outside for arrays that no workload has; PyTorch's own may take them by broadcasting, or refuse them."""
    shown = ", ".join(map(str, shapes))
    if any(len(one) != _AXES for one in shapes):
        raise Outside(
            f"only arrays of four axes were measured, (batch, heads, length, dim); got shapes {shown}"
        )
    if any(0 in one for one in shapes):
        raise Outside(f"no empty array was measured; got shapes {shown}")
    (batch, heads, _, dim), (*of_key, of_dim), (*of_value, _) = shapes
    if of_key != of_value or of_key[0] != batch or of_dim != dim or heads % of_key[1]:
        raise Outside(f"arrays that PyTorch broadcasts, or refuses, were not measured; got shapes {shown}")
    if heads != of_key[1] and not enable_gqa:
        raise Outside(f"{heads} heads share {of_key[1]} of key and value without enable_gqa")


def _require_mask(call: Call) -> None:
    """Raises Outside for a mask that no workload has."""
    query, mask = call.query, call.attn_mask
    if mask is None:
        return
    if call.is_causal:
        raise Outside("attn_mask beside is_causal was not measured")
    if mask.requires_grad:
        raise Outside("gradients of attn_mask were not measured")
    if mask.device != query.device or str(mask.dtype) not in ("torch.bool", str(query.dtype)):
        raise Outside(f"attn_mask must be of booleans or of {query.dtype} on {query.device}, to be measured")
    whole, shape = (*query.shape[:3], call.key.shape[2]), tuple(mask.shape)
    padded = (1,) * (_AXES - len(shape)) + shape
    if not 2 <= len(shape) <= _AXES or any(
        one not in (1, full) for one, full in zip(padded, whole, strict=True)
    ):
        raise Outside(f"attn_mask must have a shape that broadcasts to {whole}, got {shape}")


@dataclass(frozen=True)
class Route:
    """One measured workload: `order` are the contenders that a call may be sent to, best first.

    `left_out` says why not of those that were measured and may not; `why_own` why the run does not say that anything
    is faster than PyTorch's own, where that is so.
    """

    cell: Cell
    sizes: Sizes
    order: tuple[str, ...]
    left_out: Mapping[str, str]
    why_own: str | None
    ranking: Ranking | None

    def verdict(self, chosen: str, against: str) -> Verdict | None:
        """`against` compared with `chosen`: a ratio above 1 says how many times as fast the choice is."""
        usable = [self.cell.measured[name] for name in self.order]
        return decidable(usable, chosen, self.cell.margin).get(against)

    def rival(self, chosen: str) -> str | None:
        """Whom the choice is held against: PyTorch's own, or where that is the choice the next other kernel."""
        mine = self.ranking.of(chosen) if self.ranking is not None and chosen in self.order else None
        if self.ranking is None or mine is None:
            return None
        if chosen != OWN and OWN in self.order:
            return OWN
        others = (one for one in self.ranking.standings if one.implementation != mine.implementation)
        return next((one.contender for one in others), None)


class Routes:
    """The routes of a run by the kind of call, and the backends behind them. Raises ValueError where there are none."""

    def __init__(self, run: Run, *, compiled: bool) -> None:
        self._folders, self._compiled = run.plan.folders, compiled
        self.backends: dict[str, Backend] = {}
        self._refused: dict[str, str] = {}
        self.by_kind: dict[Kind, list[Route]] = {}
        analysis = run.judged()
        for cell in analysis.cells:
            kind = kind_of(cell.workload)
            if cell.measured and kind is not None:
                self.by_kind.setdefault(kind, []).append(self._route(cell, kind, analysis.baseline))
        if not self.by_kind:
            raise ValueError(
                f"{run.folder} holds no measured speed of a call of scaled_dot_product_attention; "
                "measure forward or training of the core, with torch_sdpa among the backends"
            )

    def _route(self, cell: Cell, kind: Kind, baseline: str) -> Route:
        refusals = {name: self._refusal(name, result, kind) for name, result in cell.measured.items()}
        usable = {name: one for name, one in cell.measured.items() if refusals[name] is None}
        ranking = rank(usable, baseline=OWN if OWN in usable else baseline, margin=cell.margin)
        every = [one.contender for one in ranking.standings] if ranking is not None else []
        own, why_own = ranking.of(OWN) if ranking is not None else None, None
        if ranking is None:
            why_own = "no backend on tensors was measured there"
        elif OWN not in cell.answers:
            why_own = f"{OWN}, PyTorch's own, did not race there: nothing is known to be faster"
        elif own is not None and own is not ranking.best and own.against_best is None:
            why_own = "too few undisturbed processes raced there to say that anything is faster"
        else:
            first = [one.contender for one in ranking.first]
            peaks = {name: usable[name].peak_bytes for name in first}
            known = [peak for peak in peaks.values() if peak is not None]
            if len(known) == len(first):
                # of those that need about as much, one that changes the process's state for its call comes last
                most = MORE_MEMORY * min(known)
                first.sort(
                    key=lambda name: ((peaks[name] or 0) > most, self.backends[name].kernel is not None)
                )
            every = [*first, *(name for name in every if name not in first)]
        left_out = {name: why for name, why in refusals.items() if why is not None}
        return Route(cell, Sizes.of(cell.workload), tuple(every), left_out, why_own, ranking)

    def _refusal(self, name: str, result: Result, kind: Kind) -> str | None:
        """Why the contender may not answer this kind of call, or None; its backend is loaded where it may be asked."""
        if name not in self.backends and name not in self._refused:
            try:
                self.backends[name] = self._loaded(name, result)
            except (ValueError, Unavailable) as reason:
                self._refused[name] = str(reason)
        if name in self._refused:
            return self._refused[name]
        backend, options = self.backends[name], self.backends[name].options
        if kind.dtype == "float16" and result.accuracy is not None and result.accuracy.kind == SCORES:
            return "it rounds its scores to float16, and answers NaN where one is beyond 65504"
        if kind.mask == "booleans" and told(result.workload, options) is not None:
            return "it was told the mask by keywords, not by an array, when it was measured"
        if kind.mask == "numbers" and "attn_mask" not in options:
            return "it takes a bias apart from a mask, and -inf in attn_mask is both"
        if kind.mask in ("booleans", "numbers") and name != OWN and not backend.zeros_empty_rows(kind.device):
            return "what it answers to a query that sees no key is not known"
        return None

    def _loaded(self, name: str, result: Result) -> Backend:
        """The backend of a contender. Raises ValueError or Unavailable, with why it may answer no call at all."""
        if result.computes_in is not None:
            raise ValueError(f"it computes in {result.computes_in}, less precisely than its inputs")
        if result.library not in (None, "torch"):
            raise ValueError(f"it computes on arrays of {result.library}, not on tensors")
        slow = on_request(result.backend, self._folders)
        if slow and not self._compiled:
            raise ValueError(f"{slow}; fastest(..., compiled=True) lets it take part")
        backend = in_this_process(name, self._folders)
        if backend.library != "torch":
            raise ValueError(f"it computes on arrays of {backend.library}, not on tensors")
        if backend.prepare is not None:
            raise ValueError(
                "it lays its arrays out anew before the clock starts, and what that takes was not measured"
            )
        return backend


def bound(backend: Backend, workload: Workload, kind: Kind) -> Any | None:
    """A function of (query, key, value, attn_mask) that `backend` answers with, or None where it cannot be told so."""
    array = kind.mask in ("booleans", "numbers")
    flags = {} if array else told(workload, backend.options)
    if flags is None:
        return None
    options = {**given_nothing(backend.options), **flags}
    options |= {"scale": workload.scale} if "scale" in options else {}
    options |= {"enable_gqa": kind.grouped > 1} if "enable_gqa" in options else {}
    attend = partial(backend.attend, **options)
    if not array:
        return lambda query, key, value, attn_mask: attend(query, key, value)
    name = "mask" if kind.mask == "booleans" and "mask" in backend.options else "attn_mask"

    def masked(query: Any, key: Any, value: Any, attn_mask: Any) -> Any:
        if attn_mask.ndim < _AXES:  # some kernels want all four axes
            attn_mask = attn_mask.reshape((1,) * (_AXES - attn_mask.ndim) + tuple(attn_mask.shape))
        return attend(query, key, value, **{name: attn_mask})

    return masked

"""What a call asks, and who may answer it at each measured workload, in which order, and why the others may not.

A call and a measured workload are brought into the same form, so that they can be held against each other: what must be
equal, and what need only be near. The order is that of the report: those that were measured, believed and right; of
those known to be hardly slower than the fastest the leanest goes first. Only backends on PyTorch's tensors take part.
To call another library, arrays would have to be converted, and its threads would spin beside PyTorch's in one process,
which alone makes a call up to twice as long (decision 1): what was measured in a process of its own would not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.backends.discovery import on_request
from attnlab.backends.keywords import flag_and_array, given_nothing, told
from attnlab.correctness.error_budget import SCORES
from attnlab.errors import Unavailable
from attnlab.libraries.host import LEAST_SCALE
from attnlab.runs.store import Run
from attnlab.stats.analysis import MORE_MEMORY, Cell
from attnlab.stats.ranking import Ranking, decidable, rank
from attnlab.stats.verdicts import Verdict
from attnlab.text import counted
from attnlab.workload.result import Result
from attnlab.workload.vocabulary import CONTIGUOUS, DEVICES, DTYPES, GIVEN
from attnlab.workload.workload import Workload

#: the backend that is PyTorch's own function, as it chooses its kernel itself
OWN = "torch_sdpa"
#: what a call may be: one whose gradients may be asked for pays for the way back too
FORWARD, TRAINING = "forward", "training"
_AXES = 4


class Outside(Exception):
    """The call is not of what was measured; the message says what it has, and what would have been needed."""


def kind_of(workload: Workload) -> tuple[str, ...] | None:
    """What of a call must be equal to what was measured, in words, in the order in which a difference is told.

    None where no call of PyTorch's function asks for what `workload` measures. The mask is what PyTorch is given; one
    query is decoding, which is another problem than a short sequence.
    """
    further = workload.d_model, workload.softcap, workload.storage, workload.sinks
    if further != (None, None, CONTIGUOUS, False) or workload.direction not in (FORWARD, TRAINING):
        return None
    causal, array = flag_and_array(workload)
    return (
        workload.device,
        workload.dtype,
        "training (with gradients)" if workload.direction == TRAINING else FORWARD,
        f"a mask of {array}" if array else "a causal mask" if causal else "no mask",
        f"head_dim {workload.head_dim}",
        f"value_dim {workload.value_dim}",
        f"{counted(workload.heads // workload.kv_heads, 'head')} a key head",
        "one query" if workload.queries == 1 else "several queries",
    )


def factors(one: Workload, other: Workload) -> list[float]:
    """By which factors, 1 or more, two calls of one kind differ: in queries, keys, and heads of all batch elements."""
    pairs = zip(*((x.queries, x.keys, x.batch * x.heads) for x in (one, other)), strict=True)
    return [max(pair) / min(pair) for pair in pairs]


def workload_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    differentiable: bool,
) -> Workload:
    """The workload that a call of ``scaled_dot_product_attention`` poses. Raises Outside for what none can be.

    query: (batch, heads, queries, head_dim), key: (batch, kv_heads, keys, head_dim), value: (batch, kv_heads, keys,
    value_dim). differentiable : whether gradients may be asked of it.
    """
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
    if mask is not None:
        _require_mask(mask, query, key.shape[2], is_causal)
    batch, heads, queries, head_dim = query.shape
    booleans = mask is not None and mask.dtype == torch.bool
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


def _require_mask(mask: Tensor, query: Tensor, keys: int, is_causal: bool) -> None:
    """Raises Outside for a mask that no workload has."""
    if is_causal:
        raise Outside("attn_mask beside is_causal was not measured")
    if mask.requires_grad:
        raise Outside("gradients of attn_mask were not measured")
    if mask.device != query.device or mask.dtype not in (torch.bool, query.dtype):
        raise Outside(f"attn_mask must be of booleans or of {query.dtype} on {query.device}, to be measured")
    whole, shape = (*query.shape[:3], keys), tuple(mask.shape)
    padded = (1,) * (_AXES - len(shape)) + shape
    fits = 2 <= len(shape) <= _AXES and all(one in (1, full) for one, full in zip(padded, whole, strict=True))
    if not fits:
        raise Outside(f"attn_mask must have a shape that broadcasts to {whole}, got {shape}")


@dataclass(frozen=True)
class Route:
    """One measured workload: `order` are the contenders that a call may be sent to, best first.

    `left_out` says why not of those that were measured and may not; `why_own` why the run does not say that anything
    is faster than PyTorch's own, where that is so. `by_memory` : some that are at most 5 % apart need more.
    """

    cell: Cell
    order: tuple[str, ...]
    left_out: Mapping[str, str]
    why_own: str | None
    ranking: Ranking | None
    by_memory: bool = False

    def held_against(self, chosen: str) -> tuple[str | None, Verdict | None]:
        """Whom the choice is held against: PyTorch's own, or where that runs the same kernel the next other one.

        With the report's verdict: a ratio above 1 says how many times as fast the choice is.
        """
        mine = self.ranking.of(chosen) if self.ranking is not None else None
        reported = self.cell.ranking
        if self.ranking is None or mine is None or reported is None:
            return None, None
        others = [
            one.contender for one in self.ranking.standings if one.implementation != mine.implementation
        ]
        if not others:
            return None, None
        against = OWN if OWN in others and OWN in self.order else others[0]
        verdict = reported.between(chosen, against)
        if verdict is None:  # the report does not compare the two: as it would
            peers = [self.cell.measured[one.contender] for one in reported.standings]
            verdict = decidable(peers, chosen, self.cell.margin).get(against)
        return against, verdict


class Routes:
    """The routes of a run by the kind of call, and the backends behind them. Raises ValueError where there are none."""

    def __init__(self, run: Run, *, compiled: bool) -> None:
        self._folders, self._compiled = run.plan.folders, compiled
        self.backends: dict[str, Backend] = {}
        self._refused: dict[str, str] = {}
        self.by_kind: dict[tuple[str, ...], list[Route]] = {}
        analysis = run.judged()
        for cell in analysis.cells:
            kind = kind_of(cell.workload)
            if cell.measured and kind is not None:
                self.by_kind.setdefault(kind, []).append(self._route(cell, analysis.baseline))
        if not self.by_kind:
            raise ValueError(
                f"{run.folder} holds no measured speed of a call of scaled_dot_product_attention; "
                "measure forward or training of the core, with torch_sdpa among the backends"
            )

    def _route(self, cell: Cell, baseline: str) -> Route:
        left_out: dict[str, str] = {}
        for name, result in cell.measured.items():
            try:
                self._require(name, result)
            except (ValueError, Unavailable) as reason:
                left_out[name] = str(reason)
        usable = {name: one for name, one in cell.measured.items() if name not in left_out}
        ranking = cell.ranking
        if ranking is not None and ranking.best.contender in usable:
            standings = tuple(one for one in ranking.standings if one.contender in usable)
            ranking = replace(ranking, standings=standings)
        else:
            ranking = rank(usable, baseline=OWN if OWN in usable else baseline, margin=cell.margin)
        if ranking is None:
            return Route(cell, (), left_out, "no backend on tensors was measured there", None)
        own, why_own, by_memory = ranking.of(OWN), None, False
        near = {one.implementation for one in ranking.near}  # under every name of a kernel, as in the report
        order = [one.contender for one in ranking.standings]
        first = [one.contender for one in ranking.standings if one.implementation in near]
        if OWN not in cell.answers:
            why_own = f"{OWN}, PyTorch's own, did not race there undisturbed: nothing is known to be faster"
        elif own is not None and own is not ranking.best and own.against_best is None:
            why_own = "too few undisturbed processes raced there to say that anything is faster"
        elif all(usable[name].peak_bytes is not None for name in first):
            # of those that need about as much, one that changes the process's state for its call comes last
            peaks = {name: usable[name].peak_bytes or 0 for name in first}
            most = MORE_MEMORY * min(peaks.values())
            first.sort(key=lambda name: (peaks[name] > most, self.backends[name].kernel is not None))
            order = list(dict.fromkeys((*first, *order)))
            by_memory = max(peaks.values()) > most
        return Route(cell, tuple(order), left_out, why_own, ranking, by_memory)

    def _require(self, name: str, result: Result) -> None:
        """Raises ValueError or Unavailable, with why the contender may not answer this kind of call."""
        if name in self._refused:
            raise ValueError(self._refused[name])
        if name not in self.backends:
            try:
                self.backends[name] = self._loaded(name, result)
            except (ValueError, Unavailable) as reason:
                self._refused[name] = str(reason)
                raise
        workload, backend = result.workload, self.backends[name]
        _, array = flag_and_array(workload)
        if workload.dtype == "float16" and result.accuracy is not None and result.accuracy.kind == SCORES:
            raise ValueError("it rounds its scores to float16, and answers NaN where one is beyond 65504")
        if array == "booleans" and told(workload, backend.options) is not None:
            raise ValueError("it was told the mask by keywords, not by an array, when it was measured")
        if array == "numbers" and "attn_mask" not in backend.options:
            raise ValueError("it takes a bias apart from a mask, and -inf in attn_mask is both")
        if array and name != OWN and not backend.zeros_empty_rows(workload.device):
            raise ValueError("what it answers to a query that sees no key is not known")

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


def bound(backend: Backend, workload: Workload) -> Any | None:
    """A function of (query, key, value, attn_mask) that `backend` answers with, or None where it cannot be told so."""
    _, array = flag_and_array(workload)
    flags = {} if array else told(workload, backend.options)
    if flags is None:
        return None
    options = {**given_nothing(backend.options), **flags}
    options |= {"scale": workload.scale} if "scale" in options else {}
    options |= {"enable_gqa": workload.heads > workload.kv_heads} if "enable_gqa" in options else {}
    attend = partial(backend.attend, **options)
    if not array:
        return lambda query, key, value, attn_mask: attend(query, key, value)
    name = "mask" if array == "booleans" and "mask" in backend.options else "attn_mask"

    def masked(query: Any, key: Any, value: Any, attn_mask: Any) -> Any:
        if attn_mask.ndim < _AXES:  # some kernels want all four axes
            attn_mask = attn_mask.reshape((1,) * (_AXES - attn_mask.ndim) + tuple(attn_mask.shape))
        return attend(query, key, value, **{name: attn_mask})

    return masked

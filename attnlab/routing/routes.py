"""Who may answer a call at each measured workload, in which order, and why the others may not.

The order is that of the report: those that were measured, believed and right; who shares the first place goes by
memory. Only backends on PyTorch's tensors take part. To call another library, arrays would have to be converted, and
its threads would spin beside PyTorch's in one process, which alone makes a call up to twice as long (decision 1): what
was measured in a process of its own would not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.backends.discovery import on_request
from attnlab.backends.keywords import given_nothing, told
from attnlab.errors import Unavailable
from attnlab.judge.analysis import Analysis, Cell
from attnlab.judge.pairing import Verdict
from attnlab.judge.ranking import Ranking, decidable, rank
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.routing.question import Kind, Sizes, kind_of, sizes_of
from attnlab.runs.store import Run
from attnlab.theory.error_budget import SCORES

#: the backend that is PyTorch's own function, as it chooses its kernel itself
OWN = "torch_sdpa"
#: peaks of memory that differ by less are equal
_SAME_MEMORY = 1.01


@dataclass(frozen=True)
class Route:
    """One measured workload: `order` are the contenders that a call may be sent to, best first.

    `left_out` says why not of those that were measured and may not; `why_own` why the run does not say that anything
    is faster than PyTorch's own, where that is so.
    """

    workload: Workload
    kind: Kind
    sizes: Sizes
    order: tuple[str, ...]
    left_out: Mapping[str, str]
    why_own: str | None
    results: Mapping[str, Result] = field(repr=False)
    ranking: Ranking | None = field(repr=False)
    margin: float = 0.01

    def verdict(self, chosen: str, against: str) -> Verdict | None:
        """`against` compared with `chosen`: a ratio above 1 says how many times as fast the choice is."""
        usable = {name: self.results[name] for name in self.order}
        return decidable(usable.values(), chosen, self.margin).get(against)

    def rival(self, chosen: str) -> str | None:
        """Whom the choice is held against: PyTorch's own, or where that is the choice the next other kernel."""
        if self.ranking is None or chosen not in self.order:
            return None
        if chosen != OWN and OWN in self.order:
            return OWN
        mine = self.ranking.of(chosen)
        others = (
            one.contender
            for one in self.ranking.standings
            if mine is not None and one.implementation != mine.implementation
        )
        return next(others, None)


class Routes:
    """The routes of a run by the kind of call, and the backends behind them. Raises ValueError where there are none."""

    def __init__(self, run: Run, *, compiled: bool) -> None:
        self._folders, self._compiled = run.plan.folders, compiled
        self.backends: dict[str, Backend] = {}
        self._refused: dict[str, str] = {}
        self.by_kind: dict[Kind, list[Route]] = {}
        analysis = run.judged()
        for cell in analysis.cells:
            route = self._route(analysis, cell) if cell.measured else None
            if route is not None:
                self.by_kind.setdefault(route.kind, []).append(route)
        if not self.by_kind:
            raise ValueError(
                f"{run.folder} holds no measured speed of a call of scaled_dot_product_attention; "
                "measure forward or training of the core, with torch_sdpa among the backends"
            )

    def _route(self, analysis: Analysis, cell: Cell) -> Route | None:
        kind = kind_of(cell.workload)
        if kind is None:
            return None
        left_out: dict[str, str] = {}
        for name, result in cell.measured.items():
            reason = self._refusal(name, result) or self._refusal_here(name, result, kind)
            if reason:
                left_out[name] = reason
        usable = {name: one for name, one in cell.measured.items() if name not in left_out}
        baseline = OWN if OWN in usable else analysis.baseline
        ranking = rank(usable, baseline=baseline, margin=cell.margin)
        order, why_own = _ordered(ranking, usable, self.backends, OWN in cell.answers)
        return Route(
            workload=cell.workload,
            kind=kind,
            sizes=sizes_of(cell.workload),
            order=order,
            left_out=left_out,
            why_own=why_own,
            results=cell.measured,
            ranking=ranking,
            margin=cell.margin,
        )

    def _refusal(self, name: str, result: Result) -> str | None:
        """Why the contender may answer no call at all, or None; where it may, its backend is loaded."""
        if name not in self.backends and name not in self._refused:
            found = self._loaded(name, result)
            if isinstance(found, str):
                self._refused[name] = found
            else:
                self.backends[name] = found
        return self._refused.get(name)

    def _loaded(self, name: str, result: Result) -> Backend | str:
        if result.computes_in is not None:
            return f"it computes in {result.computes_in}, less precisely than its inputs"
        if result.library not in (None, "torch"):
            return f"it computes on arrays of {result.library}, not on tensors"
        try:
            slow = on_request(result.backend, self._folders)
            if slow and not self._compiled:
                return f"{slow}; fastest(..., compiled=True) lets it take part"
            backend = in_this_process(name, self._folders)
        except (ValueError, Unavailable) as fault:
            return str(fault)
        if backend.library != "torch":
            return f"it computes on arrays of {backend.library}, not on tensors"
        if backend.prepare is not None:
            return "it lays its arrays out anew before the clock starts, and what that takes was not measured"
        return backend

    def _refusal_here(self, name: str, result: Result, kind: Kind) -> str | None:
        """Why it may not answer this kind of call, or None."""
        backend, options = self.backends[name], self.backends[name].options
        if kind.dtype == "float16" and result.accuracy is not None and result.accuracy.kind == SCORES:
            return "it rounds its scores to float16, and answers NaN where one is beyond 65504"
        if kind.mask in ("booleans", "numbers"):
            if kind.mask == "booleans" and told(result.workload, options) is not None:
                return "it was told the mask by keywords, not by an array, when it was measured"
            if kind.mask == "numbers" and "attn_mask" not in options:
                return "it takes a bias apart from a mask, and -inf in attn_mask is both"
            if name != OWN and not backend.zeros_empty_rows(kind.device):
                return "what it answers to a query that sees no key is not known"
        return None


def _ordered(
    ranking: Ranking | None, usable: Mapping[str, Result], backends: Mapping[str, Backend], raced: bool
) -> tuple[tuple[str, ...], str | None]:
    """The contenders, best first, and why it is PyTorch's own all the same."""
    if ranking is None:
        return (), "no backend on tensors was measured there"
    every = tuple(one.contender for one in ranking.standings)
    if not raced:
        return every, f"{OWN}, PyTorch's own, did not race there: nothing is known to be faster"
    own = ranking.of(OWN)
    if own is not None and own is not ranking.best and own.against_best is None:
        return every, "too few undisturbed processes raced there to say that anything is faster"
    first = [one.contender for one in ranking.first]
    first = _by_memory(first, {name: usable[name].peak_bytes for name in first}, backends)
    return (*first, *(name for name in every if name not in first)), None


def _by_memory(
    first: list[str], peaks: Mapping[str, int | None], backends: Mapping[str, Backend]
) -> list[str]:
    """Those that share the first place, the leanest in front where the memory of all is known.

    Of those that are equal in that too, one that changes the process's state for its call comes last.
    """
    known = {name: peak for name, peak in peaks.items() if peak is not None}
    if len(known) < len(first):
        return first
    enough = _SAME_MEMORY * min(known.values())
    return sorted(first, key=lambda name: (max(known[name] - enough, 0.0), backends[name].kernel is not None))


def bound(backend: Backend, workload: Workload, kind: Kind) -> Any | None:
    """A function of (query, key, value, attn_mask) that `backend` answers with, or None where it cannot be told so."""
    if kind.mask in ("booleans", "numbers"):
        name = "mask" if kind.mask == "booleans" and "mask" in backend.options else "attn_mask"
        flags: Mapping[str, Any] | None = {}
    else:
        name, flags = "", told(workload, backend.options)
    if flags is None:
        return None
    options = {**given_nothing(backend.options), **flags}
    options |= {"scale": workload.scale} if "scale" in options else {}
    options |= {"enable_gqa": kind.grouped > 1} if "enable_gqa" in options else {}
    attend = partial(backend.attend, **options)
    if not name:
        return lambda query, key, value, attn_mask: attend(query, key, value)
    return lambda query, key, value, attn_mask: attend(query, key, value, **{name: _four(attn_mask)})


def _four(array: Any) -> Any:
    """With its four axes: some kernels want them all."""
    return array if array.ndim == 4 else array.reshape((1,) * (4 - array.ndim) + tuple(array.shape))

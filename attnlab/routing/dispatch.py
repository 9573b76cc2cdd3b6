"""`fastest`: PyTorch's ``scaled_dot_product_attention``, answered by the backend that a run found fastest and right."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as own_function

from attnlab.environment import environment
from attnlab.routing.routes import OWN, Outside, Route, Routes, bound, factors, kind_of, workload_of
from attnlab.runs.store import Run, read_run
from attnlab.stats.verdicts import Verdict
from attnlab.text import counted, interval_text, listed, number_text, ratio_text, seconds_text
from attnlab.workload.workload import Workload

#: kinds of calls that are remembered; decoding has a new length at every step
_REMEMBERED = 8192
#: what must be as it was: entries of a run's environment
_MACHINE = ("cpu", "cpu_features", "cores")

_compiling = torch.compiler.is_compiling
_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled
_autocast = torch.is_autocast_enabled
_threads = torch.get_num_threads
_precision = torch.get_float32_matmul_precision
_deterministic = torch.are_deterministic_algorithms_enabled
_transforms = torch._C._functorch.peek_interpreter_stack

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Choice:
    """Who answers a call, and why.

    backend : its name; "torch_sdpa" is PyTorch's own function.
    fell_back : whether it answers because the run does not say who is faster.
    why : that in one sentence.
    workload : the nearest that was measured, None where none is of the kind of the call, or near enough.
    distance : the factor, 1 or more, by which the size that differs most from it differs.
    against : whom the choice is held against there.
    verdict : its time as a ratio to that of the choice, with the interval; None where there is none.
    left_out : those that were measured there and may not answer, with the reason.
    """

    backend: str
    fell_back: bool
    why: str
    workload: Workload | None
    distance: float | None
    against: str | None
    verdict: Verdict | None
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.backend}: {self.why}"

    __repr__ = __str__


@dataclass(frozen=True)
class _Found:
    """What is remembered of a kind of calls; `attend` None stands for PyTorch's own."""

    attend: Attend | None
    backend: str
    reason: str
    route: Route | None = None
    factor: float | None = None


class Fastest:
    """A function with the signature of ``torch.nn.functional.scaled_dot_product_attention``, made by `fastest`."""

    def __init__(self, run: Run, *, factor: float, compiled: bool, elsewhere: bool) -> None:
        if not factor >= 1:
            raise ValueError(f"factor must be 1 or more, got {factor:g}")
        self._run = run
        self._again = partial(Fastest, factor=factor, compiled=compiled, elsewhere=elsewhere)
        self._routes, self._factor = Routes(run, compiled=compiled), factor
        self._not_here = None if elsewhere else _not_here(run)
        self._measured_threads = _threads_of(run)
        self._remembered: dict[Any, _Found] = {}
        if self._not_here:
            warnings.warn(f"{self._not_here}: every call goes to PyTorch's own", stacklevel=3)

    def __repr__(self) -> str:
        return f"attnlab.fastest({str(self._run.folder)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew where it is loaded, which may be another machine."""
        return self._again, (self._run,)

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
        """softmax(scale · Q Kᵀ + attn_mask) V, (batch, heads, n_q, d_v), by whom `explain` names.

        query: (batch, heads, n_q, d), key: (batch, kv_heads, n_k, d), value: (batch, kv_heads, n_k, d_v), attn_mask
        broadcastable to (batch, heads, n_q, n_k): booleans, True keeps, or numbers that are added to the scores.
        """
        if not _compiling() and _tracing() is None and not query.is_nested:
            asked = query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
            question = _question(*asked)
            kept = self._remembered.get(question)
            if kept is None:
                if len(self._remembered) >= _REMEMBERED:
                    self._remembered.clear()
                kept = self._remembered[question] = self._find(*asked)
            if kept.attend is not None:
                return kept.attend(query, key, value, attn_mask)
        return own_function(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    def explain(
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
    ) -> Choice:
        """Who answers this call, and why; nothing is computed."""
        found = self._find(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        route = found.route
        if route is None:
            return Choice(found.backend, True, found.reason, None, None, None, None, {})
        why = found.reason
        against, verdict = (None, None) if why else route.held_against(found.backend)
        return Choice(
            found.backend,
            bool(found.reason),
            why or _why(route, found, against, verdict),
            route.cell.workload,
            found.factor,
            against,
            verdict,
            route.left_out,
        )

    def _find(self, *asked: Any) -> _Found:
        """Who answers a call, whose arguments are those of `__call__` in their order."""
        try:
            self._require_state(*asked[:4])
            differentiable = _grad_enabled() and any(one.requires_grad for one in asked[:3])
            workload = workload_of(*(*asked, differentiable))
            route, factor = self._nearest(workload)
        except Outside as outside:
            return _Found(None, OWN, str(outside))
        if route.why_own:
            return _Found(None, OWN, route.why_own, route, factor)
        for name in route.order:
            if name == OWN:
                return _Found(None, OWN, "", route, factor)
            backend = self._routes.backends[name]
            attend = None if backend.declines(workload) is not None else bound(backend, workload)
            if attend is not None:
                return _Found(attend, name, "", route, factor)
        return _Found(None, OWN, "no backend that was measured there takes this call", route, factor)

    def _nearest(self, workload: Workload) -> tuple[Route, float]:
        """The measured workload that is nearest. Raises Outside where it is of another kind, or too far."""
        kind = kind_of(workload)
        assert kind is not None, "a call is of a kind"
        routes = self._routes.by_kind.get(kind)
        if not routes:
            raise Outside(_other_kind(kind, list(self._routes.by_kind)))

        def distance(one: Route) -> tuple[float, float, bool]:
            """The factor of the size that differs most; of two that are equal the nearer; then the same layout."""
            apart = factors(one.cell.workload, workload)
            return max(apart), math.hypot(*map(math.log, apart)), one.cell.workload.layout != workload.layout

        nearest = min(routes, key=distance)
        factor = max(factors(nearest.cell.workload, workload))
        if factor > self._factor:
            raise Outside(
                f"its sizes differ by a factor of up to {number_text(factor)} from those of the nearest measured "
                f"workload, {nearest.cell.workload.label}, and {number_text(self._factor)} is allowed"
            )
        return nearest, factor

    def _require_state(self, *tensors: Tensor | None) -> None:
        """Raises Outside where the process or the tensors are in a state in which nothing was measured."""
        given = [one for one in tensors if one is not None]
        if self._not_here:
            raise Outside(self._not_here)
        if any(type(one) not in (Tensor, torch.nn.Parameter) for one in given):
            raise Outside("only plain tensors were measured, no subclasses")
        if any(one.is_nested for one in given):
            raise Outside("nested tensors were not measured")
        if _tracing() is not None:
            raise Outside("within torch.jit.trace nothing was measured")
        if _transforms() is not None or forward_mode._current_level >= 0:
            raise Outside("within torch.func and forward-mode differentiation nothing was measured")
        if _autocast("cpu") or _autocast("cuda"):
            raise Outside("under autocast, which changes the dtype of some operations, nothing was measured")
        if _deterministic():
            raise Outside("deterministic algorithms were not asked for when it was measured")
        if _precision() != "highest":
            raise Outside(f'float32 matrix products were "highest" when measured, and are "{_precision()}"')
        if self._measured_threads not in (None, _threads()):
            measured = counted(self._measured_threads or 0, "thread")
            raise Outside(f"it was measured with {measured}, and {counted(_threads(), 'thread')} are set")


def fastest(
    run: Run | Path | str, *, factor: float = 2.0, compiled: bool = False, elsewhere: bool = False
) -> Fastest:
    """A function that answers as ``scaled_dot_product_attention`` does, each call by whom `run` found fastest.

    run : a run, or its folder. The answer comes from the backend that was fastest *and right* at the nearest measured
    workload of the same device, dtype, mask, head dimensions, grouping of heads and direction: forward, or training
    where gradients may be asked for. Of those that share the first place one that needs much more memory comes later.
    The function's `explain`, with the same arguments, tells who answers and why.

    PyTorch's own function answers where that was not measured: dropout, another device or dtype, a size beyond `factor`
    times the nearest measured (queries, keys, or batch × heads; one query is near to one query alone), a mask of
    another sort (none, causal, booleans, numbers), within autocast, torch.compile, torch.func or deterministic
    algorithms, with other threads than were measured, and where the run did not race ``torch_sdpa``. `explain` names
    which it is.

    factor : how far, 1 or more, a size may be from the nearest measured.
    compiled : let backends take part that compile for seconds at every new shape.
    elsewhere : use the run although it is from another processor or another PyTorch; without it there is a warning and
    every call goes to PyTorch's own.

    Only backends on tensors take part (`attnlab.routing.routes`). One that forces a kernel of PyTorch's sets a state of
    the whole process for the time of its call, as ``sdpa_kernel`` does: do not call from several threads at once.

    Raises ValueError for a folder without a run, one in which no such call was measured, and a factor below 1.
    """
    found = run if isinstance(run, Run) else read_run(run)
    return Fastest(found, factor=factor, compiled=compiled, elsewhere=elsewhere)


def _question(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, *numbers: float | None
) -> tuple[Any, ...]:
    """All that the choice depends on: calls with equal questions have the same answer. Takes some two microseconds.

    numbers : the other arguments of the call.
    """
    return (
        (query.shape, key.shape, value.shape, query.stride()),
        (query.dtype, key.dtype, value.dtype),
        (query.device, key.device, value.device),
        (type(query), type(key), type(value)),
        attn_mask
        if attn_mask is None
        else (attn_mask.shape, attn_mask.dtype, attn_mask.device, attn_mask.requires_grad, type(attn_mask)),
        numbers,
        _grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad),
        (_autocast("cpu"), _autocast("cuda"), _threads(), _precision(), _deterministic()),
        (_transforms() is None, forward_mode._current_level),
    )


def _other_kind(kind: tuple[str, ...], measured: list[tuple[str, ...]]) -> str:
    """What of `kind` was not measured, among those that agree with it in everything that is told before."""
    for at, asked in enumerate(kind):
        there = list(dict.fromkeys(one[at] for one in measured))
        if asked not in there:
            return f"{asked} was not measured, but {', '.join(there)}"
        measured = [one for one in measured if one[at] == asked]
    raise AssertionError("every part of the kind was measured")


def _why(route: Route, found: _Found, against: str | None, verdict: Verdict | None) -> str:
    """The sentence on a choice that the run made."""
    standing = route.ranking.of(found.backend) if route.ranking else None
    seconds = "" if standing is None else f", {seconds_text(standing.seconds)} a call"
    lead = f"{_place(route, found.backend)}, on tensors{seconds}"
    if verdict is not None:
        ratio = f"{ratio_text(verdict.ratio)} {interval_text(verdict.low, verdict.high)}"
        lead += f" and {ratio} times as fast as {against}"
    factor = found.factor or 1.0
    near = "this very shape" if factor == 1 else f"sizes within a factor of {number_text(factor)}"
    return f"{lead}, at {route.cell.workload.label} ({near})"


def _place(route: Route, chosen: str) -> str:
    """Whether the choice is alone first, one of several, or the first of those that take the call."""
    first = list(route.ranking.first) if route.ranking else []
    mine = route.ranking.of(chosen) if route.ranking else None
    if mine is None or mine.implementation not in {one.implementation for one in first}:
        return "the fastest that is right and takes this call"
    others = [one.contender for one in first if one.implementation != mine.implementation]
    if not others:
        return "the fastest that is right"
    why = (
        ", chosen by memory of those at most 5 % apart"
        if route.by_memory and route.order[0] == chosen
        else ""
    )
    return f"right, not told apart from {listed(others)}{why}"


def _not_here(run: Run) -> str | None:
    """Why what `run` measured need not hold in this process, or None; what the run does not tell is not compared."""
    now = environment()
    different = [name for name in _MACHINE if run.environment.get(name) not in (None, now[name])]
    if different:
        was = run.environment.get("cpu")
        return f"the run was measured on another machine ({was}; other {', '.join(different)})"
    for facts in run.environment.get("contenders", {}).values():
        version = facts.get("versions", {}).get("torch")
        if version not in (None, torch.__version__):
            return f"the run was measured with PyTorch {version}, and this is {torch.__version__}"
    return None


def _threads_of(run: Run) -> int | None:
    """The threads with which PyTorch's own was measured, where the run tells."""
    facts = run.environment.get("contenders", {}).get(OWN, {})
    counts = [pool.get("num_threads") for pool in facts.get("pools", ()) if pool.get("user_api") == "openmp"]
    known = [count for count in counts if isinstance(count, int)]
    return max(known, default=None)

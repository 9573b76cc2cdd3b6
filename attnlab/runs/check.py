"""Is a backend right? The accuracy gate in every dtype, the backend in a process of its own.

It may crash or hang there: that is an outcome, not the end of the check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnlab.backend.contender import Contender
from attnlab.backend.discovery import on_request
from attnlab.errors import Declined, Misbehaved
from attnlab.gate.gate import BACKWARD, EVERYTHING, FORWARD, Answers, GateResult, examine, forget
from attnlab.gate.questions import Question
from attnlab.problem.result import Invariance, Outcome
from attnlab.problem.vocabulary import LOG_SUM, lower
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.invariance import invariance_of, with_other_threads
from attnlab.race.limits import Limits
from attnlab.race.process_sets import ProcessSets
from attnlab.race.worker_process import Died, Hung, Refused, WorkerProcess
from attnlab.subprocesses import Enough, work_side_by_side
from attnlab.system import cores

#: the order of asking: what most backends have, and what shows most, first
_DTYPES = ("float32", "float16", "bfloat16", "float64")

#: of the turns that show what is other on the clock: some in one process, and the lengths, of which slow ones are
#: asked the shorter
_CLOCKED = Limits(
    processes=1, most_processes=1, min_rounds=8, max_rounds=8, workload_seconds=0.2, extra_seconds=0.2,
    call_seconds=0.02, turn_seconds=2e-3, settle_seconds=2e-3,
)  # fmt: skip
_CLOCKED_LENGTHS = 384, 64

Event = Callable[[str], None]


@dataclass(frozen=True)
class Checked:
    """Whether a backend passed, and why not; `passed` is None where it could not be asked at all.

    precision : by dtype, ``class`` (full precision inside, weights rounded, scores rounded), ``relative_error``,
    ``budget_ratio`` (of the class's budget), ``max_ulp``, ``bias`` (z of the error along the output) and ``of``.
    gradients : the same of its least exact gradient, where it can be differentiated (``of`` names it); one that adds
    its gradients up in their dtype has the class "partial sums rounded". no_gradients : why it cannot, where it cannot.
    log_sums, no_log_sums : the same of ln Z. no_dtypes : the dtypes that it does not have, and why. lower : the number
    format in which it computes, by dtype, where that is a lower one: its answers were then held against the truth of
    inputs rounded to it. left_out : questions that would have taken this backend too long; uncompiled : those that it
    was spared because it had compiled for too long by then. drawn : conditions among
    those that it answered that no table names, drawn at random for this seed.
    """

    name: str
    passed: bool | None
    reason: str | None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    uncompiled: int = 0
    drawn: int = 0
    precision: dict[str, dict[str, Any]] = field(default_factory=dict)
    gradients: dict[str, dict[str, Any]] = field(default_factory=dict)
    no_gradients: str | None = None
    log_sums: dict[str, dict[str, Any]] = field(default_factory=dict)
    no_log_sums: str | None = None
    no_dtypes: dict[str, str] = field(default_factory=dict)
    lower: dict[str, str] = field(default_factory=dict)
    invariance: list[Invariance] = field(default_factory=list)

    @property
    def much_left_out(self) -> bool:
        """Whether more than a quarter of the questions that it did not decline were left out."""
        spared = self.left_out + self.uncompiled
        return 4 * spared > self.asked + spared


def check(
    contender: Contender | str,
    folders: Sequence[str] = (),
    device: str = "cpu",
    seed: int = 0,
    *,
    dtypes: Sequence[str] = _DTYPES,
    on_event: Event = lambda text: None,
    keep: bool = False,
    processes: int | None = None,
    invariance: bool = False,
    everything: bool = False,
    deadline: float = 60.0,
) -> Checked:
    """Put the gate's questions to a backend in each of `dtypes`; stops at the first wrong answer.

    In each dtype first those about its output, then those about the gradients of query, key and value, where
    its library differentiates; then it is raced by itself, for some turns. `contender` is its name, with
    settings where they are to hold: ``torch_sdpa[threads=1]``. keep : the right answers, some GB, for the
    next backend of this process. processes : so many share the dtypes, each with the backend in a process of
    its own, and find what one would have found; by default one a core on the CPU, and one alone on another
    device or with `keep`. invariance : does it, where it is right, give the same bits again? Asked
    afterwards, see `attnlab.race.invariance`. everything : it is spared no question, however slow it is.
    deadline : seconds after which a question that it has not answered ends it.
    Raises ValueError for an unknown backend and for broken notation.
    """
    asked = Contender.parse(contender) if isinstance(contender, str) else contender
    asked.require(folders)
    if processes is None:
        processes = 1 if keep or device != "cpu" else cores()
    ends: dict[str, _End] = {}
    process = WorkerProcess(_patient(asked), folders)
    other = WorkerProcess(with_other_threads(asked, cores()), folders) if invariance else None

    def told(message: str | _End) -> None:
        if isinstance(message, str):
            on_event(f"{asked.name}: {message}")
            return
        ends[message.dtype] = message
        if _settled(ends, dtypes):
            raise Enough

    work = partial(_ask, asked, tuple(folders), device, seed, keep, everything, deadline)
    processes = min(processes, len(dtypes))
    first, *rest = (dtypes[at::processes] for at in range(processes))
    try:
        work_side_by_side(work, [(first, process), *((share, None) for share in rest)], told)
        counted = [ends[dtype] for dtype in _settled(ends, dtypes)]
        found = _summary(asked.name, counted)
        if found.passed and (everything or on_request(asked.backend, folders) is None):
            dtype = next(one.dtype for one in counted if one.result and one.result.asked)
            reason = _on_the_clock(process, device, dtype)
            found = replace(found, passed=reason is None, reason=reason)
        if not other or not found.passed:
            return found
        answered = [one.dtype for one in counted if one.result and one.result.asked]
        return replace(found, invariance=invariance_of(asked, process, other, answered, device))
    finally:
        process.end()
        if other:
            other.end()


def _on_the_clock(process: WorkerProcess, device: str, dtype: str) -> str | None:
    """What is wrong with the backend in a race by itself, of some turns on changed inputs; None where nothing is.

    Nor where it declines the workload, or is too slow for each of them.
    """
    conductor = Conductor([process.contender], limits=_CLOCKED, instruments=())
    conductor.sets = ProcessSets([process.contender], make=lambda *_: process)
    for length in _CLOCKED_LENGTHS:
        workload = Workload(heads=2, queries=length, keys=length, dtype=dtype, device=device)
        (result,) = conductor.race(workload)
        if result.outcome is not Outcome.OVER_BUDGET:
            fine = Outcome.MEASURED, Outcome.DECLINED, Outcome.UNAVAILABLE
            return None if result.outcome in fine else f"in a race, {workload.label}: {result.reason}"
    return None


@dataclass(frozen=True)
class _End:
    """How the questions in one dtype ended; without a result where the backend could not be asked on.

    `lower` is the number format in which it computes, where that is a lower one.
    """

    dtype: str
    passed: bool | None
    reason: str | None = None
    result: GateResult | None = None
    lower: str | None = None


def _settled(ends: Mapping[str, _End], dtypes: Sequence[str]) -> list[str]:
    """The dtypes that count, up to the first with a fault, once all of them have ended; none before that.

    What other processes found in later ones is what nobody would have asked.
    """
    until = next(
        (at for at, dtype in enumerate(dtypes, 1) if dtype in ends and ends[dtype].reason), len(dtypes)
    )
    return list(dtypes[:until]) if all(dtype in ends for dtype in dtypes[:until]) else []


def _ask(
    asked: Contender,
    folders: Sequence[str],
    device: str,
    seed: int,
    keep: bool,
    everything: bool,
    deadline: float,
    part: tuple[Sequence[str], WorkerProcess | None],
    tell: Callable[[str | _End], None],
) -> None:
    """Put the questions in each dtype of `part` to the backend in a process of its own, up to the first fault.

    Tells every question, and how each dtype ended. The process is the one of `part`, which goes on after that, or,
    where there is none, one that ends.
    """
    from threadpoolctl import threadpool_limits

    dtypes, lasting = part
    process = lasting or WorkerProcess(_patient(asked), folders)
    dtype, loaded = dtypes[0], False
    try:
        process.start()
        with threadpool_limits(1):  # references are small products: a second thread here would only spin
            process.finish_start()
            loaded = True
            for dtype in dtypes:
                less = lower(dtype, process.computes_in)
                box = _BlackBox(process, device, deadline, dtype, less or dtype)
                result = examine(
                    box,
                    less or dtype,
                    seed=seed,
                    directions=EVERYTHING,
                    on_event=tell,
                    **({} if everything else {"clock": box.clock, "setup": box.setup}),
                    parts=process.parts,
                )
                fault = result.fault and (f"in {dtype}, computed in {less}: " if less else "") + result.fault
                tell(_End(dtype, not fault, fault, result, less))
                if result.fault:
                    break
                if not keep:
                    forget()
    except Refused as refusal:  # the backend cannot be had; a fault of its call is Misbehaved
        tell(_End(dtype, None if refusal.kind == "unavailable" else False, str(refusal)))
    except (Died, Hung) as fault:  # a library that ends the process on import says nothing of the backend
        tell(_End(dtype, False if loaded else None, str(fault)))
    finally:
        if lasting is None:
            process.end()
        if not keep:
            forget(inputs=True)


def _patient(contender: Contender) -> Contender:
    """With threads that wait asleep, as nothing is timed: idle ones would spin on the cores that work out answers."""
    if "OMP_WAIT_POLICY" in {name for name, _ in contender.variables} | set(os.environ):
        return contender
    return replace(contender, variables=(*contender.variables, ("OMP_WAIT_POLICY", "passive")))


class _BlackBox:
    """A backend in its own process as the gate's black box. Died and Hung come through, with the question's name.

    The right answer is worked out here while the backend works on its own. One that computes in a lower number format
    is asked about in that one, `asked_in`, and its arrays go there in a wider one, `dtype`.
    """

    def __init__(
        self, process: WorkerProcess, device: str, deadline: float, dtype: str, asked_in: str
    ) -> None:
        self._process, self._device, self._deadline = process, device, deadline
        self._dtype, self._asked_in = dtype, asked_in
        self._taken = self._set_up = 0.0

    def clock(self) -> float:
        """Processor seconds that the backend took so far: a busy machine does not make it slow."""
        return self._taken

    def setup(self) -> float:
        """Processor seconds beside them that it took once, to compile and the like."""
        return self._set_up

    def __call__(self, question: Question) -> Answers:
        """What it answers, by name."""
        problem, workload = question.problem, question.workload(self._device)
        lowered = self._process.computes_in is not None
        if lowered:
            if (
                question.dtype != self._asked_in
            ):  # those of others, which come between, would be held to theirs
                raise Declined(f"{question.dtype} is not asked about here")
            problem, workload = problem.cast(self._dtype), workload.with_(dtype=self._dtype)
        try:
            answer = self._process.begin(
                "answer",
                seconds=self._deadline,
                problem=problem,
                workload=workload,
                layout=question.layouts[0],
                gradient_layout=question.layouts[1],
            )
            _ = question.references
            reply = answer()
        except Refused as refusal:
            if refusal.kind == "declined":
                raise Declined(str(refusal)) from None
            if refusal.kind == "unavailable":
                raise
            raise Misbehaved(str(refusal)) from None
        except (Died, Hung) as fault:
            raise type(fault)(f"{question.text}: {fault}") from None
        self._taken += reply["cpu_seconds"]
        self._set_up += reply["setup_seconds"]
        named: dict[str, Any] = reply["results"]
        if lowered:  # float16 is carried in itself
            carried = question.problem.query.dtype
            named = {name: one if name == LOG_SUM else one.astype(carried) for name, one in named.items()}
        return named


def _summary(name: str, counted: Sequence[_End]) -> Checked:
    found = [replace(one.result, dtype=one.dtype) for one in counted if one.result]
    passed, reason = counted[-1].passed, counted[-1].reason
    if passed and not any(one.asked for one in found):
        refusals = dict.fromkeys(one.refusal[FORWARD] for one in found if FORWARD in one.refusal)
        passed = None
        reason = ": ".join(filter(None, ("it declines every workload that was asked", "; ".join(refusals))))

    def precision(of: str) -> dict[str, dict[str, Any]]:
        return {one.dtype: one.precision[of].precision() for one in found if of in one.precision}

    def lacking(of: str) -> str | None:
        return None if precision(of) else next((one.refusal[of] for one in found if of in one.refusal), None)

    counts = ("asked", "declined", "left_out", "uncompiled", "drawn")
    return Checked(
        name=name,
        passed=passed,
        reason=reason,
        **{count: sum(getattr(one, count) for one in found) for count in counts},
        precision=precision(FORWARD),
        gradients=precision(BACKWARD),
        no_gradients=lacking(BACKWARD),
        log_sums=precision(LOG_SUM),
        no_log_sums=lacking(LOG_SUM),
        no_dtypes={one.dtype: one.refusal[FORWARD] for one in found if FORWARD in one.refusal},
        lower={one.dtype: one.lower for one in counted if one.lower and one.result and one.result.asked},
    )

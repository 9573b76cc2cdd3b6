"""Is a backend right? The accuracy gate in every dtype, the backend in a process of its own.

It may crash or hang there: that is an outcome, not the end of the check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import on_request
from attnlab.correctness.gate import BACKWARD, EVERYTHING, FORWARD, Answers, GateResult, examine, forget
from attnlab.correctness.questions import Question
from attnlab.errors import Declined, Misbehaved
from attnlab.plain import suggestion
from attnlab.race.conductor import Conductor
from attnlab.race.invariance import invariance_of, with_other_threads
from attnlab.race.limits import Limits
from attnlab.race.process_sets import ProcessSets
from attnlab.race.worker_process import Died, Hung, Refused, WorkerProcess
from attnlab.subprocesses import work_side_by_side
from attnlab.system import cores
from attnlab.text import first_lines
from attnlab.workload.result import Invariance, Outcome
from attnlab.workload.vocabulary import DTYPES, LOG_SUM, lower
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

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
class Format:
    """What came of one number format: `passed` is None where nothing of it was answered, with the `reason`.

    asked, declined : numbers of questions. left_out : questions that would have taken this backend too long;
    uncompiled : those that it was spared because it had compiled for too long by then. drawn : conditions among those
    that it answered that no table names, drawn at random for this seed.
    """

    passed: bool | None
    reason: str | None = None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    uncompiled: int = 0
    drawn: int = 0

    @property
    def word(self) -> str:
        """``right``, ``WRONG`` or ``not asked``."""
        spared = self.left_out + self.uncompiled
        if self.passed and 4 * spared > self.asked + spared:
            return "right, as far as asked"
        return {True: "right", False: "WRONG", None: "not asked"}[self.passed]


@dataclass(frozen=True)
class Checked:
    """Whether a backend passed in every number format, and why not in the first that it did not.

    `passed` is None where it could not be asked at all; then `formats`, what came of each number format by name, is
    empty. loaded : False for a file that cannot be loaded, or whose library ends the process.
    precision : by dtype, ``class`` (full precision inside, weights rounded, scores rounded), ``relative_error``,
    ``budget_ratio`` (of the class's budget), ``max_ulp``, ``bias`` (z of the error along the output) and ``of``.
    gradients : the same of its least exact gradient, where it can be differentiated (``of`` names it); one that adds
    its gradients up in their dtype has the class "partial sums rounded". no_gradients : why it cannot, where it cannot.
    log_sums, no_log_sums : the same of ln Z. lower : the number format in which it computes, by dtype, where that is a
    lower one: its answers were then held against the truth of inputs rounded to it.
    """

    name: str
    passed: bool | None
    reason: str | None
    formats: dict[str, Format] = field(default_factory=dict)
    loaded: bool = True
    precision: dict[str, dict[str, Any]] = field(default_factory=dict)
    gradients: dict[str, dict[str, Any]] = field(default_factory=dict)
    no_gradients: str | None = None
    log_sums: dict[str, dict[str, Any]] = field(default_factory=dict)
    no_log_sums: str | None = None
    lower: dict[str, str] = field(default_factory=dict)
    invariance: list[Invariance] = field(default_factory=list)

    @property
    def lines(self) -> list[tuple[str, str, Format]]:
        """A number format, what came of it in words, and its figures; one line, of no format, where none was asked."""
        if not self.formats:
            word = "not asked" if self.loaded else "cannot be loaded"
            return [("", word, Format(self.passed, self.reason))]
        lower = {dtype: f", in {less}" for dtype, less in self.lower.items()}
        return [(dtype, one.word + lower.get(dtype, ""), one) for dtype, one in self.formats.items()]

    def frame(self) -> pd.DataFrame:
        """A tidy table, one row a number format.

        Columns: ``backend``, ``dtype``, ``result`` (in a word or two), what `Format` has, and of the output what
        `precision` has.
        """
        import pandas as pd

        named = (({"backend": self.name, "dtype": of, "result": word}, one) for of, word, one in self.lines)
        return pd.DataFrame(
            [first | asdict(one) | self.precision.get(first["dtype"], {}) for first, one in named]
        )

    def __repr__(self) -> str:
        said = ((dtype, word, one.reason or f"{one.asked} questions") for dtype, word, one in self.lines)
        return first_lines([f"{self.name}: {', '.join(filter(None, one))}" for one in said])


def check(
    contender: Contender | str,
    folders: Sequence[str] = (),
    device: str = "cpu",
    seed: int = 0,
    *,
    dtypes: Sequence[str] | None = None,
    on_event: Event = lambda text: None,
    keep: bool = False,
    processes: int | None = None,
    invariance: bool = False,
    everything: bool = False,
    deadline: float = 60.0,
) -> Checked:
    """Put the gate's questions to a backend in each of `dtypes`, all by default; each ends at the first wrong answer.

    First those about its output, then those about the gradients of query, key and value, where its library
    differentiates; in one dtype in which it is right it is raced by itself, for some turns. `contender` is its name,
    with settings where they are to hold: ``torch_sdpa[threads=1]``. keep : the right answers, some GB, for the
    next backend of this process. processes : so many share the dtypes, each with the backend in a process of
    its own, and find what one would have found; by default one a core on the CPU, and one alone on another
    device or with `keep`. invariance : does it, where it is right, give the same bits again? Asked
    afterwards, see `attnlab.race.invariance`. everything : it is spared no question, however slow it is.
    deadline : seconds after which a question that it has not answered ends it.
    Raises ValueError for an unknown backend, an unknown dtype and for broken notation.
    """
    dtypes = _DTYPES if dtypes is None else dtypes
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"no number format is called {dtype!r}; {suggestion(dtype, DTYPES)}")
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

    how = asked, tuple(folders), device, seed, keep, everything, deadline
    work = partial(_ask, *how, frozenset())
    processes = min(processes, len(dtypes))
    first, *rest = (dtypes[at::processes] for at in range(processes))
    try:
        work_side_by_side(work, [(first, process), *((share, None) for share in rest)], told)
        alone = {one.dtype for one in ends.values() if one.passed is False and not _foreign(one)}
        again = [dtype for dtype, one in ends.items() if _foreign(one) in alone]
        if again:  # what is wrong in one dtype by itself is no fault of another, between whose questions it was asked
            partial(_ask, *how, alone)((again, process), told)
        found = _summary(asked.name, [ends[dtype] for dtype in dtypes if dtype in ends])
        answered = [dtype for dtype, one in found.formats.items() if one.passed]
        if answered and (everything or on_request(asked.backend, folders) is None):
            reason = _on_the_clock(process, device, answered[0])
            if reason:
                wrong = replace(found.formats[answered[0]], passed=False, reason=reason)
                formats = {**found.formats, answered[0]: wrong}
                found = replace(found, passed=False, reason=found.reason or reason, formats=formats)
        if not other or not found.passed:
            return found
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

    `lower` is the number format in which it computes, where that is a lower one; `loaded` as of `Checked`.
    """

    dtype: str
    passed: bool | None
    reason: str | None = None
    result: GateResult | None = None
    lower: str | None = None
    loaded: bool = True


def _foreign(end: _End) -> str | None:
    """The dtype of the question that showed the fault, where it is another one."""
    dtype = (end.reason or "").partition(",")[0]
    return dtype if end.passed is False and dtype in DTYPES and dtype != end.dtype else None


def _ask(
    asked: Contender,
    folders: Sequence[str],
    device: str,
    seed: int,
    keep: bool,
    everything: bool,
    deadline: float,
    spared: Collection[str],
    part: tuple[Sequence[str], WorkerProcess | None],
    tell: Callable[[str | _End], None],
) -> None:
    """Put the questions in each dtype of `part` to the backend in a process of its own, afresh where that has ended.

    In the dtypes `spared` nothing is asked. Tells every question, and how each dtype ended. The process is the one of
    `part`, which goes on after that, or, where there is none, one that ends.
    """
    from threadpoolctl import threadpool_limits

    dtypes, lasting = part
    process = lasting or WorkerProcess(_patient(asked), folders)
    try:
        for dtype in dtypes:
            loaded = process.alive
            try:
                if not loaded:
                    process.start()
                # references are small products: a second thread here would only spin
                with threadpool_limits(1):
                    process.finish_start()
                    loaded = True
                    less = lower(dtype, process.computes_in)
                    box = _BlackBox(process, device, deadline, dtype, less or dtype)
                    box.spared = spared
                    clocks = {} if everything else {"clock": box.clock, "setup": box.setup}
                    how: Any = {"seed": seed, "directions": EVERYTHING, "parts": process.parts, **clocks}
                    result = examine(box, less or dtype, on_event=tell, **how)
                fault = result.fault and (f"in {dtype}, computed in {less}: " if less else "") + result.fault
                tell(_End(dtype, result.passed, fault or result.refusal.get(FORWARD), result, less))
            except Refused as refusal:  # the backend cannot be had; a fault of its call is Misbehaved
                absent = refusal.kind == "unavailable"
                tell(_End(dtype, None, str(refusal), loaded=loaded or absent))
            except (Died, Hung) as fault:
                tell(_End(dtype, False if loaded else None, str(fault), loaded=loaded))
            if not loaded:
                break
            if not keep:
                forget()
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
        #: dtypes in which nothing is asked
        self.spared: Collection[str] = ()

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
        # those of others, which come between, would be held to theirs
        if question.dtype in self.spared or (lowered and question.dtype != self._asked_in):
            raise Declined(f"{question.dtype} is not asked about here")
        if lowered:
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


def _summary(name: str, ends: Sequence[_End]) -> Checked:
    found = [replace(one.result, dtype=one.dtype) for one in ends if one.result]
    wrong = [one for one in ends if one.passed is False]
    passed: bool | None = False if wrong else True if any(one.passed for one in ends) else None
    reasons = dict.fromkeys(one.reason for one in wrong[:1] or ends if one.reason)
    reason = None if passed else "; ".join(reasons)
    if passed is None and found:
        reason = ": ".join(filter(None, ("it declines every workload that was asked", reason)))

    def precision(of: str) -> dict[str, dict[str, Any]]:
        return {one.dtype: one.precision[of].precision() for one in found if of in one.precision}

    def lacking(of: str) -> str | None:
        return None if precision(of) else next((one.refusal[of] for one in found if of in one.refusal), None)

    counts = ("asked", "declined", "left_out", "uncompiled", "drawn")
    numbers = {one.dtype: {count: getattr(one, count) for count in counts} for one in found}
    formats = {one.dtype: Format(one.passed, one.reason, **numbers.get(one.dtype, {})) for one in ends}
    return Checked(
        name=name,
        passed=passed,
        reason=reason,
        formats=formats if found or wrong else {},
        loaded=all(one.loaded for one in ends),
        precision=precision(FORWARD),
        gradients=precision(BACKWARD),
        no_gradients=lacking(BACKWARD),
        log_sums=precision(LOG_SUM),
        no_log_sums=lacking(LOG_SUM),
        lower={one.dtype: one.lower for one in ends if one.lower and one.result and one.result.asked},
    )

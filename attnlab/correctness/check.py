"""Is a backend right? An examination in every dtype, the backend in a process of its own.

It may crash or hang there: that is an outcome with a reason, and the check goes on. The right answer is worked out here
while the backend works on its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnlab.backends.contender import Contender, side_of
from attnlab.correctness.examination import Answers, Examined, examine
from attnlab.correctness.invariance import same_bits, with_other_threads
from attnlab.correctness.questions import BACKWARD, FORWARD, KINDS, Question, forget
from attnlab.errors import Declined, Misbehaved, Unavailable
from attnlab.processes import Failed, Interpreter, Process
from attnlab.text import suggestion
from attnlab.workload.inputs import pack
from attnlab.workload.number_formats import DTYPES, lower
from attnlab.workload.result import Invariance
from attnlab.workload.workload import LOG_SUM

if TYPE_CHECKING:
    import pandas as pd

#: the order of asking: what most backends have, and what shows most, first
_DTYPES = ("float32", "float16", "bfloat16", "float64")
#: seconds in which a library is imported
_LOADING = 120.0
_SERVE = "attnlab.correctness.answering:serve_answers"


@dataclass(frozen=True)
class Format:
    """What came of one number format: `passed` is None where nothing of it was answered, with the `reason`.

    asked, declined : numbers of questions. left_out : questions that would have taken this backend too long. drawn :
    answered questions that were drawn at random for this seed.
    """

    passed: bool | None
    reason: str | None = None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    drawn: int = 0

    @property
    def word(self) -> str:
        """``right``, ``WRONG`` or ``not asked``."""
        if self.passed and 4 * self.left_out > self.asked + self.left_out:
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
        said = (
            f"{dtype} {word}, {one.reason or f'{one.asked} questions'}" for dtype, word, one in self.lines
        )
        return "\n".join([f"{self.name}:", *(one[:120] for one in said)])


def check(
    contender: Contender | str,
    folders: Sequence[str] = (),
    device: str = "cpu",
    seed: int = 0,
    *,
    dtypes: Sequence[str] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
    keep: bool = False,
    invariance: bool = False,
    everything: bool = False,
    deadline: float = 60.0,
) -> Checked:
    """Put the questions to a backend in each of `dtypes`, all by default; each ends at the first wrong answer.

    First those about its output, then ln Z, then the gradients of query, key and value, where its library
    differentiates. `contender` is its name, with settings where they are to hold: ``torch_sdpa[threads=1]``. keep : the
    right answers, some GB, for the next backend of this process. invariance : does it, where it is right, give the same
    bits again? Asked afterwards, see `attnlab.correctness.invariance`. everything : also the large questions, and it
    is spared none, however slow it is. deadline : seconds after which a question that it has not answered ends it.
    Raises ValueError for an unknown backend, an unknown dtype and for broken notation.
    """
    dtypes = _DTYPES if dtypes is None else dtypes
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"no number format is called {dtype!r}; {suggestion(dtype, DTYPES)}")
    asked = Contender.parse(contender) if isinstance(contender, str) else contender
    asked.require(folders)
    box = _BlackBox(asked, folders, device, deadline, on_event)
    ends: dict[str, Examined] = {}
    try:
        for dtype in dtypes:
            ends[dtype] = box.examined(dtype, seed, everything)
            if not ends[dtype].loaded:
                break
            if not keep:
                forget()
        # what is wrong in one dtype by itself is no fault of another, between whose questions it was asked
        wrong = {one for one, end in ends.items() if end.fault and not end.blamed}
        for dtype, end in ends.items():
            if end.blamed in wrong:
                ends[dtype] = box.examined(dtype, seed, everything, spared=wrong)
        found = _summary(asked.name, ends)
        if invariance and found.passed:
            with_others = _started(with_other_threads(asked), folders)[0]
            try:
                answered = [dtype for dtype, one in found.formats.items() if one.passed]
                bits = same_bits(asked, box.process, with_others, answered, device)
                found = replace(found, invariance=bits)
            finally:
                with_others.end()
        return found
    finally:
        box.end()


def _started(contender: Contender, folders: Sequence[str]) -> tuple[Process, dict[str, Any]]:
    """A process that has loaded the backend, and what that says of it. Raises Failed."""
    if "OMP_WAIT_POLICY" not in {name for name, _ in contender.variables} | set(os.environ):
        # nothing is timed: threads that wait would spin on the cores that work out answers
        contender = replace(contender, variables=(*contender.variables, ("OMP_WAIT_POLICY", "passive")))
    try:
        side = side_of(contender, folders)
        interpreter = Interpreter(side.interpreter.executable, side.interpreter.paths)
        process = Process(_SERVE, environment=contender.environment(os.environ), interpreter=interpreter)
    except (Unavailable, OSError) as fault:
        raise Failed("unavailable", str(fault)) from None
    try:
        settings = dict(contender.settings)
        how: dict[str, Any] = {"name": contender.backend, "settings": settings, "mask": contender.mask}
        said = process.ask("load", seconds=_LOADING, folders=list(side.folders), **how)
        if "fault" in said:
            raise Failed("raised", said["fault"])
        return process, said
    except BaseException:
        process.end()
        raise


@dataclass
class _BlackBox:
    """A backend in its own process, which is started again where it has ended, as `examine` asks it."""

    contender: Contender
    folders: Sequence[str]
    device: str
    deadline: float
    on_event: Callable[[str], None]
    _process: Process | None = None
    _says: dict[str, Any] = field(default_factory=dict)
    #: processor seconds that the backend took so far: a busy machine does not make it slow
    _seconds: float = 0.0
    #: the dtype of the arrays and that in which the backend is asked, and those in which nothing is asked
    _dtype: str = ""
    _asked_in: str = ""
    _spared: Collection[str] = ()
    #: the dtype of the question that was asked last
    _last: str = ""

    @property
    def process(self) -> Process:
        """That of the backend, started if need be. Raises Failed."""
        if self._process is None or not self._process.alive:
            self._process, self._says = _started(self.contender, self.folders)
        return self._process

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()

    def examined(self, dtype: str, seed: int, everything: bool, spared: Collection[str] = ()) -> Examined:
        """How the questions in one dtype end."""
        from threadpoolctl import threadpool_limits

        try:
            self.process.signal(0)
        except Failed as fault:  # a backend that is not to be had here is no file that cannot be loaded
            return Examined(dtype, unasked=str(fault), loaded=fault.kind == "unavailable")
        less = lower(dtype, self._says["computes_in"])
        self._dtype, self._asked_in, self._spared = dtype, less or dtype, spared
        clock: dict[str, Any] = {} if everything else {"clock": lambda: self._seconds, "daily": True}
        try:
            # right answers are small products: a second thread here would only spin
            with threadpool_limits(1):
                found = examine(self._answers, self._asked_in, seed=seed, kinds=KINDS, **clock)
        except Failed as fault:
            if fault.kind == "unavailable":
                return Examined(dtype, unasked=str(fault))
            blamed = self._last if self._last != self._asked_in else None
            found = Examined(dtype, fault=str(fault), blamed=blamed)
        if less and found.fault:
            found.fault = f"in {dtype}, computed in {less}: {found.fault}"
        found.lower = less
        return found

    def _answers(self, question: Question) -> Answers:
        """What it answers, by name. Raises Failed where its process ends, or the backend is not to be had."""
        lowered, inputs = self._says["computes_in"] is not None, question.inputs
        # those of others, which come between, would be held to theirs
        if question.dtype in self._spared or (lowered and question.dtype != self._asked_in):
            raise Declined(f"{question.dtype} is not asked about here")
        if lowered:
            inputs = inputs.cast(self._dtype)
        self._last = question.dtype
        self.on_event(f"{self.contender.name}: {question.text}")
        plain, arrays = pack(inputs)
        try:
            wait = self.process.begin(
                "answer",
                seconds=self.deadline,
                plain=plain,
                arrays=list(arrays),
                device=self.device,
                direction=question.direction,
                layouts=question.layouts,
            )
            _ = question.references
            reply = wait()
        except Failed as fault:
            if fault.kind == "declined":
                raise Declined(str(fault)) from None
            if fault.kind in ("wrong", "raised", "memory"):
                raise Misbehaved(str(fault)) from None
            raise Failed(fault.kind, f"{question.text}: {fault}", fault.tail) from None
        self._seconds += reply["seconds"]
        named: Answers = reply["results"]
        if lowered:  # float16 is carried in itself
            carried = question.inputs.query.dtype
            named = {name: one if name == LOG_SUM else one.astype(carried) for name, one in named.items()}
        return named


def _summary(name: str, ends: dict[str, Examined]) -> Checked:
    wrong = [end.fault for end in ends.values() if end.fault]
    answered = any(end.unasked is None for end in ends.values())
    passed: bool | None = False if wrong else True if any(end.passed for end in ends.values()) else None
    reason = None
    if wrong:
        reason = wrong[0]
    elif not passed:
        said = dict.fromkeys(end.unasked or end.refusal.get(FORWARD) for end in ends.values())
        reason = "; ".join(filter(None, said))
        reason = f"it declines every workload that was asked: {reason}" if answered else reason

    def precision(of: str) -> dict[str, dict[str, Any]]:
        found = {dtype: end.precision.get(of) for dtype, end in ends.items()}
        return {dtype: one.precision() for dtype, one in found.items() if one}

    def lacking(of: str) -> str | None:
        said = (end.refusal.get(of) for end in ends.values())
        return None if precision(of) else next(filter(None, said), None)

    formats = {}
    for dtype, end in ends.items():
        why = end.fault or end.unasked or end.refusal.get(FORWARD)
        counts = end.asked, end.declined, end.left_out, end.drawn
        formats[dtype] = Format(end.passed, None if end.passed else why, *counts)
    return Checked(
        name=name,
        passed=passed,
        reason=reason,
        formats=formats if answered else {},
        loaded=all(end.loaded for end in ends.values()),
        precision=precision(FORWARD),
        gradients=precision(BACKWARD),
        no_gradients=lacking(BACKWARD),
        log_sums=precision(LOG_SUM),
        no_log_sums=lacking(LOG_SUM),
        lower={dtype: end.lower for dtype, end in ends.items() if end.lower and end.asked},
    )

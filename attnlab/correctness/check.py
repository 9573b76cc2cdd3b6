"""Is a backend right? `check` asks it all questions in every number format, in each up to the first wrong answer.

`examine` asks in one number format. It takes a callable (`Ask`) from a question to the answers by name: "output", "log
sum" if the question asks for ln Z, and "query gradient", "key gradient" and "value gradient" if its inputs have an
output gradient. Each answer is compared with the exact result. A declined question is no fault. The first fault is
reported with its question. With a clock, a slow backend is asked fewer questions.

`check` runs the backend in a separate process. If the backend crashes or hangs there, that is an outcome with a reason,
and the check continues. The right answer is computed here while the backend computes its own. If there is a second
core, a second process checks half of the number formats: computing right answers takes more time than the backend does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.contender import Contender
from attnlab.correctness import questions
from attnlab.correctness.answering import Held, same_bits, with_other_threads
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES
from attnlab.correctness.questions import BACKWARD, CLASSES, FORWARD, KINDS, Question
from attnlab.correctness.weighing import allowance, relative_error, weigh_rows
from attnlab.errors import Declined, Misbehaved
from attnlab.processes import Failed, Process
from attnlab.system import cores
from attnlab.text import suggestion
from attnlab.workload.inputs import pack
from attnlab.workload.number_formats import DTYPES, lower
from attnlab.workload.result import Accuracy, Invariance
from attnlab.workload.workload import LOG_SUM, OUTPUT

if TYPE_CHECKING:
    import pandas as pd

Answers = dict[str, NDArray[Any]]
#: from a question to its answers; raises Declined or Misbehaved
Ask = Callable[[Question], Answers]

#: processor seconds that a backend may take for the questions of one kind; the same with the sequences after them.
#: Array libraries take a second or two, a Python loop takes all, a library that compiles for every shape 0.1 to 0.3 s
#: per question
SECONDS, SECONDS_IN_ALL = 8.0, 10.0
#: the most query-key pairs of a question; larger ones are asked only with `everything`, or if they are marked `daily`
DAILY = {FORWARD: 10_000, LOG_SUM: 10_000, BACKWARD: 20_000}
#: the number of times that one question of several blocks is asked: a fault that occurs once in ten calls escapes with
#: a probability of 0.9^20 = 12 % in one dtype, and of 0.9^80 = 0.02 % in all four
_OFTEN = 20
#: a backend that declines this many of the first, plainest questions, and answers none, has no gradients or no ln Z
_PLAINEST = 4
#: the question that is repeated at once, and again after another one; that other one; the question that is repeated
#: many times: it has several blocks and two heads, so that threads may collide
_REPEATED, _BETWEEN, _REPEATED_OFTEN = "fewer queries, causal", "normal", "several blocks, causal"
#: classes of precision from the tightest to the loosest; None stands for an error outside all of them
_CLASSES = (*GRADIENT_CLASSES, None)


@dataclass
class Examined:
    """The findings in one dtype; `fault` is None if all answers were right.

    asked, declined : the numbers of questions that were answered and declined. left_out : the number of questions that
    would have taken too long. drawn : the number of answered questions that were drawn at random. blamed : another
    dtype, if the fault is in a question of that dtype. precision : for each of `KINDS`, the accuracy on the question
    that tells the classes apart; of the gradients, the worst one. refusal : for each of `KINDS` without an answer, why
    it was declined. unasked : why the backend could not be run at all. lower : the number format in which the backend
    computes, if that is a lower one. loaded : False for a file that cannot be loaded.
    """

    dtype: str
    fault: str | None = None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    drawn: int = 0
    blamed: str | None = None
    unasked: str | None = None
    lower: str | None = None
    loaded: bool = True
    precision: dict[str, Accuracy] = field(default_factory=dict)
    refusal: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """Whether all answers were right; None if there was no answer."""
        return None if self.unasked else False if self.fault else True if self.asked else None


def examine(
    ask: Ask,
    dtype: str,
    *,
    seed: int = 0,
    kinds: Sequence[str] = (FORWARD, BACKWARD),
    clock: Callable[[], float] = lambda: 0.0,
    daily: bool = False,
) -> Examined:
    """Ask every question and sequence in `dtype`, up to the first fault.

    kinds : some of `KINDS`. clock : the processor seconds that `ask` has taken so far; without a clock no question is
    left out. daily : leave out the large questions. Other exceptions of `ask` are passed on.
    """
    found = Examined(dtype)
    for kind in kinds:
        before = found.asked, found.declined
        try:
            _Asking(ask, found, seed, kind, clock).everything(DAILY[kind] if daily else np.inf)
        except Misbehaved as fault:
            found.fault = str(fault)
        if found.asked > before[0]:
            found.refusal.pop(kind, None)
        elif kind != kinds[0]:
            # the backend does not have this kind: it declined only the first questions, and these do not count
            found.declined = before[1]
        if found.fault or not found.asked:
            break
    return found


class _Asking:
    """Asks the questions of one kind and writes the findings into `found`. Raises Misbehaved for a wrong answer."""

    def __init__(self, ask: Ask, found: Examined, seed: int, kind: str, clock: Callable[[], float]) -> None:
        self._ask, self._found, self._clock = ask, found, clock
        self._kind, self._how = kind, (found.dtype, seed, kind)
        self._answered, self._pairs, self._spent, self._limit = 0, 0, 0.0, SECONDS

    def everything(self, most: float) -> None:
        """Ask all questions, then all sequences. most : the most query-key pairs of a question."""
        found, declined = self._found, self._found.declined
        for question in questions.questions(*self._how, most):
            found.drawn += self._answer(question) is not None and question.name.startswith("drawn ")
            if not self._answered and found.declined - declined == _PLAINEST and self._kind != FORWARD:
                return
        self._limit = SECONDS_IN_ALL
        if self._kind == LOG_SUM:
            return
        fixed = questions.table()
        again, between = (
            questions.pose(name, fixed["forward"][name], *self._how) for name in (_REPEATED, _BETWEEN)
        )
        if again is not None and between is not None:
            self._in_sequence(again, [again, between])
        for first, others in questions.sequences(*self._how):
            self._in_sequence(first, others)
        often = questions.pose(_REPEATED_OFTEN, fixed["long"][_REPEATED_OFTEN], *self._how)
        if often is not None and self._kind == FORWARD:
            self._in_sequence(often, [often] * (_OFTEN - 1))

    def _answer(self, question: Question, when: str = "") -> Answers | None:
        """The answers; None if the question is left out or declined. when : added to the message of a fault."""
        found, pairs = self._found, question.pairs
        if self._spent * (1 + pairs / max(self._pairs, 1)) > self._limit:
            found.left_out += 1
            return None
        started = self._clock()
        try:
            answers = self._ask(question)
            if self._answered:  # the first call includes the start of the library
                self._spent += self._clock() - started
                self._pairs += pairs
            self._answered += 1
            found.asked += 1
            self._weigh(question, answers)
        except Declined as refusal:
            found.declined += 1
            found.refusal[self._kind] = str(refusal)
            return None
        except Misbehaved as fault:
            raise Misbehaved(f"{question.text}: {fault}{when}") from None
        return answers

    def _weigh(self, question: Question, answers: Answers) -> None:
        accuracy = []
        for name, expected in question.expected.items():
            how = question.weighing(name)
            weighed = weigh_rows(question.inputs, expected, answers[name], question.rows, **how)
            if weighed.reason is not None:
                of = f"{name}: " if question.kind != FORWARD and name == OUTPUT else ""
                raise Misbehaved(of + weighed.reason)
            accuracy.append(weighed)
        if question.name in CLASSES:
            judged_of = accuracy[-1:] if question.kind == LOG_SUM else accuracy[-3:]
            least = max(judged_of, key=lambda one: (_CLASSES.index(one.kind), one.ratio))
            self._found.precision[self._kind] = least

    def _in_sequence(self, first: Question, others: Sequence[Question]) -> None:
        """Ask `first`; then, for each of `others`, that one and `first` again.

        All answers must be right, and the answers to `first` alike. A backend that caches by an incomplete key gives
        one of the others the answer to `first`.
        """
        was = self._answer(first)
        if was is None:
            return
        for other in others:
            after = "at once" if other is first else f"after {other.text}"
            if other is not first:
                self._found.blamed = other.inputs.dtype if other.inputs.dtype != first.inputs.dtype else None
                self._answer(other, f", when asked after {first.text}")
                self._found.blamed = None
            again = self._answer(first, f", when repeated {after}")
            if again is None:
                return
            for name, answer in was.items():
                earlier, now = (one.astype(np.float64) for one in (answer, again[name]))
                off = relative_error(now - earlier, earlier)
                if off > 2**0.5 * allowance(first.expected[name].lenient):
                    of = f"{name}: " if first.kind == BACKWARD else ""
                    said = f"{of}repeated {after}, the answer differs by {off:.3g} relative"
                    raise Misbehaved(f"{first.text}: {said}")


# -- a backend in a separate process --------------------------------------------------------------------

#: the number formats in the order in which they are checked: first those that most backends have and that show most
#: faults
_DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Format:
    """The outcome in one number format. If nothing was answered, `passed` is None and `reason` says why.

    asked, declined, left_out, drawn : as in `Examined`.
    """

    passed: bool | None
    reason: str | None = None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    drawn: int = 0


@dataclass(frozen=True)
class Checked:
    """The outcome of a check: `passed` is True if all answers were right, None if the backend gave no answer.

    reason : that of the first number format with a wrong answer; or why there was no answer.
    formats : the outcomes by number format; empty if the backend could not be run.
    loaded : False for a file that cannot be loaded, or whose library ends the process.
    precision : by dtype, ``class`` (full precision inside, weights rounded, scores rounded), ``relative_error``,
    ``budget_ratio`` (relative to the budget of the class), ``max_ulp``, ``bias`` (z of the error along the output) and
    ``of`` (the name of the result).
    gradients : the same for the least exact gradient, which ``of`` names. A backend that adds its gradients up in their
    dtype has the class "partial sums rounded". no_gradients : why the backend has no gradients.
    log_sums, no_log_sums : the same for ln Z.
    lower : by dtype, the number format in which the backend computes, if that is a lower one. Its answers were then
    compared with the exact results for inputs rounded to that format.
    invariance : whether answers have the same bits again, if this was tested.
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
        """For each number format its name, the outcome in words, and its figures. One line if nothing was run."""
        if not self.formats:
            word = "not asked" if self.loaded else "cannot be loaded"
            return [("", word, Format(self.passed, self.reason))]
        found = []
        for dtype, one in self.formats.items():
            word = {True: "right", False: "WRONG", None: "not asked"}[one.passed]
            if one.passed and 4 * one.left_out > one.asked + one.left_out:
                word = "right, as far as asked"
            found.append((dtype, word + (f", in {self.lower[dtype]}" if dtype in self.lower else ""), one))
        return found

    def frame(self) -> pd.DataFrame:
        """A tidy table with one row for each number format.

        Columns: ``backend``, ``dtype``, ``result`` (in a word or two), those of `Format`, and those of `precision`.
        """
        import pandas as pd

        rows = []
        for dtype, word, one in self.lines:
            first = {"backend": self.name, "dtype": dtype, "result": word}
            rows.append(first | asdict(one) | self.precision.get(dtype, {}))
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        said = (f"{of} {word}, {it.reason or f'{it.asked} questions'}" for of, word, it in self.lines)
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
    """Ask a backend the questions in each of `dtypes` (by default all), in each up to the first wrong answer.

    The questions are first about the output, then about ln Z, then about the gradients of query, key and value if the
    library differentiates.

    contender : the name of a backend, also with settings, ``torch_sdpa[threads=1]``.
    keep : keep the right answers, several GB, for the next backend in this process.
    invariance : afterwards test whether a right backend gives the same bits again, see `attnlab.correctness.answering`.
    everything : also ask the large questions, and leave out none, even if the backend is slow.
    deadline : seconds after which an unanswered question ends the process of the backend.

    Raises ValueError for an unknown backend, an unknown dtype and malformed settings.
    """
    dtypes = _DTYPES if dtypes is None else [dtypes] if isinstance(dtypes, str) else dtypes
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"no number format is called {dtype!r}; {suggestion(dtype, DTYPES)}")
    asked = contender if isinstance(contender, Contender) else Contender.parse(contender)
    asked.require(folders)
    how: dict[str, Any] = {"seed": seed, "device": device, "everything": everything, "deadline": deadline}
    held, other = (Held(one, folders, device) for one in (asked, with_other_threads(asked)))
    apart = list(dtypes[1::2]) if device == "cpu" and cores() > 1 and not keep else []
    helper = Process(f"{__name__}:Examiner") if apart else None
    try:
        if helper is not None:
            half: dict[str, Any] = {"contender": asked, "folders": list(folders), "dtypes": apart, "how": how}
            rest = helper.begin("examine", answer=dict[str, Examined], **half)
        how |= {"keep": keep, "on_event": on_event}
        found = _examined_all(held, [one for one in dtypes if one not in apart], **how)
        if helper is not None:
            with suppress(Failed):  # then these dtypes are checked here
                found |= rest()
        if all(one.loaded for one in found.values()):
            found |= _examined_all(held, [one for one in dtypes if one not in found], **how)
        ends = {dtype: found[dtype] for dtype in dtypes if dtype in found}
        # questions of a wrong dtype were also asked between those of another dtype: check that one again without them
        wrong = {one for one, end in ends.items() if end.fault and not end.blamed}
        for dtype, end in ends.items():
            if end.blamed in wrong:
                ends |= _examined_all(held, [dtype], wrong, **how)
        summary = _summary(asked.name, ends)
        if invariance and summary.passed:
            answered = [dtype for dtype, one in summary.formats.items() if one.passed]
            summary = replace(summary, invariance=same_bits(held, other, answered, device))
        return summary
    finally:
        held.end()
        other.end()
        if helper is not None:
            helper.end()


class Examiner:
    """Checks some number formats in a second process, so that right answers are computed on two cores."""

    def examine(
        self, contender: Contender, folders: list[str], dtypes: list[str], how: dict[str, Any]
    ) -> dict[str, Examined]:
        """See `_examined_all`."""
        held = Held(contender, folders, how["device"])
        try:
            return _examined_all(held, dtypes, **how)
        finally:
            held.end()


def _examined_all(
    held: Held, dtypes: Sequence[str], spared: Collection[str] = (), *, keep: bool = False, **how: Any
) -> dict[str, Examined]:
    """The findings in these dtypes, up to the first dtype in which the backend cannot be loaded."""
    found: dict[str, Examined] = {}
    for dtype in dtypes:
        found[dtype] = _examined(held, dtype, spared, **how)
        if not found[dtype].loaded:
            break
        if not keep:
            questions.forget()
    return found


def _examined(
    held: Held,
    dtype: str,
    spared: Collection[str],
    seed: int,
    device: str,
    everything: bool,
    deadline: float,
    on_event: Callable[[str], None] = lambda text: None,
) -> Examined:
    """The findings in one dtype. spared : dtypes whose questions are not asked between those of this one."""
    from threadpoolctl import threadpool_limits

    try:
        held.process.signal(0)
    except Failed as fault:  # a backend that is unavailable on this machine may load on another
        return Examined(dtype, unasked=str(fault), loaded=fault.kind == "unavailable")
    less = lower(dtype, held.said["computes_in"])
    # `seconds` is the processor time of the backend so far, which does not grow when the machine is busy
    asked_in, last, seconds = less or dtype, "", 0.0

    def answers(question: Question) -> Answers:
        nonlocal last, seconds
        lowered, inputs = held.said["computes_in"] is not None, question.inputs
        # questions in other dtypes, which are asked between, would need their own lower format
        if question.inputs.dtype in spared or (lowered and question.inputs.dtype != asked_in):
            raise Declined(f"{question.inputs.dtype} is not asked about here")
        last = question.inputs.dtype
        on_event(f"{held.contender.name}: {question.inputs.dtype}, {question.name}")
        plain, arrays = pack(inputs.cast(dtype) if lowered else inputs)
        how: dict[str, Any] = {"plain": plain, "arrays": list(arrays), "layouts": question.layouts}
        try:
            direction = question.workload.direction
            wait = held.process.begin("answer", seconds=deadline, device=device, direction=direction, **how)
            _ = question.expected  # computed while the backend computes
            reply = wait()
        except Failed as fault:
            if fault.kind == "raised" and device != "cpu":
                held.end()  # after a kernel has failed, its process can no longer use the device
            if (told := fault.told()) is not fault:
                raise told from None
            raise Failed(fault.kind, f"{question.text}: {fault}", fault.tail) from None
        seconds += reply["seconds"]
        carried, named = inputs.query.dtype, reply["results"]  # the NumPy dtype that carries the format
        return {name: one if name == LOG_SUM else one.astype(carried) for name, one in named.items()}

    clock: dict[str, Any] = {} if everything else {"clock": lambda: seconds, "daily": True}
    try:
        with threadpool_limits(1):  # the right answers are small products: a second thread would only spin
            found = examine(answers, asked_in, seed=seed, kinds=KINDS, **clock)
    except Failed as fault:
        if fault.kind == "unavailable":
            return Examined(dtype, unasked=str(fault))
        found = Examined(dtype, fault=str(fault), blamed=last if last != asked_in else None)
    if less and found.fault:
        found.fault = f"in {dtype}, computed in {less}: {found.fault}"
    found.lower = less
    return found


def _summary(name: str, ends: dict[str, Examined]) -> Checked:
    wrong = [end.fault for end in ends.values() if end.fault]
    answered = any(end.unasked is None for end in ends.values())
    passed: bool | None = False if wrong else True if any(end.passed for end in ends.values()) else None
    reason = wrong[0] if wrong else None
    if passed is None:
        said = dict.fromkeys(end.unasked or end.refusal.get(FORWARD) for end in ends.values())
        reason = "; ".join(filter(None, said))
        reason = f"it declines every workload that was asked: {reason}" if answered else reason
    formats, precision, lacking = {}, {}, {}
    for kind in KINDS:
        found = {of: end.precision[kind].precision() for of, end in ends.items() if kind in end.precision}
        refusals = (end.refusal[kind] for end in ends.values() if kind in end.refusal)
        precision[kind], lacking[kind] = found, None if found else next(refusals, None)
    for dtype, end in ends.items():
        why = None if end.passed else end.fault or end.unasked or end.refusal.get(FORWARD)
        formats[dtype] = Format(end.passed, why, end.asked, end.declined, end.left_out, end.drawn)
    told: dict[str, Any] = {"gradients": precision[BACKWARD], "no_gradients": lacking[BACKWARD]}
    told |= {"log_sums": precision[LOG_SUM], "no_log_sums": lacking[LOG_SUM], "precision": precision[FORWARD]}
    told["lower"] = {dtype: end.lower for dtype, end in ends.items() if end.lower and end.asked}
    told["loaded"] = all(end.loaded for end in ends.values())
    return Checked(name, passed, reason, formats if answered else {}, **told)

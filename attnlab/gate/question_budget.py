"""How much a black box is asked: what it declines, what takes it too long, what it must not do.

A black box is a callable from a question to its answers by name. What it declines is not held against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from attnlab.errors import Declined, Misbehaved

#: a backend that needs less than this a query-key pair, on average, is asked everything: array libraries need 1e-8 to
#: 1e-7 with the overhead of small calls, a Python loop 1e-6
FAST_SECONDS_PER_PAIR = 3e-7
#: a slower one is spared a question that would take longer, and all that do not fit into so many seconds
QUESTION_SECONDS = 0.05
SLOW_SECONDS = 2.0
#: one that compiles for every shape is asked nothing new once compiling took so many seconds: a hundred shapes of a
#: graph of a few operators (0.1 to 0.3 s by XLA)
SETUP_SECONDS = 30.0
#: the part of them that single questions may take: the rest is kept for relations and sequences, which show
#: a compiled kernel that is used for what it was not compiled for
SETUP_AT_FIRST = 0.75
#: so many pairs must have been asked before a pace is believed
_PAIRS = 20_000


class Sized(Protocol):
    """What is needed of a question."""

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads."""

    @property
    def text(self) -> str:
        """Name and sizes, for a message."""


Q = TypeVar("Q", bound=Sized)
A = TypeVar("A")


class QuestionBudget(Generic[Q, A]):
    """One black box, and the account of what it was asked.

    asked, declined, left_out, uncompiled : numbers of questions; left out is what would take this backend too long,
    uncompiled what was left out because it had compiled for too long by then. refusal : the reason that it gave last
    for declining. clock : seconds that the black box took so far; it stands still by default, so that everything is
    asked. setup : seconds beside them that it took to compile and the like, which the pace leaves out.
    """

    def __init__(
        self,
        ask: Callable[[Q], A],
        on_event: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = lambda: 0.0,
        setup: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._ask, self._on_event, self._clock, self._setup = ask, on_event, clock, setup
        self.asked = self.declined = self.left_out = self.uncompiled = 0
        self.refusal: str | None = None
        self._pairs, self._spent, self._compiling = 0, 0.0, 0.0
        self._setup_seconds = SETUP_AT_FIRST * SETUP_SECONDS
        #: what it compiled for, if it compiles
        self._known: set[int] = set()

    def put(self, question: Q) -> A | str | None:
        """The answer, or what it did that no caller expects, in words, or None where it did not answer.

        Whatever else the black box raises comes through.
        """
        if self.too_slow(question):
            self.left_out += 1
            return None
        if self._compiling > self._setup_seconds and id(question) not in self._known:
            self.uncompiled += 1
            return None
        self._on_event(question.text)
        started, set_up = self._clock(), self._setup()
        try:
            answer = self._ask(question)
        except Declined as refusal:
            self.declined += 1
            self.refusal = str(refusal)
            return None
        except Misbehaved as fault:
            return str(fault)
        if self.asked:  # the first call carries a library's start-up
            self._spent += self._clock() - started
            self._compiling += self._setup() - set_up
            self._pairs += question.pairs
        self.asked += 1
        self._known.add(id(question))
        return answer

    def all_set_up(self) -> None:
        """Let what is asked from now on take the rest of the seconds for compiling."""
        self._setup_seconds = SETUP_SECONDS

    def too_slow(self, question: Q) -> bool:
        """Whether it would take this backend too long, by what a pair has cost so far."""
        if self._pairs < _PAIRS or self._spent / self._pairs < FAST_SECONDS_PER_PAIR:
            return False
        predicted = question.pairs * self._spent / self._pairs
        return predicted > QUESTION_SECONDS or self._spent + predicted > SLOW_SECONDS

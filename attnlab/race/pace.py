"""What a backend's answers cost, apart from what it does once: compiling a kernel, tuning it, starting a library.

The first answer to a question of a new kind carries all that. An answer that took long is therefore asked for again,
and what the second one saves is set-up. A backend whose second answers save nothing is slow, and is soon not asked
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attnlab.system import processor_seconds

#: processor seconds from which on an answer is asked for again: what compiles at all takes longer
_LONG_SECONDS = 0.005
#: as many second answers more may have saved less than half than have saved more
_IN_VAIN = 3

T = TypeVar("T")


class Pace:
    """Seconds that answers took, and `setup` seconds that they took once, both so far.

    By default processor seconds of this process, all its threads together, and of what it has started and waited for,
    such as a compiler: a busy machine makes nobody slow.
    """

    def __init__(self, clock: Callable[[], float] = processor_seconds) -> None:
        self._clock = clock
        self._in_vain = 0
        self.seconds = self.setup = 0.0

    def timed(self, answer: Callable[[], T]) -> T:
        """What `answer` returns, the first time; where that took long it is called twice. Raises what it raises."""
        found, first = self._once(answer)
        again = first
        if first > _LONG_SECONDS and self._in_vain < _IN_VAIN:
            again = min(first, self._once(answer)[1])
            self._in_vain += 1 if again > first / 2 else -1
        self.seconds += again
        self.setup += first - again
        return found

    def _once(self, answer: Callable[[], T]) -> tuple[T, float]:
        started = self._clock()
        found = answer()
        return found, self._clock() - started

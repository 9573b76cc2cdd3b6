"""What is set-up and what is pace, told by a clock of the test's own."""

from __future__ import annotations

import pytest

from attnlab.race.probe import Pace


class Box:
    """Takes `compiling` seconds the first time that a shape comes, and `seconds` every time."""

    def __init__(self, seconds: float, compiling: float = 0.0) -> None:
        self.seconds, self.compiling = seconds, compiling
        self.now, self.calls, self.compiled = 0.0, 0, set[str]()
        self.pace = Pace(lambda: self.now)

    def ask(self, shape: str) -> int:
        return self.pace.timed(lambda: self._answer(shape))

    def _answer(self, shape: str) -> int:
        self.calls += 1
        self.now += self.seconds + (0.0 if shape in self.compiled else self.compiling)
        self.compiled.add(shape)
        return self.calls


def test_compiling_is_no_pace() -> None:
    """Every shape is compiled for once, and answered twice then; the first answer is the one that counts."""
    box = Box(seconds=0.001, compiling=0.2)
    assert [box.ask(shape) for shape in ("a", "b", "a", "c")] == [1, 3, 5, 6]
    assert box.pace.seconds == pytest.approx(4 * 0.001)
    assert box.pace.setup == pytest.approx(3 * 0.2)


def test_what_is_slow_every_time_is_soon_asked_once() -> None:
    """Three times it is asked again in vain; what it took in vain is not counted."""
    box = Box(seconds=0.1)
    for _ in range(20):
        box.ask("a")
    assert box.calls == 20 + 3
    assert box.pace.seconds == pytest.approx(20 * 0.1)

"""The share of a forward pass that a model spends in attention, and what a faster backend would make of the whole.

Attention is what a backend computes, from query, key and value to the output of the heads. Two kinds of passes take
turns: as they are, for the time of the whole, and with each call of attention on the clock.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from attnlab.lab.capture import Recorder, evaluating, forward, recording
from attnlab.lab.diagnosis import attention_calls, called
from attnlab.text import counted, one_line, percent, ratio_text, seconds_text

#: pairs of passes, and how many there are at least where these take longer than so many seconds
_PAIRS, _LEAST_PAIRS, _SECONDS = 25, 5, 20.0
#: factors on the speed of attention that the whole is told for
FACTORS = (1.2, 1.4, 2.0)


@dataclass(frozen=True)
class Share:
    """What passes of a model took, in seconds, pair by pair: as they are, on the clock, and of the latter attention.

    calls : of attention, in a pass. tokens : of the text that it read, 0 where it was a module.
    """

    model: str
    tokens: int
    calls: int
    seconds: tuple[float, ...]
    seconds_on_clock: tuple[float, ...]
    attention: tuple[float, ...]

    @property
    def quartiles(self) -> list[float]:
        """Of the part that attention is of a pass, over the pairs; the second is the median."""
        shares = [part / whole for part, whole in zip(self.attention, self.seconds, strict=True)]
        return statistics.quantiles(shares, n=4, method="inclusive")

    def gain(self, factor: float) -> float:
        """How many times as fast a pass is where attention is `factor` times as fast (Amdahl 1967)."""
        share = self.quartiles[1]
        return 1 / max(sys.float_info.min, 1 - share + share / factor)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the gain by factor."""
        gains = {f"{one:g}": self.gain(one) for one in FACTORS}
        return asdict(self) | {"quartiles": self.quartiles, "gains": gains}

    def sentences(self) -> list[str]:
        """What was found, what counts, and what follows."""
        low, share, high = map(percent, self.quartiles)
        took, on_clock, part = map(statistics.median, (self.seconds, self.seconds_on_clock, self.attention))
        gains = [f"{one:g} times as fast, {ratio_text(self.gain(one))} times" for one in FACTORS]
        return [
            f"{self.model} spends {share} of a forward pass in attention, in {counted(self.calls, 'call')} ({low} to "
            f"{high} in the middle half of {len(self.seconds)} passes). Attention takes {seconds_text(part)} and a "
            f"pass {seconds_text(took)}, each the median by itself.",
            "Counted is what a backend computes, from query, key and value to the output of the heads, without "
            f"projections; with that on the clock a pass took {ratio_text(on_clock / took)} times as long.",
            f"The whole becomes faster where attention is {'; '.join(gains)}; "
            f"without any, {ratio_text(self.gain(math.inf))} times.",
        ]


class _Stopwatch(Recorder):
    """Adds up the seconds of all calls of attention, and keeps nothing else."""

    clock: Callable[[], float]
    seconds = 0.0

    def hand_on(self, function: Callable[..., Any], *args: Any, **rest: Any) -> Any:
        outermost, began = not self.inside, self.clock()
        found = super().hand_on(function, *args, **rest)
        self.seconds += outermost * (self.clock() - began)
        return found

    def note(self, *_: Any, **__: Any) -> None:
        """Nothing: what a call is given is not asked."""


def attention_share(
    model: Any,
    inputs: Any,
    *,
    length: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_event: Callable[[str], None] = lambda text: None,
) -> Share:
    """How much of a forward pass `model` spends in attention: evaluation mode, no gradients, no fused encoder layers.

    model, inputs, length : as for `attnlab.diagnose`; of several texts the first is read. clock : seconds.
    on_event : is told what happens.

    Raises ValueError as `attnlab.diagnose` does, and for a model that asks transformers for other kernels than eager or
    sdpa, which could not be timed as they are; Unavailable without the libraries of the extra `diagnose`.
    """
    on_event("loading")
    name, module, (given, *_) = called(model, inputs, length)
    configs = [getattr(one, "config", None) for one in module.modules()]
    kinds = {str(getattr(one, "_attn_implementation", None) or "sdpa") for one in configs if one is not None}
    if len(kinds) > 1 or not kinds <= {"eager", "sdpa"}:
        raise ValueError(
            f"the share is measured of eager or sdpa attention, and the model asks for {', '.join(sorted(kinds))}: "
            "load it with attn_implementation='sdpa'"
        )
    calls = len(attention_calls(module, given.inputs))

    def seconds(watch: _Stopwatch | None) -> float:
        with contextlib.nullcontext() if watch is None else recording(module, watch):
            began = clock()
            forward(module, given.inputs)
            return clock() - began

    pairs: list[tuple[float, float, float]] = []  # seconds of a pass, on the clock, and of its attention
    with evaluating(module):
        started = clock()
        while len(pairs) <= (_PAIRS if clock() - started < _SECONDS else _LEAST_PAIRS):
            on_event(f"pass {len(pairs)}")
            watch = _Stopwatch(module)
            watch.clock = clock
            turns = (None, watch) if len(pairs) % 2 else (watch, None)  # each kind is the first in turn
            took = {one: seconds(one) for one in turns}
            pairs.append((took[None], took[watch], watch.seconds))
    # the first ones start threads and take memory
    return Share(one_line(name, 80), given.count, calls, *zip(*pairs[1:], strict=True))

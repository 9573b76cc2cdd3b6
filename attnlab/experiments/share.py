"""The share of a forward pass that a model spends in attention, and what a faster backend would make of the whole.

Attention is what a backend computes, from query, key and value to the output of the heads. Two kinds of passes take
turns: as they are, for the time of the whole, and with each call of attention on the clock. That makes a pass longer;
by how much is told.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attnlab.experiments.capture import Recorder, evaluating, forward, recording
from attnlab.experiments.diagnosis import attention_calls, called
from attnlab.text import counted, listed, one_line, percent, ratio_text, seconds_text

#: pairs of passes, and how many there are at least where these take longer than so many seconds
_PAIRS, _LEAST_PAIRS, _SECONDS = 25, 5, 20.0
#: factors on the speed of attention that the whole is told for
FACTORS = (1.2, 1.4, 2.0)
#: passes with attention on the clock that take longer by more than this part are told of
_SLOWER = 0.1


@dataclass(frozen=True)
class Share:
    """Medians over `pairs` of passes. seconds : of a pass. attention : of these in `calls` calls of attention.

    share : attention / seconds, and its quartiles `low` and `high`. around : the share of the modules that call
    attention, their projections included; None where that is the whole model. slower : how much longer a pass took with
    attention on the clock, as a part.
    """

    model: str
    tokens: int
    threads: int
    pairs: int
    calls: int
    seconds: float
    attention: float
    share: float
    low: float
    high: float
    around: float | None
    slower: float

    def gain(self, factor: float) -> float:
        """How many times as fast the pass is where attention is `factor` times as fast (Amdahl 1967)."""
        return 1 / (1 - self.share + self.share / factor)

    @property
    def limit(self) -> float:
        """How many times as fast the pass would be without attention; infinite where it is nothing else."""
        return 1 / (1 - self.share) if self.share < 1 else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the gain by factor."""
        return asdict(self) | {"gains": {f"{one:g}": self.gain(one) for one in FACTORS}}

    def sentences(self) -> list[str]:
        """What was found, what counts, and what follows."""
        facts = [counted(self.calls, "call"), counted(self.threads, "thread")]
        facts = [counted(self.tokens, "token"), *facts] if self.tokens else facts
        around = "" if self.around is None else f"; with the modules that call it, {percent(self.around)}"
        gains = [f"{one:g} times as fast, {ratio_text(self.gain(one))} times" for one in FACTORS]
        said = [
            f"{self.model} spends {percent(self.share)} of a forward pass in attention: "
            f"{seconds_text(self.attention)} of {seconds_text(self.seconds)} ({', '.join(facts)}; "
            f"{percent(self.low)} to {percent(self.high)} in the middle half of {self.pairs} passes).",
            "Counted is what a backend computes, from query, key and value to the output of the heads, "
            f"without projections{around}.",
            f"The whole becomes faster where attention is {'; '.join(gains)}; "
            f"never more than {ratio_text(self.limit)} times.",
        ]
        if self.slower > _SLOWER:
            said.append(
                f"With attention on the clock a pass took {percent(self.slower)} longer: the share is that uncertain."
            )
        return said


class _Stopwatch(Recorder):
    """Times each call of attention, and the modules that make them; keeps no arrays."""

    def __init__(self, model: torch.nn.Module, clock: Callable[[], float]) -> None:
        super().__init__(model)
        self._clock, self._root = clock, model
        self.attention = self.around = 0.0
        #: of each module that is running: when it began, and whether it called attention itself
        self._running: list[tuple[float, bool]] = []
        self.whole = False

    def enter(self, module: torch.nn.Module, *_: Any) -> None:
        super().enter(module)
        self._running.append((self._clock(), False))

    def leave(self, module: torch.nn.Module, *_: Any) -> None:
        super().leave()
        began, calls = self._running.pop()
        self.around += calls * (self._clock() - began)
        self.whole |= calls and module is self._root

    def hand_on(self, function: Callable[..., Any], *args: Any, **rest: Any) -> Any:
        if self.inside:
            return super().hand_on(function, *args, **rest)
        began = self._clock()
        found = super().hand_on(function, *args, **rest)
        self.attention += self._clock() - began
        if self._running:
            self._running[-1] = self._running[-1][0], True
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
    """How much of a forward pass `model` spends in attention, in evaluation mode and without gradients.

    model, inputs, length : as for `attnlab.diagnose`; of several texts the first is read. clock : seconds.
    on_event : is told what happens.

    Raises ValueError as `attnlab.diagnose` does, and for a model that asks for other kernels than eager and sdpa, which
    could not be timed as they are; Unavailable without the libraries of the extra `diagnose`.
    """
    on_event("loading")
    name, module, (given, *_) = called(model, inputs, length)
    configs = [getattr(one, "config", None) for one in module.modules()]
    kinds = {str(one) for config in configs if (one := getattr(config, "_attn_implementation", None))}
    if kinds not in (set(), {"eager"}, {"sdpa"}):
        raise ValueError(
            f"attention of one kind is timed, eager or sdpa, and the model asks for {listed(sorted(kinds))}: "
            "load it with attn_implementation='sdpa'"
        )

    def passed(watch: _Stopwatch | None = None) -> float:
        """Seconds of a pass."""
        with contextlib.nullcontext() if watch is None else recording(module, watch):
            began = clock()
            forward(module, given.inputs)
            return clock() - began

    calls = len(attention_calls(module, given.inputs))
    whole, slower, watches = list[float](), list[float](), list[_Stopwatch]()
    with evaluating(module):
        passed(), passed(_Stopwatch(module, clock))  # the first ones start threads and take memory
        started = clock()
        while len(whole) < (_PAIRS if clock() - started < _SECONDS else _LEAST_PAIRS):
            on_event(f"pass {len(whole) + 1}")
            watches.append(_Stopwatch(module, clock))
            if len(whole) % 2:
                slower.append(passed(watches[-1]))
                whole.append(passed())
            else:
                whole.append(passed())
                slower.append(passed(watches[-1]))
    shares = [watch.attention / one for watch, one in zip(watches, whole, strict=True)]
    low, share, high = statistics.quantiles(shares, n=4, method="inclusive")
    around = [watch.around / one for watch, one in zip(watches, slower, strict=True)]
    return Share(
        model=one_line(name, 80),
        tokens=given.count,
        threads=torch.get_num_threads(),
        pairs=len(whole),
        calls=calls,
        seconds=statistics.median(whole),
        attention=statistics.median(watch.attention for watch in watches),
        share=share,
        low=low,
        high=high,
        around=None if any(watch.whole for watch in watches) else statistics.median(around),
        slower=statistics.median(slower) / statistics.median(whole) - 1,
    )

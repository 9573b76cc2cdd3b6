"""What does the harness add to a call of a millisecond, library by library?

``python benchmarks overhead [CONTENDER ...] [--pairs 12] [--seconds 1] [--out FILE.md]``, on a machine that does
nothing else. By default every backend that runs here. Each pair is two fresh processes, one after the other, the first
of them in turn: one that makes the call in a loop, and one of a race, stopped and asked by another process. The
interval of the ratio is Student's over the logarithms of the pairs' ratios.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
from common import command_line, publish, say, table
from scipy.stats import ttest_1samp

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends
from attnlab.errors import Unavailable
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.selftest import seconds_alone
from attnlab.workload.workload import Workload

#: what is promised: so much is added at most to a call of so many seconds
PROMISED, CALL_SECONDS = 0.02, 1e-3
#: lengths from which the one is taken whose call is nearest to that, at 8 heads of 64
LENGTHS = tuple(2**power for power in range(4, 13))
HEAD = ("contender", "n", "bare, ms", "in the harness, ms", "added", "95 % interval", "pairs", "at most 2 %")
SAID = (
    "A race of one contender against a bare loop over the same call in a bare process (8 heads, head_dim 64, float32, "
    "the length whose call is nearest to 1 ms), in pairs of fresh processes in turn. Promised: at most "
    f"{PROMISED:.0%}. Two fresh processes of one backend differ by where their memory lies: that is in the intervals."
)

Seconds = Callable[[Contender, Workload], float]


def workload_for(contender: Contender, seconds: Seconds) -> Workload:
    """The workload whose call takes nearest to a millisecond, by ratio; none beyond the first over 4 ms is tried."""
    tried: dict[Workload, float] = {}
    for length in LENGTHS:
        workload = Workload(queries=length, keys=length)
        tried[workload] = seconds(contender, workload)
        if tried[workload] > 4 * CALL_SECONDS:
            break
    return min(tried, key=lambda one: abs(math.log(tried[one] / CALL_SECONDS)))


def main() -> None:
    """Measure one contender after the other, and make the page."""
    parser = command_line(__doc__)
    parser.add_argument("contenders", nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed calls in each process")
    chosen = parser.parse_args()

    def bare(one: Contender, workload: Workload) -> float:
        return seconds_alone(one, workload, seconds=chosen.seconds)

    def harness(one: Contender, workload: Workload) -> float:
        once = {"processes": 1, "most_processes": 1, "min_rounds": 6, "max_rounds": 10**6}
        limits = Limits(**once, workload_seconds=chosen.seconds)
        with Conductor([one], limits=limits, memory=False) as conductor:
            (result,) = conductor.race(workload)
        if result.latency is None:
            raise RuntimeError(f"{result.outcome}: {result.reason}")
        return result.latency.median

    rows, failed = [], []
    for text in chosen.contenders or backends():
        one = Contender.parse(text)
        say(f"measuring: {text}")
        try:
            workload = workload_for(one, bare)
            took: dict[Seconds, list[float]] = {bare: [], harness: []}
            for number in range(chosen.pairs):
                for way in list(took)[:: -1 if number % 2 else 1]:
                    took[way].append(way(one, workload))
        except (Unavailable, RuntimeError) as fault:
            failed.append(f"Not measured: `{text}`: {fault}.")
            continue
        logs = np.log(took[harness]) - np.log(took[bare])
        ends = ttest_1samp(logs, 0).confidence_interval()
        middle, low, high = np.expm1([logs.mean(), *ends])
        verdict = "yes" if high <= PROMISED else "NO" if low > PROMISED else "not decided"
        times = [f"{1e3 * statistics.median(took[way]):.3f}" for way in (bare, harness)]
        span = f"{low:+.2%} to {high:+.2%}"
        rows.append((f"`{one.name}`", workload.keys, *times, f"{middle:+.2%}", span, chosen.pairs, verdict))
    title = "What the harness adds to a call"
    publish(title, "overhead", SAID, table(HEAD, rows), *failed, out=chosen.out)

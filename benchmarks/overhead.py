"""What does the harness add to a call of a millisecond, and `attnlab.fastest` to a call of PyTorch's function?

``python benchmarks overhead [CONTENDER ...] [--pairs 12] [--seconds 1] [--out FILE.md]``, on a machine that does
nothing else. By default every backend that sets up quickly. Each pair is two fresh processes, one after the other, the
first of them in turn: one that makes the call in a loop, and one of a race. The interval of the ratio is Student's over
the logarithms of the pairs' ratios. `attnlab.fastest` is timed by turns with the function that it stands for.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import timeit
from typing import Any

import numpy as np
from common import REPOSITORY, command_line, publish, say, table
from scipy.stats import ttest_1samp

import attnlab
from attnlab.backends.contender import Contender
from attnlab.backends.discovery import unasked
from attnlab.race.admission import Limits
from attnlab.race.conductor import Conductor
from attnlab.workload.workload import Workload

#: what is promised: so much is added at most to a call of so many seconds, and so much by `attnlab.fastest`
PROMISED, CALL_SECONDS, OF_FASTEST = 0.02, 1e-3, 5e-6
#: lengths from which the one is taken whose call is nearest to that, at 8 heads of 64
LENGTHS = tuple(2**power for power in range(4, 13))
HEAD = ("contender", "n", "bare, ms", "in the harness, ms", "added", "95 % interval", "pairs", "at most 2 %")
BARE = """
import json, statistics, sys, time
from attnlab.backends.discovery import load
from attnlab.workload.workload import Workload
name, length, seconds = json.loads(sys.argv[1])
call = load(name).bind(Workload(queries=length, keys=length))
taken, end = [], time.perf_counter() + 0.3 + seconds
while (start := time.perf_counter()) < end:
    call()
    taken.append((start, time.perf_counter() - start))
print(statistics.median(spent for start, spent in taken if start > end - seconds or len(taken) < 3))
"""


def bare(name: str, length: int, seconds: float) -> float:
    """Seconds of a call in a fresh process that does nothing else. Raises RuntimeError where there is none."""
    words = [sys.executable, "-P", "-c", BARE, json.dumps([name, length, seconds])]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "it printed nothing").splitlines()[-1])
    return float(done.stdout)


def harness(name: str, length: int, seconds: float) -> float:
    """Seconds of a call in a race of one visit. Raises RuntimeError where it was not measured."""
    limits = Limits(visits=1, most_visits=1, visit_seconds=seconds)
    with Conductor([Contender.parse(name)], limits=limits, memory=False) as conductor:
        (result,) = conductor.race(Workload(queries=length, keys=length))
    if result.latency is None:
        raise RuntimeError(f"{result.outcome}: {result.reason}")
    return result.latency.median


def length_for(name: str) -> int:
    """The length whose call takes nearest to a millisecond, by ratio; none beyond the first over 4 ms is tried."""
    tried: dict[int, float] = {}
    for length in LENGTHS:
        tried[length] = bare(name, length, 0.2)
        if tried[length] > 4 * CALL_SECONDS:
            break
    return min(tried, key=lambda one: abs(math.log(tried[one] / CALL_SECONDS)))


def row(name: str, pairs: int, seconds: float) -> tuple[object, ...]:
    """What a contender's call takes in either way."""
    length = length_for(name)
    took: dict[Any, list[float]] = {bare: [], harness: []}
    for number in range(pairs):
        for way in list(took)[:: -1 if number % 2 else 1]:
            took[way].append(way(name, length, seconds))
    logs = np.log(took[harness]) - np.log(took[bare])
    middle, low, high = np.expm1([logs.mean(), *ttest_1samp(logs, 0).confidence_interval()])
    verdict = "yes" if high <= PROMISED else "NO" if low > PROMISED else "not decided"
    times = [f"{1e3 * statistics.median(took[way]):.3f}" for way in (bare, harness)]
    return f"`{name}`", length, *times, f"{middle:+.2%}", f"{low:+.2%} to {high:+.2%}", pairs, verdict


def of_fastest(repeats: int = 21, calls: int = 20_000) -> str:
    """What choosing adds to a call, where PyTorch's own function answers; one thread."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(1)
    found = attnlab.fastest(REPOSITORY / "reports" / "reference", elsewhere=True)
    arrays, added = (torch.randn(1, 4, 16, 64),) * 3, []
    for repeat in range(repeats):
        order = [scaled_dot_product_attention, found][:: 1 if repeat % 2 else -1]
        took = {each: timeit.timeit(lambda each=each: each(*arrays), number=calls) / calls for each in order}
        added.append(took[found] - took[scaled_dot_product_attention])
    figures = ", ".join(f"{1e6 * of(added):.2f} µs" for of in (statistics.median, min, max))
    return f"`attnlab.fastest` adds {figures} (median, least, most); promised: under {1e6 * OF_FASTEST:g} µs."


def main() -> None:
    """Measure one contender after the other, and make the page."""
    parser = command_line(__doc__)
    parser.add_argument("contenders", nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed calls in each process")
    asked, rows, failed = parser.parse_args(), [], []
    for name in asked.contenders or unasked():
        say(f"measuring: {name}")
        try:
            rows.append(row(name, asked.pairs, asked.seconds))
        except RuntimeError as fault:
            failed.append(f"Not measured: `{name}`: {fault}.")
    said = (
        "A race of one contender against a bare loop over the same call (8 heads, head_dim 64, float32), in pairs of "
        f"fresh processes in turn. Promised: at most {PROMISED:.0%}. Two fresh processes of one backend differ by "
        "where their memory lies: that is in the intervals."
    )
    publish(
        "What the harness adds", "overhead", said, table(HEAD, rows), *failed, of_fastest(), out=asked.out
    )

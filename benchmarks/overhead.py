"""What does the harness add to a call of a millisecond, library by library?

``python benchmarks/overhead.py [CONTENDER ...] [--pairs 12] [--seconds 1] [--out FILE.md]``, on a machine that does
nothing else. By default every backend that runs here. Each pair is two fresh processes, one after the other, the first
of them in turn: one that is never stopped (`attnlab.race.selftest.seconds_alone`), and one of a race,
stopped and asked through pipes. The interval of the ratio is Student's over the logarithms of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends, load
from attnlab.environment import environment
from attnlab.errors import Unavailable
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.selftest import seconds_alone

#: what is promised: so much is added at most to a call of so many seconds
PROMISED, CALL_SECONDS = 0.02, 1e-3
#: lengths from which the one is taken whose call is nearest to that, at 8 heads of 64
LENGTHS = tuple(2**power for power in range(4, 13))

Seconds = Callable[[Contender, Workload], float]


@dataclass(frozen=True)
class Row:
    """One contender: seconds a call of each pair, bare and in the harness."""

    contender: str
    library: str
    workload: Workload
    bare: tuple[float, ...]
    harness: tuple[float, ...]

    def added(self) -> tuple[float, float, float]:
        """The part of a call that the harness adds, and its 95 % interval; infinite for fewer than two pairs."""
        logs = [math.log(one / other) for one, other in zip(self.harness, self.bare, strict=True)]
        middle = statistics.fmean(logs)
        reach = math.inf
        if len(logs) > 1:
            from scipy.stats import t

            reach = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.expm1(middle), math.expm1(middle - reach), _expm1(middle + reach)

    def verdict(self) -> str:
        """Whether the promise is kept, as far as the interval tells."""
        _, low, high = self.added()
        return "yes" if high <= PROMISED else "NO" if low > PROMISED else "not decided"


def _expm1(value: float) -> float:
    return math.expm1(value) if value < 700 else math.inf


def workload_for(contender: Contender, seconds: Seconds) -> Workload:
    """The workload whose call takes nearest to a millisecond, by ratio; none beyond the first over 4 ms is tried."""
    tried: dict[int, float] = {}
    for length in LENGTHS:
        tried[length] = seconds(contender, Workload(queries=length, keys=length))
        if tried[length] > 4 * CALL_SECONDS:
            break
    best = min(tried, key=lambda length: abs(math.log(tried[length] / CALL_SECONDS)))
    return Workload(queries=best, keys=best)


def in_harness(contender: Contender, workload: Workload, seconds: float) -> float:
    """Median seconds a call of a race with nobody else, in one fresh process. Raises RuntimeError without a figure."""
    limits = Limits(processes=1, most_processes=1, min_rounds=6, max_rounds=10**6, workload_seconds=seconds)
    with Conductor([contender], limits=limits, memory=False) as conductor:
        (result,) = conductor.race(workload)
    if result.latency is None:
        raise RuntimeError(f"{contender.name}: {result.outcome}: {result.reason}")
    return result.latency.median


def measure(contender: Contender, library: str, pairs: int, bare: Seconds, harness: Seconds) -> Row:
    """So many pairs of fresh processes; in every second pair the harness comes first."""
    workload = workload_for(contender, bare)
    found: dict[str, list[float]] = {"bare": [], "harness": []}
    ways = {"bare": bare, "harness": harness}
    for number in range(pairs):
        for way in list(ways) if number % 2 == 0 else reversed(list(ways)):
            found[way].append(ways[way](contender, workload))
    return Row(contender.name, library, workload, tuple(found["bare"]), tuple(found["harness"]))


def _percent(part: float) -> str:
    return f"{part:+.2%}" if part < 10 else "over +1000%"


def page(rows: Sequence[Row], failed: Sequence[str], where: str) -> str:
    """The Markdown page."""
    head = (
        "contender",
        "library",
        "n",
        "bare, ms",
        "in the harness, ms",
        "added",
        "95 % interval",
        "pairs",
        "at most 2 %",
    )
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row in rows:
        added, low, high = row.added()
        cells = (
            f"`{row.contender}`",
            row.library,
            str(row.workload.keys),
            *(f"{statistics.median(one) * 1e3:.3f}" for one in (row.bare, row.harness)),
            _percent(added),
            f"{_percent(low)} to {_percent(high)}",
            str(len(row.bare)),
            row.verdict(),
        )
        lines.append("| " + " | ".join(cells) + " |")
    parts = [
        "# What the harness adds to a call",
        where,
        "A race of one contender against a bare loop over the same call in a bare process (8 heads, head_dim 64, "
        "float32, the length whose call is nearest to 1 ms), in pairs of fresh processes in turn. Promised: at most "
        f"{PROMISED:.0%}. Two fresh processes of one backend differ by where their memory lies: that is in "
        "the intervals.",
        "\n".join(lines),
        *(f"Not measured: {one}." for one in failed),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Measure and print the page, written after every contender."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("contenders", nargs="*", default=[])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed calls in each process")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    about = environment()
    where = (
        f"{datetime.now(UTC).date()}, {about['cpu']}, {about['cores']['logical']} cores, {about['python']}. "
        "Made by `python benchmarks/overhead.py`."
    )

    def bare(one: Contender, workload: Workload) -> float:
        return seconds_alone(one, workload, seconds=chosen.seconds)

    def harness(one: Contender, workload: Workload) -> float:
        return in_harness(one, workload, chosen.seconds)

    rows: list[Row] = []
    failed: list[str] = []
    for text in chosen.contenders or backends():
        one = Contender.parse(text)
        print(f"measuring: {text}", file=sys.stderr)
        try:
            library = load(one.backend, settings=dict(one.settings)).library
            rows.append(measure(one, library, chosen.pairs, bare, harness))
        except (Unavailable, RuntimeError) as fault:
            failed.append(f"`{text}`: {fault}")
        if chosen.out:
            chosen.out.write_text(page(rows, failed, where), encoding="utf-8")
    print(page(rows, failed, where))


if __name__ == "__main__":
    main()

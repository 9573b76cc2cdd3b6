"""A run as tidy tables: the values that report, terminal and page show.

Numbers are in base units (s, B, FLOP/s); a speedup above 1 means faster. Unknown values are None.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnlab.race.compare import Comparison
from attnlab.runs.diff import NOT_ASKED, Diff
from attnlab.runs.store import Run
from attnlab.stats.analysis import Analysis, Cell, find_crossovers, slope_of
from attnlab.stats.intervals import Verdict
from attnlab.stats.ranking import Sure, is_second_entry
from attnlab.text import finite
from attnlab.workload.result import Outcome, Result

if TYPE_CHECKING:
    import pandas as pd

#: the outcome of a measurement that exceeds the machine's ceiling, or was disturbed in every round
NOT_BELIEVED = "not believed"
NO_ROUND = "every round was disturbed: by other programs, or two clocks differed"
#: where memory decides between contenders, peaks up to this many times the least one count as equal
_MORE_MEMORY = 1.5
#: most head counts and most lengths in one table of a report
MOST_HEADS, MOST_LENGTHS = 6, 10


@dataclass(frozen=True, eq=False)
class Frames:
    """The tables of `run`, each made when it is first used."""

    run: Run

    @cached_property
    def analysis(self) -> Analysis:
        """The results, judged: see `attnlab.stats.analysis`."""
        return self.run.judged()

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row for each contender and workload, whatever its outcome: see `_result`."""
        cells = {cell.workload: cell for cell in self.analysis.cells}
        once = [one for one in self.run.results if not is_second_entry(one.contender)]
        baseline = self.analysis.baseline
        return _frame((_result(cells[one.workload], one, baseline) for one in once), _RESULT)

    @cached_property
    def winners(self) -> pd.DataFrame:
        """A row for each workload at which any contender was measured: the fastest, and its lead over the runner-up."""
        return _frame(
            map(_winner, (one for one in self.analysis.cells if one.won.sure is not Sure.NOBODY)), _WINNER
        )

    @cached_property
    def by_length(self) -> pd.DataFrame:
        """The results with a time of the first group at its largest head count: the longest length first, then by time.

        `times` : the time over that of the fastest contender, 1 for the fastest itself. `unsure` : whether this has no
        interval; it is then a ratio of medians.
        """
        timed = self.results[self.results.seconds.notna()]
        found: pd.DataFrame = timed[timed.group == timed.group.iloc[0]] if len(timed) else timed
        found = found[found.heads == found.heads.max()].sort_values(["n", "seconds"], ascending=[False, True])
        ranked = [(one.workload.label, one.ranking.best) for one in self.analysis.cells if one.ranking]
        best = found.workload.map({name: one.contender for name, one in ranked})
        seconds = found.workload.map({name: one.seconds for name, one in ranked})
        unsure = found.behind.isna() & (found.contender != best)
        times = found.behind.fillna((found.seconds / seconds).where(unsure, 1.0))
        return found.assign(best_seconds=seconds, times=times, unsure=unsure)

    @cached_property
    def crossovers(self) -> pd.DataFrame:
        """A row for each crossover: below the length `n`, contender `below` is faster; above it, `above` is faster."""
        rows = (
            {
                "group": group.name,
                "heads": heads,
                "below": one.below,
                "above": one.above,
                **_span("n", one.length, one.low, one.high),
            }
            for group in self.analysis.groups
            for heads, one in find_crossovers(self.analysis, group)
        )
        return _frame(rows, ("group", "heads", "below", "above", *_ends("n")))

    @cached_property
    def control(self) -> pd.DataFrame:
        """A row for each workload with a contender entered twice: the speedup of the second entry over the first."""
        rows = (
            {
                "workload": one.workload.label,
                "contender": one.contender,
                "differs": one.differs,
                "between_processes": one.between,
                **speedup_of("speedup", one.verdict),
            }
            for one in self.analysis.controls
        )
        return _frame(rows, ("workload", "contender", "differs", "between_processes", *_ends("speedup")))

    @cached_property
    def growth(self) -> pd.DataFrame:
        """A row for each contender and head count with at least three lengths: the slope of ln(time) against ln(n)."""
        known = self.results[self.results.seconds.notna()].sort_values("heads", kind="stable")
        named = ["group", "heads", "contender"]
        rows = (
            {
                **dict(zip(named, at, strict=True)),
                **asdict(one),
                **_span("slope", one.slope, one.low, one.high),
            }
            for at, mine in known.groupby(named, sort=False)
            if (one := slope_of(dict(zip(mine.n, mine.seconds, strict=True))))
        )
        return _frame(rows, ("group", "contender", "heads", "first", "last", *_ends("slope")))

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row for each round of each contender that was timed: its seconds, and whether it was disturbed."""
        cells = {cell.workload: cell for cell in self.analysis.cells}
        rows = (
            {
                **_place(cells[one.workload]),
                "contender": one.contender,
                "round": at,
                "visit": one.latency.visits[at],
                "seconds": took,
                "disturbed": at in one.latency.disturbed_rounds,
            }
            for one in self.run.results
            if one.latency
            for at, took in one.latency.by_round.items()
        )
        return _frame(rows, ("group", "heads", "n", "contender", "round", "visit", "seconds", "disturbed"))

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """A row for each contender and number format: the error that is the largest share of its budget."""
        checked = self.results[self.results.error.notna()]
        checked = checked.assign(share=(checked.error / checked.budget).where(checked.budget > 0, math.inf))
        named = ["contender", "dtype", "computes_in"]
        worst = checked.sort_values("share", ascending=False).groupby(named, dropna=False, sort=False).head(1)
        return worst[[*named, "group", "n", "heads", "error", "budget", "share", "outcome"]]

    @cached_property
    def contenders(self) -> pd.DataFrame:
        """A row for each measured contender: the number of workloads, set-up time, threads, kernels and versions."""
        rows, known = [], mapping(self.run.environment.get("contenders"))
        for name, mine in self.results.groupby("contender", sort=False):
            timed, facts = mine[mine.seconds.notna()], mapping(known.get(str(name)))
            if timed.empty:
                continue
            pools = facts.get("pools")
            threads = [mapping(one).get("num_threads") for one in pools] if isinstance(pools, list) else []
            versions = mapping(facts.get("versions")).items()
            rows.append(
                {
                    "contender": name,
                    "measured": len(timed),
                    "asked": len(mine),
                    "setup_seconds": timed.setup_seconds.median(),
                    "threads": max((one for one in threads if isinstance(one, int)), default=None),
                    "kernels": ", ".join(dict.fromkeys(timed.kernel.dropna())) or None,
                    "versions": ", ".join(f"{one} {number}" for one, number in versions),
                }
            )
        return _frame(rows, _CONTENDER)

    @cached_property
    def left_out(self) -> pd.DataFrame:
        """A row for each contender and outcome without a time: `at` is the number of such workloads, `of` that of all.

        n, heads and reason are those of the smallest workload. The outcome is `measured` if the contender has a time
        from some visits; the reason is then why it was not measured in others.
        """
        gone = self.results.seconds.isna() | self.results.left.notna()
        without = (
            self.results[gone]
            .sort_values("score_bytes", kind="stable")
            .groupby(["contender", "outcome"], sort=False)
        )
        counted = without.agg(
            at=("n", "size"), n=("n", "first"), heads=("heads", "first"), reason=("reason", "first")
        ).reset_index()
        return counted.assign(of=counted.contender.map(self.results.contender.value_counts()))

    def choice(self, group: str | None = None) -> dict[str, Any] | None:
        """The contender to run if one must serve all workloads, or all of a group; None if none has a time.

        It is the fastest, or not clearly slower and surely at most 5 % slower, at the largest number of workloads. If
        several contenders are, those that need about the least memory at the largest workload remain; of these it is
        the first in the plan.

        ranked : all contenders with a rank. alone : no two contenders with different kernels have a time at any of the
        workloads. won, close, tied, behind, absent : the numbers of workloads at which it is clearly the fastest, is
        first with others that are at most 5 % slower, is first with others that may be further apart, is clearly
        slower, and has no time. lead : its least and its largest speedup over the runner-up where it won. open : the
        rows at which it is tied. worst : the row at which another contender leads by the largest factor. nearest : the
        row at which it comes nearest to the machine's best matrix product.
        """
        results, winners = (
            one if group is None else one[one.group == group] for one in (self.results, self.winners)
        )
        ranked = results[results.near.notna()]
        near = ranked[ranked.near == True].contender.value_counts()  # noqa: E712 (it may be None)
        best = [one for one in self.analysis.names if one in near and near[one] == near.max()]
        if not best:
            return None
        largest = peaks(results, best)
        known = largest[largest.contender.isin(best)].set_index("contender").peak_bytes
        if len(known) == len(best):
            best = [one for one in best if known[one] <= _MORE_MEMORY * known.min()]
        name = best[0]
        mine = ranked[ranked.contender == name].set_index("workload")
        mine = mine.rename(columns={"first": "is_first", "seconds": "its_seconds"})
        at: Any = winners.set_index("workload").join(
            mine[["is_first", "behind", "behind_low", "its_seconds"]]
        )
        first = at.is_first == True  # noqa: E712
        won, close, tied = (at[first & (at.sure == sure)] for sure in (Sure.DECIDED, Sure.CLOSE, Sure.TIE))
        behind = at[~first & (at.behind_low > 1)]
        absent = at[at.its_seconds.isna()]
        whys = results[(results.contender == name) & results.workload.isin(absent.index)].reason
        close_to, tied_with = (
            [one for one in dict.fromkeys(cells["first"].explode()) if one != name] for cells in (close, tied)
        )
        worst = behind.sort_values("behind", ascending=False, kind="stable").head(1).itertuples()
        nearest = mine.dropna(subset="share_of_matmul").sort_values("share_of_matmul").tail(1)
        return {
            "name": name,
            "sizes": len(at),
            "alone": set(at.sure) == {Sure.ALONE},
            "ranked": list(dict.fromkeys(ranked.contender)),
            "known": bool({Sure.DECIDED, Sure.CLOSE, Sure.TIE}.intersection(at.sure)),
            "won": len(won),
            "close": len(close),
            "tied": len(tied),
            "lead": (won.speedup.min(), won.speedup.max()) if won.speedup.notna().any() else None,
            "runners_up": list(dict.fromkeys(won.runner_up.dropna())),
            "close_to": close_to,
            "tied_with": tied_with,
            "open": list(tied.itertuples()),
            "behind": len(behind),
            "worst": next(worst, None),
            "nearest": next(nearest.itertuples(), None),
            "others": list(dict.fromkeys(behind.contender)),
            "absent": len(absent),
            "absent_why": next(iter(whys), None),
        }


def peaks(results: pd.DataFrame, names: Collection[str]) -> pd.DataFrame:
    """All results with a memory peak at one workload, the smallest peak first.

    Of the workloads at which the most of `names` have a peak, it is the one with the largest score matrix.
    """
    known = results[results.peak_bytes.notna()].sort_values("peak_bytes")
    mine = known[known.contender.isin(names)].groupby("workload")
    sizes = mine.agg(count=("n", "size"), score_bytes=("score_bytes", "first"))
    largest = sizes.sort_values(["count", "score_bytes"]).index[-1:]
    found: pd.DataFrame = known[known.workload.isin(largest)]
    return found


_RESULT = (
    "group", "heads", "n", "workload", "contender", "dtype", "computes_in", "outcome", "reason", "left",
    "kernel", "asked_kernel", "seconds", "visits", "speedup", "speedup_low", "speedup_high", "verdict",
    "behind", "behind_low", "behind_high", "first", "near", "peak_bytes", "setup_seconds", "error", "budget", "flops",
    "limit_flops", "share_of_matmul", "score_bytes", "output_bytes",
)  # fmt: skip
_WINNER = (
    "group", "heads", "n", "workload", "sure", "contender", "first", "same_kernel", "seconds", "runner_up", "speedup",
    "speedup_low", "speedup_high", "not_compared",
)  # fmt: skip
_CONTENDER = (
    "contender", "measured", "asked", "setup_seconds", "threads", "kernels", "versions",
)  # fmt: skip
_DIFFERENCE = (
    "workload", "contender", "changed", "outcome_was", "outcome", "seconds_was", "seconds", "kernel_was", "kernel",
    "peak_was", "peak", "speedup", "was", "was_low", "was_high", "now", "now_low", "now_high",
)  # fmt: skip


def _frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    made = pd.DataFrame(list(rows), columns=list(columns))
    for name in made.columns[[not pd.api.types.is_numeric_dtype(one) for one in made.dtypes]]:
        made[name] = (
            made[name].astype(object).where(made[name].notna(), None)
        )  # None, not NaN, for a missing value
    return made


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain data for JSON: None for missing and infinite values."""
    return finite(frame.to_dict("records"), named=False)  # type: ignore[no-any-return]


def _place(cell: Cell) -> dict[str, Any]:
    one = cell.workload
    return {"group": cell.group, "heads": one.heads, "n": one.keys, "workload": one.label}


def _result(cell: Cell, one: Result, baseline: str) -> dict[str, Any]:
    """The row of a contender at a workload. Values that need a time are None if no time is believed.

    `speedup` is over the run's baseline; `behind` is the speedup of the fastest over this contender. `near` : whether
    it is the fastest, or not clearly slower and surely at most 5 % slower; None if it is not ranked.
    """
    name, workload = one.contender, cell.workload
    beyond = cell.faults.get(name)
    fault = NO_ROUND if one.uncounted else beyond and f"beyond the machine's {beyond}"
    standing = None if fault else cell.standing(name)
    fell_back = one.asked_kernel and one.kernel and one.asked_kernel not in one.kernel
    row: dict[str, Any] = {
        **_place(cell),
        "contender": name,
        "dtype": workload.dtype,
        "computes_in": one.computes_in,
        "outcome": NOT_BELIEVED if fault else str(one.outcome).replace("_", " "),
        "reason": fault or one.left or one.reason,
        "left": one.left,
        "kernel": one.kernel,
        "asked_kernel": one.asked_kernel if fell_back else None,
        "error": one.accuracy.relative_error if one.accuracy else None,
        "budget": one.accuracy.budget if one.accuracy else None,
        "score_bytes": workload.score_bytes,
        "output_bytes": workload.output_bytes,
    }
    if standing is None or one.latency is None:
        return row
    against, rate = standing.against_baseline, cell.rates.get(name)
    row |= {
        "seconds": standing.seconds,
        "visits": len(set(one.latency.visits.values())),
    }
    row |= dict.fromkeys(_ends("speedup"), 1.0) if name == baseline else speedup_of("speedup", against)
    row |= {"verdict": "baseline" if name == baseline else str(against.kind) if against else None}
    best = standing.against_best
    row |= _span("behind", best.ratio, best.low, best.high) if best else {}
    if cell.ranking and cell.ranking.of(name):
        row["near"] = name in cell.ranking.names_of(cell.ranking.near)
    row |= {"first": name in cell.first, "peak_bytes": one.peak_bytes, "setup_seconds": one.setup_seconds}
    if rate is not None:
        row |= {
            "flops": rate.flops,
            "limit_flops": rate.flops / max(rate.compute, rate.bandwidth),
            "share_of_matmul": rate.compute,
        }
    return row


def _winner(cell: Cell) -> dict[str, Any]:
    won = cell.won
    return {
        **_place(cell),
        "sure": str(won.sure),
        "contender": won.name,
        "first": list(won.first),
        "same_kernel": dict(won.aliases),
        "seconds": won.seconds,
        "runner_up": won.ahead.over if won.ahead else None,
        **(_span("speedup", won.ahead.ratio, won.ahead.low, won.ahead.high) if won.ahead else {}),
        "not_compared": list(won.not_compared),
    }


# -- speedups: ratios of time, inverted ----------------------------------------------------------------


def speedup_of(name: str, verdict: Verdict | None) -> dict[str, float | None]:
    """The speedup of a verdict's contender over its baseline, with its interval, as columns."""
    if verdict is None:
        return dict.fromkeys(_ends(name))
    low, high = (1 / verdict.high, 1 / verdict.low) if verdict.low > 0 else (None, None)
    return dict(zip(_ends(name), (1 / verdict.ratio, low, high), strict=True))


def _span(name: str, value: float, low: float | None, high: float | None) -> dict[str, float | None]:
    return dict(zip(_ends(name), (value, low or None, high if low else None), strict=True))


def _ends(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def comparison(found: Comparison) -> pd.DataFrame:
    """A row for each contender of one race: its speedup over the baseline, and its entry in `Comparison.to_json`."""
    rows = []
    for one in found.to_json()["contenders"]:
        value, low, high = one["ratio"], one["ratio_low"], one["ratio_high"]
        spans = (value and 1 / value, low and 1 / high, low and 1 / low)
        rows.append({**one, **dict(zip(_ends("speedup"), spans, strict=True))})
    return _frame(rows, [*rows[0]])


# -- parts of large runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Rows of one group of workloads, for a table.

    heads, lengths : those to show; of many, evenly spaced ones with both ends. cells : all rows by (heads, n). whole :
    whether all heads and lengths are shown.
    """

    name: str
    heads: list[int]
    lengths: list[int]
    cells: Mapping[tuple[int, int], Any]
    whole: bool


def grids(frame: pd.DataFrame) -> list[Grid]:
    """One grid for each group in `frame`, which has one row for each workload."""
    found = []
    for name, rows in frame.groupby("group", sort=False):
        heads, lengths = sorted(set(rows.heads)), sorted(set(rows.n))
        some, few = evenly(heads, MOST_HEADS), evenly(lengths, MOST_LENGTHS)
        cells: dict[tuple[int, int], Any] = dict(
            zip(zip(rows.heads, rows.n, strict=True), rows.itertuples(), strict=True)
        )
        found.append(Grid(str(name), some, few, cells, (some, few) == (heads, lengths)))
    return found


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """All of `values`, or `most` of them that are evenly spaced, with the first and the last."""
    count = min(most, len(values))
    return [values[round(at * (len(values) - 1) / max(1, count - 1))] for at in range(count)]


# -- stored environments, and two runs side by side ----------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """An entry of a stored environment, which may hold anything; empty if it is not a mapping."""
    return value if isinstance(value, Mapping) else {}


def differences(found: Diff) -> pd.DataFrame:
    """A row for each contender and workload of two runs, unless neither run measured it, and its outcome is the same or
    one run did not contain it.

    `speedup` is that of the second run over the first. `was` and `now` are the speedups over the baseline in each run.
    """
    rows = []
    for row in found.rows:
        was, now = row.was, row.now
        outcomes = (was.outcome, now.outcome)
        if Outcome.MEASURED not in outcomes and (row.news == 2 or NOT_ASKED in outcomes):
            continue
        told: dict[str, Any] = {"workload": row.workload, "contender": row.contender, "changed": row.changed}
        for name in ("outcome", "seconds", "kernel"):
            told |= {f"{name}_was": getattr(was, name), name: getattr(now, name)}
        told |= {"peak_was": was.peak_bytes, "peak": now.peak_bytes}
        told["speedup"] = was.seconds / now.seconds if was.seconds and now.seconds else None
        before, after = was.against_baseline, now.against_baseline
        rows.append({**told, **speedup_of("was", before), **speedup_of("now", after)})
    return _frame(rows, _DIFFERENCE)

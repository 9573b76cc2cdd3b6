"""What each tool's figures claim to a reader, and how often that is so. Pure functions of stored trials.

A trial is a dictionary: ``ratio`` (second over first), ``spent_s``, ``truth``, ``aa`` (whether both are the same), and
what the tool told, as `benchmarks/peer_tools/tools.py` stores it; or ``failed`` in place of that. A claim is 1 where
the second is called slower, -1 where it is called faster, and 0 where nothing is claimed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Trial = Mapping[str, Any]
#: a difference of medians that people set as the threshold of an alarm
THRESHOLD = 0.05


def _sign(first: float, second: float) -> int:
    return (second > first) - (second < first)


def rounded(value: float, figures: int) -> float:
    """`value` to so many significant figures, as torch.utils.benchmark trims them."""
    return round(value, figures - math.ceil(math.log10(abs(value)))) if value else 0.0


def beyond_threshold(trial: Trial) -> int:
    """The ratio is off 1 by more than `THRESHOLD`, either way round."""
    ratio = trial["ratio"]
    return _sign(1.0, ratio) if max(ratio, 1 / ratio) > 1 + THRESHOLD else 0


def quartiles_apart(trial: Trial) -> int:
    """The smaller median wins where the ranges between the quartiles do not overlap."""
    first, second = trial["first"], trial["second"]
    apart = first["q3"] < second["q1"] or second["q3"] < first["q1"]
    return _sign(first["median"], second["median"]) if apart else 0


def trimmed_medians(trial: Trial) -> int:
    """The medians differ as torch's Compare prints them: trimmed to the fewer of their significant figures."""
    first, second = trial["first"], trial["second"]
    figures = min(first["significant_figures"], second["significant_figures"])
    return _sign(rounded(first["median"], figures), rounded(second["median"], figures))


def significant(trial: Trial) -> int:
    """pyperf compare_to calls it significant."""
    return _sign(1.0, trial["ratio"]) if trial["significant"] else 0


def significant_beyond(trial: Trial) -> int:
    """As `significant`, and beyond the threshold, as ``--min-speed=5`` asks."""
    return beyond_threshold(trial) if trial["significant"] else 0


def smaller(trial: Trial) -> int:
    """The smaller time wins."""
    return _sign(1.0, trial["ratio"])


def verdict(trial: Trial) -> int:
    """The verdict of attnlab in a word."""
    return {"faster": -1, "slower": 1}.get(trial["verdict"], 0)


@dataclass(frozen=True)
class Rule:
    """A way to read a tool's output: its name in tables, what it says, and the claim it makes of a trial."""

    name: str
    says: str
    claim: Callable[[Trial], int]


#: by tool; the first of each is the one in the figure
RULES: dict[str, tuple[Rule, ...]] = {
    "pytest-benchmark": (
        Rule("reads the table", "the smaller median wins where the ranges q1 to q3 do not overlap", quartiles_apart),
        Rule("median:5%", "the rule of `--benchmark-compare-fail=median:5%`, either way round", beyond_threshold),
    ),
    "torch.utils.benchmark": (
        Rule(
            "reads the table",
            "the medians differ as `Compare` prints them after `trim_significant_figures()`",
            trimmed_medians,
        ),
        Rule("IQRs apart", "the smaller median wins where the interquartile ranges do not overlap", quartiles_apart),
    ),
    "pyperf": (
        Rule("compare_to", "`pyperf compare_to` finds the means significantly different (its t-test)", significant),
        Rule("--min-speed=5", "that, and the means differ by 5 % or more", significant_beyond),
    ),
    "perfplot": (
        Rule("reads the plot", "the smaller time is the faster (it keeps the least of each and no scatter)", smaller),
        Rule("by over 5 %", "the smaller time wins where the two differ by over 5 %", beyond_threshold),
    ),
    "attnlab": (Rule("verdict", "`attnlab compare` says faster or slower", verdict),),
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """One tool, read by one rule, in one condition. Shares are counts out of `aa` and `ab` trials; nan is no trial."""

    aa: int
    false_claims: int
    aa_median: float
    aa_95: float
    ab: int
    right: int
    wrong: int
    error: float
    spent: float
    failed: int

    @property
    def false_share(self) -> float:
        """False claims, as a share of the A/A trials."""
        return self.false_claims / self.aa if self.aa else math.nan

    @property
    def undecided(self) -> int:
        """A/B trials without a claim."""
        return self.ab - self.right - self.wrong


def ratio_error(trial: Trial) -> float:
    """How far the ratio is off the truth, as a part of it, the same either way round."""
    return math.exp(abs(math.log(trial["ratio"] / trial["truth"]))) - 1


def ratio_errors(trials: Iterable[Trial]) -> list[float]:
    """Those of the trials that tell a ratio: a tool may say that it has none."""
    return [ratio_error(one) for one in trials if one["ratio"] is not None]


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between order statistics; nan of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def score(trials: Iterable[Trial], rule: Rule) -> Score:
    """The score over `trials` of one tool in one condition; those whose truth is None count for nothing yet."""
    trials = list(trials)
    told = [one for one in trials if "failed" not in one and one["truth"] is not None]
    aa, ab = [one for one in told if one["aa"]], [one for one in told if not one["aa"]]
    wanted = [_sign(1.0, one["truth"]) for one in ab]
    claimed = [rule.claim(one) for one in ab]
    off = ratio_errors(aa)
    return Score(
        aa=len(aa),
        false_claims=sum(rule.claim(one) != 0 for one in aa),
        aa_median=quantile(off, 0.5),
        aa_95=quantile(off, 0.95),
        ab=len(ab),
        right=sum(c == w for c, w in zip(claimed, wanted, strict=True)),
        wrong=sum(c == -w for c, w in zip(claimed, wanted, strict=True)),
        error=quantile(ratio_errors(ab), 0.5),
        spent=statistics.median([one["spent_s"] for one in trials]) if trials else math.nan,
        failed=sum("failed" in one for one in trials),
    )

"""What each tool's figures claim to a reader, and how often that is so. Pure functions of stored trials.

A trial is a dictionary: ``ratio`` (second over first), ``spent_s``, ``truth``, ``aa`` (whether both are the same), and
what the tool told, as `benchmarks/peer_tools.py` stores it; or ``failed`` in place of that. A claim is 1 where the
second is called slower, -1 where it is called faster, and 0 where nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Trial = Mapping[str, Any]
#: a difference of medians that people set as the threshold of an alarm
THRESHOLD = 0.05


def _sign(first: float, second: float) -> int:
    return (second > first) - (second < first)


def smaller(trial: Trial) -> int:
    """The smaller time wins."""
    return _sign(1.0, trial["ratio"])


def beyond_threshold(trial: Trial) -> int:
    """The ratio is off 1 by more than `THRESHOLD`, either way round."""
    return smaller(trial) if max(trial["ratio"], 1 / trial["ratio"]) > 1 + THRESHOLD else 0


def quartiles_apart(trial: Trial) -> int:
    """The smaller median wins where the ranges between the quartiles do not overlap."""
    first, second = trial["first"], trial["second"]
    apart = first["q3"] < second["q1"] or second["q3"] < first["q1"]
    return _sign(first["median"], second["median"]) if apart else 0


def trimmed_medians(trial: Trial) -> int:
    """The medians differ as torch's Compare prints them: trimmed to the fewer of their significant figures."""
    sides = trial["first"], trial["second"]
    figures = min(side["significant_figures"] for side in sides)
    return _sign(*(float(f"{side['median']:.{figures - 1}e}") for side in sides))


@dataclass(frozen=True)
class Rule:
    """A way to read a tool's output: its name in tables, what it says, and the claim it makes of a trial."""

    name: str
    says: str
    claim: Callable[[Trial], int]


_COMPARE = "the medians differ as `Compare` prints them after `trim_significant_figures()`"
_APART = "the smaller median wins where the ranges q1 to q3 do not overlap"
_FAIL = "the rule of `--benchmark-compare-fail=median:5%`, either way round"
_SIGNIFICANT = "`pyperf compare_to` finds the means significantly different (its t-test)"
_PLOT = "the smaller time is the faster (it keeps the least of each and no scatter)"
#: by tool; the first of each is the one in the figure
RULES: dict[str, tuple[Rule, ...]] = {
    "pytest-benchmark": (
        Rule("reads the table", _APART, quartiles_apart),
        Rule("median:5%", _FAIL, beyond_threshold),
    ),
    "torch.utils.benchmark": (
        Rule("reads the table", _COMPARE, trimmed_medians),
        Rule("IQRs apart", _APART.replace("ranges q1 to q3", "interquartile ranges"), quartiles_apart),
    ),
    "pyperf": (
        Rule("compare_to", _SIGNIFICANT, lambda one: smaller(one) if one["significant"] else 0),
        Rule(
            "--min-speed=5",
            "that, and the means differ by 5 % or more",
            lambda one: beyond_threshold(one) if one["significant"] else 0,
        ),
    ),
    "perfplot": (
        Rule("reads the plot", _PLOT, smaller),
        Rule("by over 5 %", "the smaller time wins where the two differ by over 5 %", beyond_threshold),
    ),
    "attnlab": (
        Rule(
            "verdict",
            "`attnlab compare` says faster or slower",
            lambda one: {"faster": -1, "slower": 1}.get(one["verdict"], 0),
        ),
    ),
}


@dataclass(frozen=True)
class Score:
    """One tool, read by one rule, in one condition: counts of trials, and how far its ratios are off the truth.

    `aa_off` and `ab_off` are those of `ratio_errors`; `spent` holds the seconds of every trial.
    """

    aa: int
    false_claims: int
    aa_off: list[float]
    ab: int
    right: int
    wrong: int
    ab_off: list[float]
    spent: list[float]
    failed: int


def ratio_errors(trials: Iterable[Trial]) -> list[float]:
    """How far each ratio is off the truth, as a part of it, the same either way round; of those that have one."""
    told = (one for one in trials if one["ratio"] is not None)
    return [math.expm1(abs(math.log(one["ratio"] / one["truth"]))) for one in told]


def quantile(values: list[float], share: float) -> float:
    """By linear interpolation between order statistics; nan of nothing."""
    return float(np.quantile(values, share)) if values else math.nan


def score(trials: Iterable[Trial], rule: Rule) -> Score:
    """The score over `trials` of one tool in one condition."""
    trials = list(trials)
    told = [one for one in trials if "failed" not in one]
    aa, ab = [one for one in told if one["aa"]], [one for one in told if not one["aa"]]
    agree = [rule.claim(one) * _sign(1.0, one["truth"]) for one in ab]
    return Score(
        aa=len(aa),
        false_claims=sum(rule.claim(one) != 0 for one in aa),
        aa_off=ratio_errors(aa),
        ab=len(ab),
        right=agree.count(1),
        wrong=agree.count(-1),
        ab_off=ratio_errors(ab),
        spent=[one["spent_s"] for one in trials],
        failed=sum("failed" in one for one in trials),
    )

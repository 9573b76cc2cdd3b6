"""Which benchmark tools find a planted 0, 3 or 10 %, and find it again when the comparison is repeated?

``python benchmarks peers``, on a machine that does nothing else; ``pip install --group peers`` installs the tools.
Trials are stored in ``benchmarks/peers.jsonl`` at once, and are not measured again: an interrupted run continues where
it stopped. No trial begins after ``--minutes``; with 0, nothing is measured. ``benchmarks/peers.md`` is made from the
stored trials. Another machine needs another ``--out``. Trials 0 and 1 are the same comparison, trials 2 and 3 too, and
so on: in the second, `attnlab` has what it stored in the first. Trial 0 of all tools takes about five minutes.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from common import HOME, Store, command_line, publish, table_of
from peer_tools import TOOLS, version

from attnlab import figure_style as style
from attnlab.environment import environment
from attnlab.race.sittings import FILE

#: for how many percent of a call's time the second side waits
PLANTED = (0, 3, 10)
#: ``ratio`` (second over first), ``spent_s`` and what the tool reported (see `peer_tools`); or why it ``failed``
Trial = Mapping[str, Any]


def quartiles_apart(trial: Trial) -> bool:
    """the ranges between the quartiles do not overlap"""
    first, second = trial["first"], trial["second"]
    return bool(first["q3"] < second["q1"] or second["q3"] < first["q1"])


def trimmed_medians(trial: Trial) -> bool:
    """the medians differ, as `Compare` prints them after `trim_significant_figures()`"""
    sides = trial["first"], trial["second"]
    digits = min(side["significant_figures"] for side in sides)
    return len({f"{side['median']:.{digits - 1}e}" for side in sides}) > 1


def significant(trial: Trial) -> bool:
    """`pyperf compare_to` finds the means significantly different (its t-test)"""
    return bool(trial["significant"])


def verdict(trial: Trial) -> bool:
    """`attnlab compare` says faster or slower"""
    return trial["verdict"] in ("faster", "slower")


#: when each tool claims a difference; the page shows the docstrings
RULES: dict[str, Callable[[Trial], bool]] = {
    "pytest-benchmark": quartiles_apart,
    "torch.utils.benchmark": trimmed_medians,
    "pyperf": significant,
    "attnlab": verdict,
}


def scored(trial: Trial) -> dict[str, Any]:
    """A trial, with whether its claim is right or wrong, and the relative error of its ratio."""
    planted, ratio, claim = trial["planted"], trial.get("ratio") or math.nan, 0
    if not trial.get("failed") and RULES[trial["tool"].partition(",")[0]](trial):
        claim = 1 if ratio > 1 else -1
    right = claim == (planted > 0) and not trial.get("failed")
    off = math.expm1(abs(math.log(ratio / (1 + planted / 100))))
    found = {"right": right, "wrong": claim not in (0, planted > 0), "off": off, "ratio": ratio}
    tool = trial["tool"].replace("each alone", "without stored measurements")
    return {"failed": None, **trial, **found, "tool": tool, "question": trial["trial"] // 2}


def share(right: pd.Series) -> str:
    """The number of right ones, and of all."""
    return f"{right.sum()} of {len(right)}"


def twice(every: pd.DataFrame) -> pd.DataFrame:
    """The comparisons that were made twice: whether both answers were right, and the smallest and largest ratio."""
    sittings = every.groupby(["tool", "planted", "question"], sort=False)
    return sittings.agg(
        right=("right", "all"), count=("right", "size"), low=("ratio", "min"), high=("ratio", "max")
    ).query("count == 2")


def picture(trials: pd.DataFrame, file: Path) -> str:
    """Draw in how many comparisons each tool was right twice. Return this in words, and a link to the picture."""
    right = twice(trials).right.groupby("tool").agg(["sum", "size"]).sort_values("sum")
    figure, (axes,) = style.new_figure(7.0, 2.4)
    names = [name.replace("without ", "without\n") for name in right.index]
    bars = axes.barh(
        names, right["sum"], color=[style.BLUE if "attnlab" in one else style.GREY for one in names]
    )
    axes.bar_label(
        bars, [f"{some} of {of}" for some, of in right.to_numpy()], padding=4, fontsize=style.SIZE - 1
    )
    axes.grid(visible=False)
    axes.set(xlim=(0, right["size"].max() * 1.12), xticks=[])
    title = f"Right both times: {right.index[-1]} on {right['sum'].iloc[-1]} of {right['size'].iloc[-1]} comparisons"
    style.entitle(axes, title)
    style.save(figure, file)
    said = "; ".join(f"{name} {some}" for name, some in right["sum"].items())
    counted = f"Right both times, of {right['size'].iloc[-1]} comparisons"
    return f"{counted}:\n{said}.\n\n![{title}. {said}]({file.name})"


def row(every: pd.DataFrame) -> dict[str, object]:
    """How often a tool was right in one trial, and in both trials of a comparison, for each planted difference."""
    pairs = twice(every)
    apart = pairs.high / pairs.low - 1
    return {
        **{f"right at {planted} %": share(some) for planted, some in every.groupby("planted").right},
        "false claims": every.wrong.sum(),
        **{f"right twice at {planted} %": share(some) for planted, some in pairs.groupby("planted").right},
        "right twice": share(pairs.right),
        "trials differ by": f"{apart.median():.1%}",
        "at most by": f"{apart.max():.1%}",
        "error": f"{every.off.median():.1%}",
        "seconds": f"{every.spent_s.median():.1f}",
        "failed trials": every.failed.count(),
    }


def measured(planted: int, tool: str, seconds: float, earlier: str) -> dict[str, Any]:
    """One trial, to be stored; ``failed`` says why it has no ratio. attnlab finds the stored results `earlier`."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        record = Path(folder, FILE)
        record.write_text(earlier, encoding="utf-8")
        at, started = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        try:
            found = TOOLS[tool](planted, seconds, Path(folder))
        except (RuntimeError, OSError, ValueError, KeyError) as fault:
            found = {"failed": f"{type(fault).__name__}: {fault}"}
        spent, kept = round(time.monotonic() - started, 2), record.read_text(encoding="utf-8")
    return {"at": at, "version": version(tool), "spent_s": spent, **found, "record": kept}


def main() -> None:
    """Measure the trials that are missing, and make the page."""
    parser = command_line(__doc__, out=HOME / "peers.jsonl")
    parser.add_argument("--tools", nargs="*", default=[one for one in TOOLS if version(one)])
    parser.add_argument("--trials", default=10, type=int, help="of each tool and planted difference [10]")
    parser.add_argument("--seconds", default=20.0, type=float, help="for one trial of a tool [20]")
    parser.add_argument("--minutes", default=60.0, type=float, help="after which no trial begins [60]")
    asked = parser.parse_args()
    store, until = Store(asked.out), time.monotonic() + 60 * asked.minutes
    if not store.rows:
        store.add(seconds=asked.seconds, machine=environment())
    seconds, machine = store.rows[0]["seconds"], store.rows[0]["machine"]
    # in this order, a run that stops early has about as many trials of each kind
    for trial, planted, tool in product(range(asked.trials), PLANTED, asked.tools):
        where = {"planted": planted, "tool": tool}
        if time.monotonic() < until and store.lacks(trial=trial, **where):
            first = {"trial": trial - 1, **where} if trial % 2 and tool == "attnlab" else {"trial": -1}
            earlier = [one["record"] for one in store.rows if first.items() <= one.items()]
            store.add(trial=trial, **where, **measured(planted, tool, seconds, "".join(earlier)))
    trials = pd.DataFrame([scored(one) for one in store.rows[1:] if one["tool"] in TOOLS])
    versions = trials.groupby("tool", sort=False).version.last()
    result = "No comparison was made twice yet."
    if len(twice(trials)):
        result = picture(trials, asked.out.with_suffix(".png"))
    rules = [f"- **{tool}** {versions.get(tool, '')}: {rule.__doc__}." for tool, rule in RULES.items()]
    given = f"Each tool was given about {seconds:g} s per trial. A tool claims a difference if"
    parts = [given, "\n".join(rules), table_of(trials, ["tool"], row)]
    title, day = "Which benchmark tools give the right answer twice?", trials["at"].max()[:10]
    publish(title, "peers", result, *parts, out=asked.out.with_suffix(".md"), at=(day, machine))

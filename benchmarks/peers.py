"""A planted 0, 3 and 10 %, by attnlab and by other benchmark tools: which is right, and right again when asked twice?

``python benchmarks peers``, on a machine that does nothing else; ``pip install --group peers`` installs the others.
Every trial goes into ``benchmarks/peers.jsonl`` as soon as it is measured, and what is there is not measured again: an
interrupted run goes on where it stopped, and every run stops by itself after ``--minutes``. ``benchmarks/peers.md`` is
made anew from the store each time; ``--minutes 0`` measures nothing. Another machine needs another ``--out``.

A trial is one sitting. Trials 0 and 1 are two sittings on one question, trials 2 and 3 on the next, and so on, and what
attnlab keeps of the first sitting is there in the second, as where a command is typed twice. ``attnlab, each alone``
starts without it, as every other tool does. A round of trials takes about five minutes.
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
from peer_tools import HEADS, LENGTH, TOOLS, version

from attnlab import figure_style as style
from attnlab.environment import environment
from attnlab.race.sittings import FILE

#: by how many percent the second side is slower
PLANTED = (0, 3, 10)
#: ``ratio`` (second over first), ``spent_s`` and what the tool told, as `peer_tools` stores it; or why it ``failed``
Trial = Mapping[str, Any]


def quartiles_apart(trial: Trial) -> bool:
    """the smaller median wins where the ranges between the quartiles do not overlap"""
    first, second = trial["first"], trial["second"]
    return bool(first["q3"] < second["q1"] or second["q3"] < first["q1"])


def trimmed_medians(trial: Trial) -> bool:
    """the medians differ as `Compare` prints them after `trim_significant_figures()`"""
    sides = trial["first"], trial["second"]
    digits = min(side["significant_figures"] for side in sides)
    return len({f"{side['median']:.{digits - 1}e}" for side in sides}) > 1


def significant(trial: Trial) -> bool:
    """`pyperf compare_to` finds the means significantly different (its t-test)"""
    return bool(trial["significant"])


def verdict(trial: Trial) -> bool:
    """`attnlab compare` says faster or slower"""
    return trial["verdict"] in ("faster", "slower")


#: when each tool claims a difference; the docstrings are told
RULES: dict[str, Callable[[Trial], bool]] = {
    "pytest-benchmark": quartiles_apart,
    "torch.utils.benchmark": trimmed_medians,
    "pyperf": significant,
    "attnlab": verdict,
}


def scored(trial: Trial) -> dict[str, Any]:
    """A trial with whether it claims what was planted, or the contrary, and by what part its ratio is off."""
    planted, ratio, claim = trial["planted"], trial.get("ratio") or math.nan, 0
    if not trial.get("failed") and RULES[trial["tool"].partition(",")[0]](trial):
        claim = 1 if ratio > 1 else -1
    right = claim == (planted > 0) and not trial.get("failed")
    off = math.expm1(abs(math.log(ratio / (1 + planted / 100))))
    found = {"right": right, "wrong": claim not in (0, planted > 0), "off": off, "ratio": ratio}
    return {"failed": None, **trial, **found, "question": trial["trial"] // 2}


def share(right: pd.Series) -> str:
    """How many of how many."""
    return f"{right.sum()} of {len(right)}"


def twice(every: pd.DataFrame) -> pd.DataFrame:
    """The questions that were asked twice: whether both answers were right, and the least and greatest ratio."""
    sittings = every.groupby(["tool", "planted", "question"], sort=False)
    return sittings.agg(
        right=("right", "all"), count=("right", "size"), low=("ratio", "min"), high=("ratio", "max")
    ).query("count == 2")


def picture(trials: pd.DataFrame, file: Path) -> str:
    """Draw on how many questions each tool was right twice, and return that in words."""
    right = twice(trials).right.groupby("tool").agg(["sum", "size"]).sort_values("sum")
    figure, (axes,) = style.new_figure(7.0, 2.4)
    names = [name.replace("each alone", "without\nstored measurements") for name in right.index]
    bars = axes.barh(
        names, right["sum"], color=[style.BLUE if "attnlab" in one else style.GREY for one in names]
    )
    axes.bar_label(
        bars, [f"{some} of {of}" for some, of in right.to_numpy()], padding=4, fontsize=style.SIZE - 1
    )
    axes.grid(visible=False)
    axes.set(xlim=(0, right["size"].max() * 1.12), xticks=[])
    title = f"Right both times: {right.index[-1]} on {right['sum'].iloc[-1]} of {right['size'].iloc[-1]} questions"
    style.entitle(axes, title)
    style.save(figure, file)
    said = "; ".join(f"{name} {some}" for name, some in zip(names, right["sum"], strict=True))
    return f"{title}. {said}".replace("\n", " ")


def row(every: pd.DataFrame) -> dict[str, object]:
    """How often a tool was right, by what was planted, and right in both sittings on a question."""
    pairs = twice(every)
    apart = pairs.high / pairs.low - 1
    return {
        **{f"{planted} %: right": share(some) for planted, some in every.groupby("planted").right},
        "false claims": every.wrong.sum(),
        **{f"{planted} %: right twice": share(some) for planted, some in pairs.groupby("planted").right},
        "all: right twice": share(pairs.right),
        "ratios of two sittings apart, median": f"{apart.median():.1%}",
        "at most": f"{apart.max():.1%}",
        "off the truth, median": f"{every.off.median():.1%}",
        "seconds": f"{every.spent_s.median():.1f}",
        "failed": every.failed.count(),
    }


def measured(planted: int, tool: str, seconds: float, earlier: str) -> dict[str, Any]:
    """One trial, to be stored; its ``failed`` tells why there is no ratio. attnlab finds the sittings `earlier`."""
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
    """Measure what is missing, and make the page."""
    parser = command_line(__doc__, out=HOME / "peers.jsonl")
    parser.add_argument("--tools", nargs="*", default=[one for one in TOOLS if version(one)])
    parser.add_argument("--trials", default=10, type=int, help="of each tool and planted difference [10]")
    parser.add_argument("--seconds", default=20.0, type=float, help="that a tool is given for a trial [20]")
    parser.add_argument("--minutes", default=60.0, type=float, help="after which no trial is begun [60]")
    asked = parser.parse_args()
    store, until = Store(asked.out), time.monotonic() + 60 * asked.minutes
    if not store.rows:
        store.add(seconds=asked.seconds, machine=environment())
    seconds, machine = store.rows[0]["seconds"], store.rows[0]["machine"]
    # one after the other, so that a run that stops early has about as much of everything
    for trial, planted, tool in product(range(asked.trials), PLANTED, asked.tools):
        where = {"planted": planted, "tool": tool}
        if time.monotonic() < until and store.lacks(trial=trial, **where):
            first = {"trial": trial - 1, **where} if trial % 2 and tool == "attnlab" else {"trial": -1}
            earlier = [one["record"] for one in store.rows if first.items() <= one.items()]
            store.add(trial=trial, **where, **measured(planted, tool, seconds, "".join(earlier)))
    trials = pd.DataFrame([scored(one) for one in store.rows[1:] if one["tool"] in TOOLS])
    versions = trials.groupby("tool", sort=False).version.last()
    drawn = asked.out.with_suffix(".png")
    parts = [
        f"![{picture(trials, drawn)}]({drawn.name})"
        if len(twice(trials))
        else "No question was asked twice yet.",
        f"`{asked.out.name}` holds every trial. Each tool was given about {seconds:g} s of wall-clock time for one, "
        f"start-up included, and took what the table says. Versions: {', '.join(map(' '.join, versions.items()))}.",
        f"torch_eager, {HEADS} heads, {LENGTH} tokens, head_dim 64, float32, is compared with itself. The second side "
        "waits after each call for 0, 3 or 10 % of its time, which makes the truth known. A claim at 0 % is false, and "
        "so is one of the wrong sign; “right” at 0 % is no claim. “Twice” counts pairs of sittings that are both "
        "right. In the second, `attnlab` knows its first, as where a command is typed twice; no other tool does. “Off” "
        "is exp|ln(ratio / truth)| − 1. Every tool but attnlab runs with malloc as the system sets it.",
        "\n".join(f"- **{tool}**: {rule.__doc__}." for tool, rule in RULES.items()),
        table_of(trials, ["tool"], row),
    ]
    title, day = "The same work by other benchmark tools", trials["at"].max()[:10]
    publish(title, "peers", *parts, out=asked.out.with_suffix(".md"), at=(day, machine))

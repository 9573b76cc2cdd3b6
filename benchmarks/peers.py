"""The same comparisons by attnlab and by other benchmark tools: who claims what is not so, and how far ratios are off.

``python benchmarks/peers.py``, on a machine that does nothing else, after ``pip install -c constraints.txt -e
.[peers]``. Every trial goes into ``benchmarks/peers.json`` as soon as it is measured, and what is there is not measured
again: an interrupted run goes on where it stopped, and every run stops by itself after ``--minutes``. One round of
everything takes about twelve minutes, ten trials ten such runs. The page ``benchmarks/peers.md`` and the figure
``docs/figures/peers.svg`` are made anew from the store each time; ``--page`` makes them and measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peer_tools import page
from peer_tools.pairs import Pair, pairs
from peer_tools.tools import PATIENCE, TOOLS, child, version

from attnlab.environment import environment

HOME = Path(__file__).parent
#: ends by itself when its time is over or its parent is gone, whatever becomes of this script
_HOG = """
import os, sys, time
until, parent = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
while time.monotonic() < until and os.getppid() == parent:
    sum(range(100_000))
"""


@contextlib.contextmanager
def hog(seconds: float = 10 * PATIENCE) -> Iterator[None]:
    """A process that keeps one core busy; it is ended on leaving, and after `seconds` at the latest."""
    with subprocess.Popen([sys.executable, "-c", _HOG, f"{seconds:g}", str(os.getpid())]) as process:
        try:
            time.sleep(0.3)
            yield
        finally:
            process.kill()


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def opened(file: Path, seconds: float, tiny: bool) -> dict[str, Any]:
    """The store as it is, or a new one. Raises SystemExit where it was made with other settings."""
    if not file.exists():
        return {"seconds": seconds, "tiny": tiny, "references": {}, "trials": []}
    store: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if (store["seconds"], store["tiny"]) != (seconds, tiny):
        raise SystemExit(
            f"{file} was measured with --seconds {store['seconds']:g}{' --tiny' if store['tiny'] else ''}: "
            "go on with the same, or name another file with --out"
        )
    return store


def save(store: dict[str, Any], file: Path) -> None:
    """Write the store, a trial a line, in one step."""
    head = {name: value for name, value in store.items() if name != "trials"}
    lines = ",\n  ".join(json.dumps(one) for one in store["trials"])
    text = json.dumps(head, indent=1).rstrip().removesuffix("}").rstrip()
    beside = file.with_suffix(".partial")
    beside.write_text(f'{text},\n "trials": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    beside.replace(file)


def missing(
    store: dict[str, Any], tools: list[str], conditions: list[str], trials: int, chosen: list[Pair]
) -> Iterator[tuple[int, str, Pair, str]]:
    """What is still to be measured, so that a run that stops early has about as much of everything."""
    done = {(one["trial"], one["condition"], one["pair"], one["tool"]) for one in store["trials"]}
    for trial in range(trials):
        for pair in chosen:
            for condition in conditions:
                for tool in tools:
                    if (trial, condition, pair.name, tool) not in done:
                        yield trial, condition, pair, tool


def measured(trial: int, condition: str, pair: Pair, tool: str, seconds: float) -> dict[str, Any]:
    """One trial, to be stored; its ``failed`` tells why there is no ratio."""
    one: dict[str, Any] = {"trial": trial, "condition": condition, "pair": pair.name, "tool": tool}
    beside = hog() if condition == "hog" else contextlib.nullcontext()
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, beside:
        one["at"], one["load"] = datetime.now(UTC).isoformat(timespec="seconds"), round(os.getloadavg()[0], 2)
        started = time.monotonic()
        try:
            told = TOOLS[tool][0](pair, seconds, Path(folder))
        except (RuntimeError, OSError, ValueError, KeyError) as fault:
            told = {"failed": f"{type(fault).__name__}: {fault}"}
        one["spent_s"] = round(time.monotonic() - started, 2)
    return {**one, **told}


def refer(store: dict[str, Any], pair: Pair, processes: int, file: Path, until: float) -> None:
    """The long reference of a pair whose truth is not known: fresh bare processes, the sides alternating."""
    told = store["references"].setdefault(pair.name, {"first": [], "second": []})
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        while len(told["second"]) < processes and time.monotonic() < until:
            done = len(told["second"])
            say(f"reference of {pair.name}: process {done + 1} of {processes} a side")
            order = ("first", "second") if done % 2 == 0 else ("second", "first")
            found = {side: child("reference", Path(folder), pair, 0.2, side)["seconds"] for side in order}
            for side, seconds in found.items():
                told[side].append(seconds)
            save(store, file)


def installed(tools: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Those of `tools` that are here, their versions, and a line for each that is not."""
    versions = {tool: version(tool) for tool in tools}
    left_out = [f"{tool} is not installed" for tool, found in versions.items() if found is None]
    for line in left_out:
        say(f"{line}: left out")
    here = {tool: found for tool, found in versions.items() if found is not None}
    return list(here), here, left_out


def measure(chosen: argparse.Namespace, store: dict[str, Any], compared: list[Pair]) -> None:
    """Everything that is missing, until the time is over."""
    until = time.monotonic() + 60 * chosen.minutes
    tools, versions, left_out = installed(chosen.tools)
    store.update(
        file=chosen.out.name,
        command=shlex.join(["python", "benchmarks/peers.py", *sys.argv[1:]]),
        measured=str(datetime.now(UTC).date()),
        machine={name: environment()[name] for name in ("cpu", "cores", "python", "system")},
        versions={**store.get("versions", {}), **versions},
        left_out=left_out,
    )
    for pair in compared:
        if pair.truth is None and "idle" in chosen.conditions:
            refer(store, pair, chosen.reference, chosen.out, until)
    todo = list(missing(store, tools, chosen.conditions, chosen.trials, compared))
    for done, (trial, condition, pair, tool) in enumerate(todo):
        if time.monotonic() > until:
            say(f"{len(todo) - done} comparisons are left; the same command goes on with them")
            break
        found = measured(trial, condition, pair, tool, chosen.seconds)
        store["trials"].append(found)
        save(store, chosen.out)
        told = found.get("failed") or f"ratio {found['ratio']:.4f}"
        say(f"[{done + 1}/{len(todo)}] {pair.name}, {condition}, {tool}: {told} in {found['spent_s']:.1f} s")


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", default=",".join(TOOLS), type=lambda text: text.split(","))
    parser.add_argument("--trials", default=10, type=int, help="of each pair, tool and condition [10]")
    parser.add_argument("--seconds", default=10.0, type=float, help="that a tool is given for a pair [10]")
    parser.add_argument("--conditions", default="idle,hog", type=lambda text: text.split(","))
    parser.add_argument("--minutes", default=12.0, type=float, help="after which no comparison is begun [12]")
    parser.add_argument("--reference", default=20, type=int, help="processes a side for the truth [20]")
    parser.add_argument(
        "--out", default=HOME / "peers.json", type=Path, help="the store; the page lies beside it"
    )
    parser.add_argument("--figures", default=HOME.parent / "docs" / "figures", type=Path)
    parser.add_argument("--page", action="store_true", help="make the page and the figure, measure nothing")
    parser.add_argument("--tiny", action="store_true", help="tiny workloads, to try the script out")
    return parser


def main() -> None:
    """Measure what is missing, and make the page and the figure."""
    parser = options()
    chosen = parser.parse_args()
    for given, known in ((chosen.tools, TOOLS), (chosen.conditions, page.CONDITIONS)):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    if chosen.page and chosen.out.exists():
        store = json.loads(chosen.out.read_text(encoding="utf-8"))
    else:
        store = opened(chosen.out, chosen.seconds, chosen.tiny)
    compared = pairs(store["tiny"])
    if not chosen.page:
        measure(chosen, store, compared)
    if not store["trials"]:
        raise SystemExit("no comparison is stored yet: give it more --minutes")
    shown = [tool for tool in TOOLS if page.of(store["trials"], tool=tool)]
    drawn = page.draw(store, compared, shown, chosen.figures)
    link = Path(os.path.relpath(drawn[0], chosen.out.parent)).as_posix()
    text = page.markdown(store, compared, shown, link)
    chosen.out.with_suffix(".md").write_text(text, encoding="utf-8")
    say(f"wrote {chosen.out}, {chosen.out.with_suffix('.md')}, {', '.join(map(str, drawn))}")


if __name__ == "__main__":
    main()

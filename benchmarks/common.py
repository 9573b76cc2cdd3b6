"""Shared by the benchmarks: options, tables, pages, stored rows, and programs that run beside a race."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab.environment import environment

HOME = Path(__file__).parent
REPOSITORY = HOME.parent
#: what runs beside a race. idle: nothing. cpu: a busy loop. memory: copies of an array larger than any cache.
#: sometimes: a busy loop that runs and pauses in turn, each for ten seconds on average
LOADS = {
    "idle": "import signal; signal.pause()",
    "cpu": "while True: pass",
    "memory": "import numpy as np\na = np.ones(2**26)\nwhile True: a.copy()",
    "sometimes": """
import random, time
while True:
    until = time.monotonic() + random.expovariate(0.1)
    while time.monotonic() < until:
        pass
    time.sleep(random.expovariate(0.1))
""",
}


def command_line(doc: str | None, out: Path, parts: Iterable[str] = ()) -> argparse.ArgumentParser:
    """A parser whose description is the first line of `doc`. It has --out, by default `out`: where the page is written.

    parts : names of parts of the benchmark; any number of them may be given.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if parts := list(parts):
        # if no part is given, Python 3.11 looks for an empty list among the choices
        choices, known = [*parts, []], f"any of {', '.join(parts)}"
        parser.add_argument("parts", nargs="*", choices=choices, metavar="part", help=known)
    parser.add_argument("--out", type=Path, default=out, help="where the results are written")
    return parser


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """A Markdown table. Each row maps the names of the columns to cells."""
    lines: list[list[str]] = []
    for row in rows:
        lines = lines or [[*row], ["---"] * len(row)]
        lines.append([str(one).replace("|", "\\|") for one in row.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: pd.DataFrame, by: list[str], told: Callable[[pd.DataFrame], Mapping[str, object]]) -> str:
    """A Markdown table: a row per group of rows with equal values in the columns `by`; `told` makes its other cells."""
    groups = rows.groupby(by, sort=False)
    return table({**dict(zip(by, key, strict=True)), **told(some)} for key, some in groups)


def alike(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Merge the rows of a table that differ only in their first cell."""
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in rows:
        (first, name), *cells = row.items()
        names.setdefault(tuple(cells), []).append(name)
    return [{first: "; ".join(ones), **dict(cells)} for cells, ones in names.items()]


def publish(
    title: str, made_by: str, result: str, *parts: str, out: Path, at: tuple[str, Any] | None = None
) -> None:
    """Write a Markdown page to `out`: its title; when, where and how it was made; `result`; an explanation; `parts`.

    The explanation is taken from the page in this folder, where it is written by hand after <!-- about -->. at : the
    date and the environment of the measurements, by default today and this machine.
    """
    day, here = at or (str(datetime.now(UTC).date()), environment())
    where = f"{here['cpu']}, {here['cores']['logical']} cores, {here['python']}"
    made = f"{day}, {where}. Made by `python benchmarks {made_by}`."
    about = next(HOME.rglob(f"{made_by}.md")).read_text(encoding="utf-8").partition("<!-- about -->")[2]
    about = f"<!-- about -->{about.partition('<!-- end -->')[0]}<!-- end -->"
    out.write_text("\n\n".join([f"# {title}", made, result, about, *parts]) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def load_beside(kind: str) -> Iterator[None]:
    """Run the program of `LOADS` with this name until the context ends."""
    with subprocess.Popen([sys.executable, "-c", LOADS[kind]]) as process:
        try:
            time.sleep(1.0)
            yield
        finally:
            process.kill()


class Store:
    """Rows of a benchmark in a file, each stored at once: an interrupted benchmark continues where it stopped."""

    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    def lacks(self, **key: Any) -> bool:
        """Whether no row has these values. If so, print them: this row is measured next."""
        if any(key.items() <= row.items() for row in self.rows):
            return False
        say(", ".join(f"{name} {value}" for name, value in key.items()))
        return True

    def add(self, **row: Any) -> None:
        """Store a row."""
        self.rows.append(row)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

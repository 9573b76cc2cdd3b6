"""What the benchmarks have in common: options, tables and pages, rows kept while they come, load beside a race."""

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
#: what runs beside a race: nothing, a busy loop, copies of an array that no cache holds, or a busy loop that comes and
#: goes, ten seconds at a time on average
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
    """A parser that describes itself by the first line of `doc`; --out is where the page goes, by default `out`.

    parts : that may be named, any number of them; none means all.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if parts := list(parts):
        # Python 3.11 holds "none" against the choices, as an empty list
        choices, known = [*parts, []], f"of {', '.join(parts)}"
        parser.add_argument("parts", nargs="*", choices=choices, metavar="part", help=known)
    parser.add_argument("--out", type=Path, default=out, help="where the results go")
    return parser


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """A Markdown table of rows, each by column."""
    lines: list[list[str]] = []
    for row in rows:
        lines = lines or [[*row], ["---"] * len(row)]
        lines.append([str(one).replace("|", "\\|") for one in row.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: pd.DataFrame, by: list[str], told: Callable[[pd.DataFrame], Mapping[str, object]]) -> str:
    """A Markdown table with a row for each group of rows that are the same in the columns `by`, in their order."""
    groups = rows.groupby(by, sort=False)
    return table({**dict(zip(by, key, strict=True)), **told(some)} for key, some in groups)


def alike(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Rows of a table in which those that differ in their first cell alone are one."""
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for row in rows:
        (first, name), *cells = row.items()
        names.setdefault(tuple(cells), []).append(name)
    return [{first: "; ".join(ones), **dict(cells)} for cells, ones in names.items()]


def publish(
    title: str, made_by: str, *parts: str, out: Path, at: tuple[str, Mapping[str, Any]] | None = None
) -> None:
    """Write a Markdown page to `out`: its title, when, where and by what it was made, and `parts`.

    at : the date and the environment of the measurements; today and this machine by default.
    """
    day, here = at or (str(datetime.now(UTC).date()), environment())
    where = f"{here['cpu']}, {here['cores']['logical']} cores, {here['python']}"
    made = f"{day}, {where}. Made by `python benchmarks {made_by}`."
    out.write_text("\n\n".join([f"# {title}", made, *parts]) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def load_beside(kind: str) -> Iterator[None]:
    """A process that disturbs in the way that `LOADS` names, as long as the context lasts."""
    with subprocess.Popen([sys.executable, "-c", LOADS[kind]]) as process:
        try:
            time.sleep(1.0)
            yield
        finally:
            process.kill()


class Store:
    """Rows of a benchmark in a file, appended as they come: an interrupted one goes on where it stopped."""

    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]

    def lacks(self, **key: Any) -> bool:
        """Whether no row has these values; then it is about to be measured, and said so."""
        if any(key.items() <= row.items() for row in self.rows):
            return False
        say(", ".join(f"{name} {value}" for name, value in key.items()))
        return True

    def add(self, **row: Any) -> None:
        """Keep a row."""
        self.rows.append(row)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

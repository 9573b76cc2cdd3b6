"""What the benchmarks have in common: the tables and the head of their pages, and what they say while they work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.environment import environment

HOME = Path(__file__).parent
REPOSITORY = HOME.parent


def command_line(doc: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """A parser that describes itself by the first line of `doc`; --out is where the page goes, by default `out`."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=out, help="where the results go")
    return parser


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, ["---"] * len(head), *rows))


def page(title: str, made_by: str, *parts: str, at: tuple[str, Mapping[str, Any]] | None = None) -> str:
    """A Markdown page: its title, when, where and by what it was made, and `parts`.

    at : the date and the environment of the measurements; today and this machine by default.
    """
    day, here = at or (str(datetime.now(UTC).date()), environment())
    where = f"{here['cpu']}, {here['cores']['logical']} cores, {here['python']}"
    return (
        "\n\n".join([f"# {title}", f"{day}, {where}. Made by `python benchmarks {made_by}`.", *parts]) + "\n"
    )


def say(text: str) -> None:
    """Progress, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


def yes(held: bool) -> str:
    """Whether a promise is kept, in a table."""
    return "yes" if held else "**NO**"

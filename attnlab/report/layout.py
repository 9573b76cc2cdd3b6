"""Markdown, and figures beside it: tables, links, and templates filled with what has been computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from attnlab import figures
from attnlab.figures import Drawn
from attnlab.subprocesses import Aside

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

T = TypeVar("T")
#: a cell of a table in which there is nothing to say
NONE = "–"
#: folders beside a page
FIGURES, TABLES = "figures", "tables"


def fill(template: str, **content: Any) -> str:
    """The template `template` of this package as Markdown. A name that it uses and nobody gave is an error."""
    return re.sub(r"\n{3,}", "\n\n", _templates().get_template(template).render(**content))


@cache
def _templates() -> Environment:
    """The templates, each compiled once: that takes longer than to fill it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Markdown for a reader, not HTML for a browser: there is nothing to escape but table cells, done there
    return Environment(
        loader=PackageLoader("attnlab.report", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def linked(text: str, file: str) -> str:
    """A link to a file beside the page."""
    return f"[{text}]({file})"


def markdown(
    headers: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1, narrow: bool = False
) -> str:
    """A Markdown table, its first `left` columns flush left and the others right; empty without rows.

    Cells are padded to columns, for whoever reads the source, or not where `narrow`: that is half the size.
    """
    from tabulate import tabulate

    if not rows:
        return ""
    safe = [[" ".join(str(one).split()).replace("|", "\\|") for one in row] for row in rows]
    if narrow:
        lines = [list(headers), *([":--" if at < left else "--:" for at in range(len(headers))],), *safe]
        return "\n".join(f"|{'|'.join(cells)}|" for cells in lines)
    align = ["left"] * left + ["right"] * (len(headers) - left)
    text: str = tabulate(
        safe, headers, tablefmt="pipe", disable_numparse=True, colalign=align[: len(headers)]
    )
    return text


def in_columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal, without Markdown; cells may have several lines."""
    from tabulate import tabulate

    shown = [[plain(cell) for cell in row] for row in rows]
    text: str = tabulate(shown, headers, tablefmt="simple", disable_numparse=True)
    return text


def table(items: Iterable[T], columns: Mapping[str, Callable[[T], object]], *, left: int = 1) -> str:
    """A Markdown table with a row for each of `items`; a column is its header and what it shows of an item."""
    rows = [[shown(item) for shown in columns.values()] for item in items]
    return markdown(list(columns), rows, left=left)


def evenly(values: Sequence[T], most: int) -> list[T]:
    """All of `values`, or `most` of them, as far apart as can be: the first, the last, and those between."""
    count = min(most, len(values))
    return [values[round(at * (len(values) - 1) / max(1, count - 1))] for at in range(count)]


def shortened(text: str, most: int) -> str:
    """`text`, cut to about so many letters."""
    return text if len(text) <= most else f"{text[:most].rstrip()}…"


def plain(text: str) -> str:
    """A sentence without its Markdown, for a terminal."""
    return text.replace("**", "").replace("`", "").replace("&lt;", "<")


# -- figures as files --------------------------------------------------------------------------------


class Picture(NamedTuple):
    """A figure as PNG, with the SVG beside it: its file, and what it shows in words."""

    file: Path
    says: str

    @property
    def link(self) -> str:
        """It in Markdown, from beside its folder, with its words for whoever does not see it."""
        safe = " ".join(self.says.split()).replace("[", "(").replace("]", ")").replace('"', "'")
        return f"![{safe}]({FIGURES}/{self.file.name})"


class Writing:
    """Figures on their way into `folder`, from which those of an earlier report are removed.

    aside : they are written while the caller goes on, in a process of their own; else by `finish`.
    Raises OSError where the folder cannot be written to.
    """

    def __init__(self, drawn: Mapping[str, Drawn], folder: Path, *, aside: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):
            old.unlink()
        self.pictures = {name: Picture(folder / f"{name}.png", one.says) for name, one in drawn.items()}
        every = [(one.figure, self.pictures[name].file) for name, one in drawn.items()]
        self._saved = Aside(_save_all, every).result if aside else partial(_save_all, every)

    def finish(self) -> dict[str, Picture]:
        """The pictures by name, when all of them are there. Raises OSError where they cannot be written."""
        fault = self._saved()
        if fault is not None:
            raise fault
        return self.pictures


def _save_all(every: Sequence[tuple[Figure, Path]]) -> OSError | None:
    """Save each of them, and return why that could not be done, if so: another process cannot raise it here."""
    try:
        for figure, file in every:
            figures.save(figure, file)
    except OSError as fault:
        return fault
    return None

"""Run the notebooks in docs/notebooks and write each as a page of the site.

A notebook is a script in the percent format, which editors and Jupyter open as cells: ``# %%`` begins a cell of code,
``# %% [markdown]`` a cell of text. Words after ``# %%`` describe the figure that the cell draws.
``python docs/notebooks.py [NAME]...`` runs all notebooks, or those named. Beside each it writes a page, NAME.md, with
the text that the cells printed and the figures that they left open. The pages are kept in version control, so that the
site is built without measuring anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent / "notebooks"
CELL = re.compile(r"^# %%(?P<text> \[markdown\])?(?P<alt> .*)?\n", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook: text, or code with the words that describe the figures it draws."""

    text: bool
    source: str
    alt: str = ""


def cells(script: str) -> Iterator[Cell]:
    """The cells of a script in the percent format."""
    starts = list(CELL.finditer(script))
    ends = [one.start() for one in starts[1:]] + [len(script)]
    for start, end in zip(starts, ends, strict=True):
        source = script[start.end() : end].strip("\n")
        if start["text"]:
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        yield Cell(bool(start["text"]), source, (start["alt"] or "").strip())


def run(code: str, names: dict[str, Any]) -> str:
    """Run a cell and return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "<cell>", "exec"), names)
    return printed.getvalue()


def page(name: str, script: str, figures: Path) -> str:
    """Run all cells of a notebook in their order, and return its page; its figures go into the folder `figures`."""
    import matplotlib.pyplot as plt

    parts = []
    names: dict[str, Any] = {"__name__": "notebook"}
    drawn = 0
    for cell in cells(script):
        if cell.text:
            parts.append(cell.source)
            continue
        printed = run(cell.source, names)
        parts.append(f"```python\n{cell.source}\n```")
        if printed.strip():
            parts.append(f"```text\n{printed.rstrip()}\n```")
        for number in plt.get_fignums():
            drawn += 1
            file = figures / f"{name}-{drawn}.png"
            file.parent.mkdir(exist_ok=True)
            plt.figure(number).savefig(file, bbox_inches="tight", dpi=100)
            parts.append(f"![{cell.alt}](figures/{file.name})")
        plt.close("all")
    parts.append(f"*This page is [a script]({name}.py): run it, or open it as a notebook.*")
    return "\n\n".join(parts) + "\n"


def main(chosen: list[str]) -> None:
    """Write the pages of all notebooks, or of the `chosen` ones."""
    import matplotlib

    matplotlib.use("agg")
    for path in sorted(HOME.glob("*.py")):
        if chosen and path.stem not in chosen:
            continue
        print(path.stem, file=sys.stderr)
        with tempfile.TemporaryDirectory() as scratch:
            here = Path.cwd()
            os.chdir(scratch)
            try:
                text = page(path.stem, path.read_text(encoding="utf-8"), HOME / "figures")
            finally:
                os.chdir(here)
        path.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

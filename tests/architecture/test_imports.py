"""A module imports only from its own or a higher row of the table in `docs/architecture.md`; there are no cycles."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import attnlab

HOME = Path(attnlab.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
#: the public entry modules, which import on first use
FACE = ("__init__", "__main__")
#: packages that stand beside `attnlab/` in a checkout
BESIDE = ("implementations", "suites")


def rows() -> list[str]:
    """What each row of the package table names, from top to bottom: packages, modules, or "" for all other modules."""
    table = PAGE.read_text(encoding="utf-8").partition("## Tree")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    return [" ".join(re.findall(r"`([\w.]+)`", "" if "modules" in one else one)) for one in first[1:]]


def height(package: str, order: list[str]) -> int:
    """The row number of a package, or of a module in the top folder."""
    names = {package, f"{package}.py"}
    return next((at for at, row in enumerate(order) if names & {*row.split()}), 0)


@cache
def imports() -> dict[str, set[str]]:
    """The modules that each module of attnlab imports, by dotted name; without those of `FACE` and `BESIDE`."""
    files = {".".join(file.relative_to(HOME).with_suffix("").parts): file for file in HOME.rglob("*.py")}
    trees = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in files.items()}
    ours = (name for name in trees if name not in FACE and not name.startswith(BESIDE))
    return {name: set(imported(trees[name], set(trees))) for name in ours}


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """The modules among `known` that a module imports anywhere in its text, also if only for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "attnlab":
            home = node.module.partition(".")[2]
            for name in (f"{home}.{alias.name}".lstrip(".") for alias in node.names):
                found = next((one for one in (name, home, f"{home}.__init__") if one in known), None)
                if found is not None and found not in FACE:
                    yield found


def test_every_package_has_its_row() -> None:
    """Every package has a row in the table, and every row is a package."""
    folders = {file.parent.relative_to(HOME) for file in HOME.rglob("__init__.py")} - {Path()}
    packages = {folder.parts[0] for folder in folders} - {*BESIDE}
    assert packages == {row for row in rows() if "." not in row and row}


def test_imports_run_up_the_table() -> None:
    """This includes imports for types only and imports within functions."""
    order = rows()
    against = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in others
        if height(module.partition(".")[0], order) < height(other.partition(".")[0], order)
    ]
    assert against == []


def test_only_the_command_line_and_the_report_import_the_laboratory() -> None:
    """All other packages measure without `attnlab.lab`."""
    of_lab = (one for one, others in imports().items() if any(name.startswith("lab.") for name in others))
    assert {one.partition(".")[0] for one in of_lab} <= {"cli", "lab", "report"}


def test_no_circles() -> None:
    """In an import cycle, a module is asked for a name before it is fully loaded."""
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as fault:
        raise AssertionError(" → ".join(fault.args[1])) from None

"""Imports run down the packages as `docs/architecture.md` draws them, and no files import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import attnlab

HOME = Path(attnlab.__file__).parent
#: bottom up: a package imports those before it and the modules of the top folder, never those after it
ORDER = (
    *("workload", "backends", "libraries", "correctness", "stats", "race", "lab", "runs"),
    *("report", "routing", "pytest_plugin", "cli"),
)
#: the public face, which imports what is asked of it when it is asked
FACE = ("__init__", "__main__")


def modules() -> dict[str, ast.Module]:
    """Every module of attnlab by its dotted name."""
    files = (file for file in HOME.rglob("*.py"))
    return {
        ".".join(file.relative_to(HOME).with_suffix("").parts): ast.parse(file.read_text(encoding="utf-8"))
        for file in files
    }


def imported(tree: ast.Module, known: set[str], *, typing_too: bool) -> Iterator[str]:
    """The modules among `known` that a module imports, wherever in it; without those for types alone, or with them."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_too:
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "attnlab":
            home = node.module.partition(".")[2]
            for name in (f"{home}.{alias.name}".lstrip(".") for alias in node.names):
                found = next((one for one in (name, home, f"{home}.__init__") if one in known), None)
                if found is not None and found not in FACE:
                    yield found


def test_every_package_has_its_place() -> None:
    """And holds no packages of its own."""
    packages = {folder.parent.name for folder in HOME.rglob("__init__.py")} - {HOME.name}
    assert packages - {"implementations", "suites"} == set(ORDER)


def test_imports_run_downwards() -> None:
    """Also those for types alone, and those within functions."""
    height = {package: at for at, package in enumerate(ORDER)}
    trees = modules()
    wrong = {
        f"{module} imports {other}"
        for module, tree in trees.items()
        if module not in FACE and not module.startswith(("implementations", "suites"))
        for other in imported(tree, set(trees), typing_too=True)
        if height.get(other.partition(".")[0], -1) > height.get(module.partition(".")[0], -1)
    }
    assert not wrong


def test_no_files_import_each_other_in_a_circle() -> None:
    """At run time; `graphlib` names the circle that it finds."""
    trees = modules()
    graph = {
        module: set(imported(tree, set(trees), typing_too=False)) - {module} for module, tree in trees.items()
    }
    TopologicalSorter(graph).prepare()

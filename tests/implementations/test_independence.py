"""Implementations stand alone: none imports another, each says what it costs, and none is left out by mistake."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from every import lacking

import attnlab.implementations
from attnlab.backend.discovery import backends, load
from attnlab.errors import Unavailable

HOME = Path(attnlab.implementations.__path__[0])


def imported(source: str) -> set[str]:
    """Full names of what a file imports; a relative import shows as a name with leading dots."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            names |= {f"{origin}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("name", backends())
def test_no_implementation_imports_another(name: str) -> None:
    """Neither by its full name, nor relatively, nor from the top of the checkout."""
    for module in imported((HOME / f"{name}.py").read_text(encoding="utf-8")):
        assert not module.startswith((".", "implementations", "attnlab.implementations"))


def test_a_backend_that_tests_leave_out_is_not_installed() -> None:
    """Tests of all backends go through those that are here: no fault of ours may hide among the others."""
    left_out = {name: module for name in backends() if (module := lacking(name)) is not None}
    for name, module in left_out.items():
        with pytest.raises(Unavailable, match=module):
            load(name)

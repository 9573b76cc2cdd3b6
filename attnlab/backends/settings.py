"""The settings that a backend file declares, read from its text: nothing is imported for it.

``SETTINGS = {"precision": ("f32", "bf16")}`` names each setting with the values that it may have, the first of which
is its default. It has to be written out, so that a mistake in a setting is told before anything is measured, also
where the backend's library is not installed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

NAME = re.compile(r"[a-z][a-z0-9_]*")
_VALUE = re.compile(r"[^\s,=\[\]]+")

Declared = dict[str, tuple[str, ...]]


def declared(file: Path) -> Declared:
    """The allowed values of each setting that the backend `file` declares, the default first; empty without any.

    Raises ValueError, in one line, for a ``SETTINGS`` that is no such thing; a file that is no Python has none.
    """
    text = file.read_text(encoding="utf-8", errors="replace")
    if "SETTINGS" not in text:
        return {}
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return {}  # its import tells where
    for one in statements:
        targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "SETTINGS" for target in targets):
            return _read(file, getattr(one, "value", None))
    return {}


def chosen(backend: str, known: Declared, given: Mapping[str, str]) -> dict[str, str]:
    """A value for each of the `known` settings of `backend`: the one `given`, or its default.

    Raises ValueError, in one line, for a name or a value that is not known.
    """
    for name, value in given.items():
        if name not in known:
            its = ", ".join(f"{one}={'|'.join(values)}" for one, values in known.items())
            raise ValueError(
                f"{backend} has no setting {name!r}; "
                + (f"its own are {its}" if its else "it has none of its own")
            )
        if value not in known[name]:
            raise ValueError(f"{backend}: {name} must be {' or '.join(known[name])}, got {value!r}")
    return {name: given.get(name, values[0]) for name, values in known.items()}


def _read(file: Path, value: ast.expr | None) -> Declared:
    try:
        found = ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, dict) or not all(map(_sound, found, found.values())):
        raise ValueError(
            f'{file.name}: SETTINGS must be written out as {{"name": ("default", "other value"), ...}}: '
            "names of small letters, digits and _, values without blanks, commas, = and brackets"
        )
    return {name: tuple(values) for name, values in found.items()}


def _sound(name: object, values: object) -> bool:
    return (
        isinstance(name, str)
        and NAME.fullmatch(name) is not None
        and isinstance(values, tuple | list)
        and len(values) > 0
        and all(isinstance(one, str) and _VALUE.fullmatch(one) is not None for one in values)
    )

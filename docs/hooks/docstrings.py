"""Docstrings as the code has them, ``name : what it is`` on a line of its own, shown as lists."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \w+)*) ?: (?=\S)")
#: the other way in which they are written: a line of names, and what they are indented below it
TERM = re.compile(r"^(``.*)\n(?=    \S)", re.MULTILINE)


class Entries(Extension):
    """Turns lines that begin with ``name :`` into entries of a list, with the lines that go on with them."""

    def on_object(self, *, obj: Object, **rest: Any) -> None:
        """Called for every object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The text of a docstring with its entries as a Markdown list."""
    lines: list[str] = []
    inside = False
    text = re.sub(r"(?<!\n)\n- ", "\n\n- ", TERM.sub(r"- \1:\n", text), count=1)
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines += ([] if inside else [""]) + [f"- {names}: {line[entry.end() :]}"]
            inside = True
        elif inside and line.strip():
            lines.append("    " + line.strip())
        else:
            inside = False
            lines.append(line)
    return "\n".join(lines)

"""The tables of ``docs/dataset.md``: every column and every view, as they are declared."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attnlab.runs.dataset_query import VIEWS
from attnlab.runs.dataset_schema import PARTITIONS, TABLES, VERSION, VERSION_KEY

_MARKED = re.compile(r"(<!-- columns -->\n).*?(<!-- end of the columns -->)", re.DOTALL)


def anew(page: str) -> str:
    """`page` with what stands between its marks written again."""
    return _MARKED.sub(lambda match: f"{match[1]}{columns()}{match[2]}", page)


def columns() -> str:
    """The version, the tables with their columns, and the views of SQL, as Markdown."""
    parts = [
        f"The schema is version {VERSION} (`{VERSION_KEY}` in `dataset.json` and in every file's metadata).\n"
    ]
    folders = [(name, "in the folder's name", text) for name, text in PARTITIONS.items()]
    for table, declared in TABLES.items():
        rows = [*folders, *((one.name, f"`{one.kind}`", one.text) for one in declared)]
        parts.append(f"### Table `{table}`\n{_table(('column', 'type', 'what it holds'), rows)}")
    views = ((name, text) for name, (text, _) in VIEWS.items())
    parts.append(f"### Views of `attnlab query`\n{_table(('view', 'what it holds'), views)}")
    return "\n".join(parts)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "---|" * lines[0].count(" | ") + "---|")
    for first, *rest in rows:
        lines.append("| " + " | ".join((f"`{first}`", *(one.replace("|", "\\|") for one in rest))) + " |")
    return "\n".join(lines) + "\n"

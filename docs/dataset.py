"""Write the tables of docs/dataset.md again, from the schema's declarations: ``python docs/dataset.py``."""

from __future__ import annotations

import re
from pathlib import Path

from attnlab.report.layout import markdown
from attnlab.runs.dataset import VIEWS
from attnlab.runs.dataset_schema import PARTITIONS, TABLES, VERSION, VERSION_KEY, WORKLOAD, arrow

PAGE = Path(__file__).with_suffix(".md")


def written_again(page: str) -> str:
    """`page` with the version, the tables with their columns and the views between its marks."""
    folders = [f"- `{name}`, in the folders' names: {text}" for name, text in PARTITIONS.items()]
    fields = ", ".join(f"`{one.name}`" for one in WORKLOAD)
    parts = [
        f"The schema is version {VERSION} (`{VERSION_KEY}` in `dataset.json` and in every file's metadata). Beside the "
        "columns below there are:",
        "\n".join([*folders, f"- in `results`, each field of a workload, named as its option: {fields}."]),
    ]
    for table, columns in TABLES.items():
        kinds = {one.name: re.sub(r"(?<=<)(item|element): ", "", str(one.type)) for one in arrow(table)}
        told = [one for one in columns if one not in WORKLOAD]
        rows = [(f"`{one.name}`", f"`{kinds[one.name]}`", one.text) for one in told]
        parts += [
            f"### Table `{table}`",
            markdown(("column", "type", "what it holds"), rows, left=3, narrow=True),
        ]
    views = [(f"`{name}`", text) for name, (text, _) in VIEWS.items()]
    parts += ["### Views of `attnlab query`", markdown(("view", "what it holds"), views, left=2, narrow=True)]
    text = "\n\n".join(parts)
    return re.sub(r"(?s)(<!-- columns -->\n).*?(\n<!-- end)", lambda marks: marks[1] + text + marks[2], page)


if __name__ == "__main__":
    PAGE.write_text(written_again(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

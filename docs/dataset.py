"""Write the tables of docs/dataset.md again, from the schema's declarations: ``python docs/dataset.py``."""

from __future__ import annotations

from pathlib import Path

from attnlab.runs.dataset_page import anew

PAGE = Path(__file__).with_suffix(".md")

if __name__ == "__main__":
    PAGE.write_text(anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Questions to a dataset, and the contenders of the runs that it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOUR = ("torch_eager", "torch_eager#2", "torch_sdpa", "torch_sdpa_flash", "torch_sdpa_math")


def ask(path: Path, sql: str) -> list[dict[str, Any]]:
    """The rows of the answer, by column."""
    from attnlab.runs import dataset

    answer = dataset.query(path, sql)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

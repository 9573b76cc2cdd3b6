"""The data of a page, read as its script reads it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

from attnlab.report.page_columns import DIGITS


def block(page: str, name: str) -> str:
    """The letters of the block of that name."""
    (letters,) = re.findall(f'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return str(letters)


def unpacked(letters: str) -> Any:
    """What stands in a block."""
    return json.loads(gzip.decompress(base64.b64decode(letters, validate=True)))


def figures(column: dict[str, Any]) -> list[float | None]:
    """The figures of a column, out of their digits and powers."""
    digits = re.findall(r"\d" * DIGITS, column["digits"])
    return [
        None if power is None else float(f"{one}e{power}")
        for one, power in zip(digits, column["powers"], strict=True)
    ]


def data_of(page: str) -> Any:
    """What a browser makes of the data: tables with a list a column, and ``rounds``."""
    data = unpacked(block(page, "data"))
    for table in (data["workloads"], data["results"]):
        table |= {name: figures(column) for name, column in table.pop("figures").items()}
    return {**data, "rounds": unpacked(block(page, "rounds"))}

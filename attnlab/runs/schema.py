"""The JSON schema of what a run stores; ``docs/store.schema.json`` holds it, and a test that it is current."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from attnlab.problem.result import Result
from attnlab.runs.store import FORMAT, stored_type


def schema() -> dict[str, Any]:
    """Under ``$defs`` among others ``Result``, a line of ``results.jsonl``, and ``run``, which is ``run.json``.

    Numbers that are not finite are written as the texts "nan", "inf" and "-inf".
    """
    (result, run), parts = msgspec.json.schema_components(
        (Result, stored_type()), ref_template="#/$defs/{name}"
    )
    for part in parts.values():
        if "description" in part:  # a docstring, which Python indents by its version
            part["description"] = inspect.cleandoc(part["description"])
    parts["run"]["properties"]["format"] = {"const": FORMAT}
    parts["run"]["required"] = ["format", *parts["run"]["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a line of results.jsonl, or run.json",
        "oneOf": [result, run],
        "$defs": parts,
    }

"""Where a run was made, and with which settings, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab import units
from attnlab.report.analysis import Analysis
from attnlab.report.as_ran import AsRan
from attnlab.text import one_line

#: entries of an environment that two runs are compared by, and how they are named
_ENTRIES = {
    "cpu": "processor",
    "gpu": "GPU",
    "cores": "cores",
    "affinity": "cores allowed",
    "memory_bytes": "memory",
    "system": "system",
    "libc": "C library",
    "python": "Python",
    "attnlab": "attnlab",
    "governor": "frequency governor",
    "turbo": "turbo",
    "huge_pages": "huge pages",
    "variables": "variables",
    "load_at_start": "load at the start",
}


def about(environment: Mapping[str, Any]) -> list[list[str]]:
    """[name, text] of what tells this machine from another, and the version of every library that was loaded."""
    rows = [
        [label, _text(name, environment.get(name))] for name, label in _ENTRIES.items() if name in environment
    ]
    for library, versions in sorted(_versions(environment.get("contenders")).items()):
        rows.append([one_line(library), one_line(", ".join(sorted(versions)))])
    return [row for row in rows if row[1]]


def settings_of(analysis: Analysis) -> dict[str, str]:
    """By contender that was measured: its threads, the modes of its library, and the versions that it ran with."""
    known = analysis.run.environment.get("contenders")
    facts = known if isinstance(known, Mapping) else {}
    found = {}
    measured = {name for cell in analysis.cells for name in cell.measured}
    for name in (name for name in analysis.names if name in measured):
        mine = facts.get(name)
        mine = mine if isinstance(mine, Mapping) else {}
        modes, versions = mine.get("modes"), mine.get("versions")
        said = [f"threads: {AsRan(name, (), mine).threads}"]
        said += [f"{one} {value}" for one, value in modes.items()] if isinstance(modes, Mapping) else []
        said += [f"{one} {value}" for one, value in versions.items()] if isinstance(versions, Mapping) else []
        found[name] = one_line("; ".join(said))
    return found


def _versions(contenders: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for facts in contenders.values() if isinstance(contenders, Mapping) else ():
        versions = facts.get("versions") if isinstance(facts, Mapping) else None
        for library, version in versions.items() if isinstance(versions, Mapping) else ():
            found.setdefault(str(library), set()).add(str(version))
    return found


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes") and isinstance(value, int):
        return units.bytes_text(value)
    if isinstance(value, Mapping):
        return one_line(", ".join(f"{key} {one}" for key, one in value.items() if one is not None))
    if isinstance(value, list | tuple):
        return one_line(", ".join(map(str, value)))
    return one_line(str(value))

"""Folders for results: new, empty, or our own default one, whose former content is kept beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path


def claim(folder: Path | str | None, default: Path, marker: str) -> Path:
    """The folder to write to: `folder`, which must be new or empty, or `default`.

    What stands in the default folder is moved aside, under the time of its `marker` file, if it holds one; the
    marker is how a folder of ours is known. Raises ValueError for a folder that cannot be used.
    """
    place = default if folder is None else Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"the output folder {place} is a file; give another with --out")
    if place.is_dir() and any(place.iterdir()):
        ours = (place / marker).is_file()
        if folder is not None or not ours:
            holds = "results" if ours else "something else than results of attnlab"
            raise ValueError(f"the output folder {place} already holds {holds}; give a new one with --out")
        _move_aside(place, marker)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(f"the output folder {place} cannot be made: {fault.strerror}") from None
    return place


def _move_aside(place: Path, marker: str) -> None:
    stamp = datetime.fromtimestamp((place / marker).stat().st_mtime, UTC).strftime("%Y-%m-%d-%H%M%S")
    aside, number = place.with_name(f"{place.name}-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = place.with_name(f"{place.name}-{stamp}-{number}")
    place.rename(aside)

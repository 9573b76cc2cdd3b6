"""What this machine was found to do, remembered in the user's cache folder, so that a second run need not ask again.

An answer holds for its question on the machine as it was: since it was booted, with its cores, settings and installed
packages, and attnlab's own text. Where any of these is another, and after a month, it is asked again; and where the
file of answers is not there, damaged, or not to be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import psutil

from attnlab.environment import CONDITIONS, environment
from attnlab.text import read_text

T = TypeVar("T")
#: the variable that names the folder of answers, where that is not to be the user's cache folder
FOLDER = "ATTNLAB_CACHE"
_LONGEST = timedelta(days=30)
_MOST_BYTES = 2**25
_BOOT, _DRIVER = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class _Answer:
    when: Annotated[datetime, msgspec.Meta(tz=True)]
    found: list[dict[str, Any]]


class Remembered:
    """Answers of before; none of them where all is to be asked `afresh`, but what is found then is kept as well."""

    def __init__(self, *, afresh: bool) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnlab"
        self._file = Path(os.environ.get(FOLDER) or home) / "remembered.json"
        self._afresh, self._here = afresh, _here()

    def recall(self, question: Mapping[str, Any], kind: type[T]) -> list[T] | None:
        """What was found, dataclasses of `kind` whose field `remembered` says when; None where it is to be asked."""
        answer = None if self._afresh else self._answers().get(self._key(question))
        if answer is None:
            return None
        told = {"remembered": f"{answer.when:%Y-%m-%d %H:%M} UTC"}
        try:
            return [msgspec.convert({**one, **told}, kind) for one in answer.found]
        except msgspec.ValidationError:
            return None

    def keep(self, question: Mapping[str, Any], found: Sequence[Any]) -> None:
        """Remember what was found now, dataclasses."""
        answer = _Answer(datetime.now(UTC), msgspec.to_builtins(found))
        fresh = self._file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            fresh.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode({**self._answers(), self._key(question): answer}))
            fresh.replace(self._file)

    def _answers(self) -> dict[str, _Answer]:
        try:
            found = msgspec.json.decode(read_text(self._file, _MOST_BYTES), type=dict[str, _Answer])
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
            return {}
        return {key: one for key, one in found.items() if datetime.now(UTC) - one.when < _LONGEST}

    def _key(self, question: Mapping[str, Any]) -> str:
        asked = json.dumps([question, self._here], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()


def digest(files: Iterable[Path]) -> str:
    """Of the names and the text of `files`."""
    told = hashlib.sha256()
    for file in sorted(files):
        told.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return told.hexdigest()


def _here() -> dict[str, Any]:
    """All of the machine and its software that may change an answer."""
    found = environment()
    booted = _BOOT.read_text() if _BOOT.exists() else f"{platform.node()} {psutil.boot_time():.0f}"
    return {
        **{name: found[name] for name in CONDITIONS},
        "booted": booted,
        "driver": _DRIVER.read_text() if _DRIVER.exists() else None,
        "packages": sorted(one.name for path in sys.path for one in Path(path).glob("*.dist-info")),
        "place": [sys.prefix, os.environ.get("LD_LIBRARY_PATH")],
        "attnlab itself": digest(Path(__file__).parent.rglob("*.py")),
    }

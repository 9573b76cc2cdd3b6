"""What this machine was found to do, remembered in the user's cache folder, so that a second run need not ask again.

An answer holds for its question on the machine as it was: since it was booted, with its cores, settings and installed
packages, and attnlab's own text. Where any of these is another, and after a month, it is asked again; and where the
file of answers is not there, damaged, or not to be written. `ATTNLAB_CACHE` names another folder for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import psutil

from attnlab.environment import CONDITIONS, environment, read
from attnlab.text import read_text

T = TypeVar("T")
_LONGEST = timedelta(days=30)
_MOST_BYTES = 2**25
_BOOT, _DRIVER = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/driver/nvidia/version")
#: by question, when it was answered, and dataclasses as plain data
_Answers = dict[str, tuple[Annotated[datetime, msgspec.Meta(tz=True)], list[dict[str, Any]]]]


class Remembered:
    """Answers of before; none of them where all is to be asked `afresh`, but what is found then is kept as well."""

    def __init__(self, *, afresh: bool) -> None:
        self._file = cache_folder() / "remembered.json"
        self._afresh, self._here = afresh, _here()

    def recall(self, question: Mapping[str, Any], kind: type[T]) -> list[T] | None:
        """What was found, dataclasses of `kind` whose field `remembered` says when; None where it is to be asked."""
        key, answers = self._key(question), {} if self._afresh else self._answers()
        if key not in answers:
            return None
        when, found = answers[key]
        since = {"remembered": f"{when:%Y-%m-%d %H:%M} UTC"}
        with contextlib.suppress(msgspec.ValidationError):
            return [msgspec.convert({**one, **since}, kind) for one in found]
        return None

    def keep(self, question: Mapping[str, Any], found: Sequence[Any]) -> None:
        """Remember what was found now, dataclasses."""
        fresh = self._file.with_suffix(f".{os.getpid()}")
        answers = {**self._answers(), self._key(question): (datetime.now(UTC), found)}
        with contextlib.suppress(OSError):
            fresh.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(answers))
            fresh.replace(self._file)

    def _answers(self) -> _Answers:
        try:
            found = msgspec.json.decode(read_text(self._file, _MOST_BYTES), type=_Answers)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
            return {}
        return {key: one for key, one in found.items() if datetime.now(UTC) - one[0] < _LONGEST}

    def _key(self, question: Mapping[str, Any]) -> str:
        return hashlib.sha256(json.dumps([question, self._here], sort_keys=True).encode()).hexdigest()


def cache_folder() -> Path:
    """Where attnlab keeps what it would otherwise find out or make again; it may not be there yet."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ATTNLAB_CACHE") or user / "attnlab")


def _here() -> dict[str, Any]:
    """All of the machine and its software that may change an answer."""
    here, own = environment(), sorted(Path(__file__).parent.rglob("*.py"))
    return {name: here[name] for name in CONDITIONS} | {
        "booted": read(_BOOT) or f"{platform.node()} {psutil.boot_time():.0f}",
        "driver": read(_DRIVER),
        "packages": sorted(one.name for path in sys.path for one in Path(path).glob("*.dist-info")),
        "place": [sys.prefix, os.environ.get("LD_LIBRARY_PATH")],
        "attnlab itself": hashlib.sha256(b"".join(one.read_bytes() for one in own)).hexdigest(),
    }

"""The record of sittings: what earlier calls found on this machine, so that later calls can add to it.

One call lasts seconds, but states of a machine last minutes: only several sittings show them. The record is a file of
JSON lines in the user's cache folder. A line is one sitting of a pair of contenders on a workload. It counts for the
same question again as long as machine, packages, variables, attnlab's source and both backend files are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import digest
from attnlab.environment import cache_folder, circumstances
from attnlab.race.instruments import Notice
from attnlab.stats.intervals import (
    ALPHA,
    BETWEEN,
    BETWEEN_ALIKE,
    Sitting,
    Verdict,
    between_sittings,
    over_sittings,
    stepwise,
)
from attnlab.stats.ranking import entered_once
from attnlab.workload.workload import Workload

#: most bytes of the record that are read, and most sittings of a question that count: the newest in both cases
_MOST_BYTES, _MOST = 2**24, 50
FILE = "sittings.jsonl"


class Line(msgspec.Struct, frozen=True):
    """A line of the record. `question` and `pair` are digests; the names and the workload's label are for people."""

    question: str
    pair: str
    baseline: str
    contender: str
    workload: str
    sitting: Sitting


@dataclass(frozen=True)
class Combined:
    """A verdict over all sittings of a question. They are in the order of time, and the last one is this call's.

    `between` is the standard deviation that a sitting adds to the logarithm of the ratio. `shown` : whether stored
    sittings of this pair were used to estimate it.
    """

    verdict: Verdict
    sittings: Sequence[Sitting]
    between: float
    shown: bool

    @property
    def differ(self) -> tuple[Sitting, Sitting] | None:
        """The newest earlier sitting whose interval does not touch that of the last one, and the last one; or None."""
        last = self.sittings[-1]
        for one in reversed(self.sittings[:-1]):
            if one.span[2] < last.span[1] or last.span[2] < one.span[1]:
                return one, last
        return None


class Record:
    """The sittings of this machine. With `afresh`, earlier sittings are ignored, but new ones are stored."""

    def __init__(self, *, afresh: bool = False, tell: Callable[[str], None] = lambda text: None) -> None:
        self._file, self._afresh, self._tell = cache_folder() / FILE, afresh, tell
        self._here = {name: one for name, one in circumstances().items() if name != "booted"}

    def lines(self) -> list[Line]:
        """All readable lines in the newest part of the record."""
        try:
            with self._file.open("rb") as file:
                start = file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
                # the first line may be cut off
                texts = file.read(_MOST_BYTES).split(b"\n")[bool(start) :]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as fault:
            self._tell(Notice(f"Earlier sittings are left out: {self._file} is unreadable ({fault})."))
            return []
        found, bad = list[Line](), 0
        for text in filter(bytes.strip, texts):
            try:
                found.append(msgspec.json.decode(text, type=Line))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                bad += 1
        if bad:
            self._tell(Notice(f"{bad} of {bad + len(found)} lines of {self._file} are damaged and left out."))
        return found

    def combine(
        self,
        workload: Workload,
        contenders: Sequence[Contender],
        verdicts: Mapping[str, Verdict],
        folders: Sequence[str],
        kept: bool = True,
    ) -> dict[str, Combined]:
        """The verdicts against the first contender over all sittings, this one included; it is stored if `kept`.

        The sitting of a pair is not stored if its contender or the baseline runs elsewhere: what that runs in may
        change under its name.
        """
        known, (baseline, *others) = ([] if self._afresh else self.lines()), contenders
        rest, levels, new = dict[str, Any](), dict[str, Callable[[float], Verdict]](), list[Line]()
        for one in (one for one in others if one.name in verdicts and verdicts[one.name].low > 0):
            verdict = verdicts[one.name]
            pair = _digest(
                self._here,
                [entered_once(each.name) for each in (baseline, one)],
                [digest(each.backend, folders) for each in (baseline, one)],
            )
            moment = datetime.now(UTC).isoformat(timespec="seconds")
            error = verdict.spread / math.sqrt(verdict.visits)
            sitting = Sitting(moment, math.log(verdict.ratio), error, verdict.freedom, verdict.visits)
            question = _digest(pair, {**workload.to_dict(), "seed": 0})
            mine = [each.sitting for each in known if each.question == question][-_MOST:]
            same: dict[str, list[Sitting]] = {}
            for each in (each for each in known if each.pair == pair):
                same.setdefault(each.question, []).append(each.sitting)
            shown = any(len(sittings) > 1 for sittings in same.values())
            versions: dict[str, Any] = {"python": None, "requirements": (), "ref": None}
            first, second = (replace(each, name="", slowed=0.0, **versions) for each in (baseline, one))
            between = between_sittings(same.values(), BETWEEN_ALIKE if first == second else BETWEEN)
            rest[one.name] = [*mine, sitting], between, shown
            levels[one.name] = partial(over_sittings, verdict, [*mine, sitting], between)
            if kept and not (one.elsewhere or baseline.elsewhere):
                new.append(Line(question, pair, baseline.name, one.name, workload.label, sitting))
        self._keep(new)
        found = stepwise(levels, len(verdicts), ALPHA)
        return {name: Combined(verdict, *rest[name]) for name, verdict in found.items()}

    def _keep(self, new: Sequence[Line]) -> None:
        """Append lines in one write, so that two processes that write at once lose nothing."""
        data = b"".join(b"\n" + msgspec.json.encode(one) + b"\n" for one in new)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if os.write(file, data) < len(data):
                    raise OSError("no space is left")
            finally:
                os.close(file)
        except OSError as fault:
            self._tell(
                Notice(f"This sitting is not kept for later calls: {self._file}: {fault.strerror or fault}")
            )


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

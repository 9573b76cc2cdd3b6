"""Which backend supports what: declared by the backend, and each yes confirmed by running it once.

A backend works in a process of its own, and its answers are held against float64 by the check of every race. What it
declines, it says why; what it does not decline and gets wrong is a fault, and is told as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import on_request
from attnlab.gate import race_check
from attnlab.problem.workload import Workload
from attnlab.race.worker_process import NoAnswer, Refused, WorkerProcess
from attnlab.runs.features import AXES, asked, features

YES = "yes"
#: what begins the answer of a backend that does not decline a workload, and was not run on it
DECLARED = "declared, not run"
#: what begins the answer of a backend that does not decline a workload and fails on it
FAULT = "FAULT: "
#: a first call may compile
_SECONDS = 300.0

#: by feature, direction and dtype: `YES`, or why not
Answers = Mapping[str, Mapping[str, Mapping[str, str]]]


@dataclass(frozen=True)
class Support:
    """What one backend supports on one device; `unavailable` says why nothing could be asked.

    versions : of the libraries that answered.
    """

    backend: str
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)
    unavailable: str | None = None
    answers: Answers = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """What it does not decline and does not do."""
        return [
            f"{self.backend} on {self.device}, {feature}, {direction}, {dtype}: {answer.removeprefix(FAULT)}"
            for feature, directions in self.answers.items()
            for direction, dtypes in directions.items()
            for dtype, answer in dtypes.items()
            if answer.startswith(FAULT)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: an answer is a number, 0 for yes and n for the n-th of the `reasons`."""
        reasons = {YES: 0}
        answers = {
            feature: {
                direction: [reasons.setdefault(dtypes[dtype], len(reasons)) for dtype in AXES["dtypes"]]
                for direction, dtypes in directions.items()
            }
            for feature, directions in self.answers.items()
        }
        told = {"backend": self.backend, "device": self.device, "versions": dict(self.versions)}
        if self.unavailable is not None:
            return {**told, "unavailable": self.unavailable}
        return {**told, "dtypes": list(AXES["dtypes"]), "reasons": list(reasons)[1:], "answers": answers}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Support:
        """The inverse of `to_dict`."""
        texts = [YES, *data.get("reasons", ())]
        answers = {
            feature: {
                direction: {
                    dtype: texts[number] for dtype, number in zip(data["dtypes"], numbers, strict=True)
                }
                for direction, numbers in directions.items()
            }
            for feature, directions in data.get("answers", {}).items()
        }
        return cls(data["backend"], data["device"], data["versions"], data.get("unavailable"), answers)


def support(
    name: str,
    device: str = "cpu",
    folders: Sequence[str] = (),
    *,
    confirm: bool = True,
    only: Sequence[str] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> Support:
    """Ask the backend `name` for every feature, in every direction and number format.

    confirm : run each yes once, and judge the answer; otherwise what it declares is believed. Of one that races only
    where it is named, because it compiles, the forward pass in float32 alone. only : these features.
    Raises ValueError for an unknown backend.
    """
    process = WorkerProcess(Contender.parse(name), folders)
    slow = on_request(name, folders)
    try:
        process.start()
        process.finish_start()
        versions = process.ask("facts", seconds=_SECONDS, device=device)["versions"]
        answers: dict[str, dict[str, dict[str, str]]] = {}
        for feature in only or features():
            for direction in AXES["directions"]:
                on_event(f"{name} on {device}: {feature}, {direction}")
                found = answers.setdefault(feature, {})[direction] = {}
                for dtype in AXES["dtypes"]:
                    spared = slow and (direction, dtype) != ("forward", "float32")
                    try:
                        posed = asked(feature, dtype, direction, device)
                    except ValueError as nothing:  # there is no such workload
                        found[dtype] = str(nothing)
                        continue
                    told = _answer(process, posed, confirm and not spared)
                    found[dtype] = f"{DECLARED}: {slow}" if spared and told == YES else told
    except NoAnswer as fault:
        return Support(name, device, unavailable=str(fault))
    finally:
        process.end()
    return Support(name, device, versions, None, answers)


def _answer(process: WorkerProcess, workload: Workload, confirm: bool) -> str:
    """`YES`, the reason, or what went wrong; the process is there again after that."""
    try:
        process.ask("declines", seconds=_SECONDS, workload=workload)
        return _confirmed(process, workload) if confirm else YES
    except Refused as refusal:
        return str(refusal) if refusal.kind == "declined" else f"{FAULT}{refusal}"
    except NoAnswer as fault:
        process.end()
        process.start()
        process.finish_start()
        return f"{FAULT}{fault}"


def _confirmed(process: WorkerProcess, workload: Workload) -> str:
    """What comes of one call: `YES` where it is right."""
    rows = race_check.sampled_rows(workload)
    process.ask("prepare", seconds=_SECONDS, workload=workload)
    (answers,) = process.ask("check", seconds=_SECONDS, rows=rows, calls=1)["answers"]
    found = race_check.judge(workload, rows, answers, process.computes_in)
    return YES if found.passed else f"{FAULT}{found.reason or 'failed the accuracy gate'}"

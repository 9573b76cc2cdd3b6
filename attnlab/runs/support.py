"""What a backend supports: whether it can run here, and for every feature yes or why not.

A backend works in a process of its own, which it may end, and its answers are held against float64 by the check of
every race. What it declines, it says why; what it does not decline and gets wrong is a fault, and is told as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends, on_request, settings_of
from attnlab.correctness import race_check
from attnlab.race.worker_process import Died, Hung, NoAnswer, Refused, WorkerProcess
from attnlab.workload.mask_kinds import Part
from attnlab.workload.vocabulary import DIRECTIONS, DTYPES
from attnlab.workload.workload import Workload

YES = "yes"
#: what begins the answer of a backend that does not decline a workload, and was not run on it
DECLARED = "declared, not run"
#: what begins the answer of a backend that does not decline a workload and fails on it
FAULT = "FAULT: "
#: a first call may compile
_SECONDS = 300.0
#: a library that is not imported after so long is told as one that hangs
_IMPORT_SECONDS = 60.0
#: what features are added to: the smallest shape that kernels made for real models take
BASE = Workload(batch=2, heads=4, queries=32, keys=32, head_dim=64)
PLAIN = "no mask"
#: the kinds of masks that fields of their own say, and the one of a caller's own array
_SAID_ELSEWHERE = ("causal", "window", "key_lengths", "given")

#: by feature, direction and dtype: `YES`, or why not
Answers = Mapping[str, Mapping[str, Mapping[str, str]]]


def features() -> dict[str, Mapping[str, Any]]:
    """The fields of `Workload` that each feature sets on `BASE`, by the feature's name.

    A mask of each kind that is written as text is among them; the boolean array that all come to is ``random``.
    """
    masks: dict[str, Mapping[str, Any]] = {}
    for kind, cls in Part.kinds.items():
        part = None if kind in _SAID_ELSEWHERE else cls.drawn(np.random.default_rng(0), BASE.shape)
        if part is not None:
            masks["any boolean mask" if kind == "random" else f"mask {kind}"] = {"mask": part.text}
    return {
        PLAIN: {},
        "grouped heads": {"kv_heads": 2},
        "one key head": {"kv_heads": 1},
        "decoding, 1 query": {"queries": 1},
        "cross-attention, fewer queries": {"queries": 20},
        "cross-attention, fewer keys": {"keys": 20},
        "value_dim ≠ head_dim": {"value_dim": 32},
        "multi-head block": {"d_model": 256},
        "multi-head block, rotary": {"d_model": 256, "rotary": True},
        "causal, as many queries as keys": {"causal": "top_left"},
        "causal top-left, fewer queries": {"causal": "top_left", "queries": 20},
        "causal bottom-right, fewer queries": {"causal": "bottom_right", "queries": 20},
        "window": {"window": (5, 5)},
        "window and causal": {"window": (5, 0), "causal": "top_left"},
        "window and causal bottom-right, fewer queries": {
            "window": (5, 0),
            "causal": "bottom_right",
            "queries": 20,
        },
        "key lengths": {"key_lengths": (20, 32)},
        "key lengths, one of them 0": {"key_lengths": (0, 32)},
        **masks,
        "bias": {"bias": "normal"},
        "ALiBi": {"bias": "alibi"},
        "soft cap": {"softcap": 5.0},
        "sinks": {"sinks": True},
        "scale": {"scale": 0.3},
        "layout bshd": {"layout": "bshd"},
        "preallocated cache": {"storage": "preallocated", "queries": 1},
        "grown cache": {"storage": "grown", "queries": 1},
        "packed keys": {"storage": "packed", "key_lengths": (20, 32)},
        "paged keys": {"storage": "paged", "queries": 1},
    }


def asked(feature: str, dtype: str, direction: str, device: str) -> Workload:
    """The small workload of a feature. Raises KeyError for one that there is not, ValueError for what cannot be."""
    fields = {"value_dim": None, "kv_heads": None, "scale": None, **features()[feature]}
    return BASE.with_(**fields, dtype=dtype, direction=direction, device=device)


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
        told = {"backend": self.backend, "device": self.device, "versions": dict(self.versions)}
        if self.unavailable is not None:
            return {**told, "unavailable": self.unavailable}
        reasons = {YES: 0}
        answers = {
            feature: {
                direction: [reasons.setdefault(dtypes[dtype], len(reasons)) for dtype in DTYPES]
                for direction, dtypes in directions.items()
            }
            for feature, directions in self.answers.items()
        }
        return {**told, "dtypes": list(DTYPES), "reasons": list(reasons)[1:], "answers": answers}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Support:
        """The inverse of `to_dict`."""
        texts = [YES, *data.get("reasons", ())]
        answers = {
            feature: {
                direction: dict(zip(data["dtypes"], (texts[number] for number in numbers), strict=True))
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
    only: Sequence[str] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> Support:
    """Ask the backend `name` for every feature, in every direction and number format.

    Each yes is run once, and the answer judged; of one that races only where it is named, because it compiles, the
    forward pass in float32 alone: else what it declares is believed. only : these features.
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
            for direction in DIRECTIONS:
                on_event(f"{name} on {device}: {feature}, {direction}")
                found = answers.setdefault(feature, {})[direction] = {}
                for dtype in DTYPES:
                    spared = slow and (direction, dtype) != ("forward", "float32")
                    try:
                        posed = asked(feature, dtype, direction, device)
                    except ValueError as nothing:  # there is no such workload
                        found[dtype] = str(nothing)
                        continue
                    told = _answer(process, posed, not spared)
                    found[dtype] = f"{DECLARED}: {slow}" if spared and told == YES else told
    except NoAnswer as fault:
        return Support(name, device, unavailable=str(fault))
    finally:
        process.end()
    return Support(name, device, versions, None, answers)


def _answer(process: WorkerProcess, workload: Workload, confirm: bool) -> str:
    """`YES`, the reason, or what went wrong; the process is there again after that."""
    asked: dict[str, Any] = {"seconds": _SECONDS, "workload": workload}
    try:
        process.ask("declines", **asked)
        if not confirm:
            return YES
        rows = race_check.sampled_rows(workload)
        process.ask("prepare", **asked)
        (answers,) = process.ask("check", seconds=_SECONDS, rows=rows, calls=1)["answers"]
        found = race_check.judge(workload, rows, answers, process.computes_in)
        return YES if found.passed else f"{FAULT}{found.reason or 'failed the accuracy gate'}"
    except Refused as refusal:
        return str(refusal) if refusal.kind == "declined" else f"{FAULT}{refusal}"
    except NoAnswer as fault:
        process.end()
        process.start()
        process.finish_start()
        return f"{FAULT}{fault}"


@dataclass(frozen=True)
class Listed:
    """A backend: its library where it loads, what it is in one line, and why it cannot run here, None where it can."""

    name: str
    library: str
    summary: str
    reason: str | None


def listed(
    device: str,
    folders: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    seconds: float = _IMPORT_SECONDS,
    on_event: Callable[[str], None] = lambda text: None,
) -> list[Listed]:
    """Every backend, or each of `names`, in that order: whether it can do the default workload on `device`.

    They are imported one after the other in one process, because most of them share a library. Where that process
    ends or hangs, the backend is tried again alone: the libraries of those before it may be the cause.
    Raises ValueError for a folder that is none.
    """
    found: list[Listed] = []
    asked = {"folders": list(folders), "workload": Workload(device=device)}
    process: WorkerProcess | None = None
    try:
        for name in list(names) or backends(folders):
            on_event(f"looking at {name}")
            one = None
            while one is None:
                alone = process is None
                try:
                    if process is None:
                        process = WorkerProcess(Contender(name, name), folders, start_seconds=seconds)
                        process.start("describe", backend=name, **asked)
                        told = process.finish_start()
                    else:
                        told = process.ask("describe", seconds=seconds, backend=name, **asked)
                    own = [f"{key}={'|'.join(some)}" for key, some in settings_of(name, folders).items()]
                    summary = told["summary"] + (f" Settings: {', '.join(own)}." if own else "")
                    one = Listed(name, told["library"], summary, told["reason"])
                except Refused as refusal:
                    one = Listed(name, "", "", str(refusal))
                except (Died, Hung) as fault:
                    process = None  # it is not there any more
                    one = Listed(name, "", "", str(fault)) if alone else None
            found.append(one)
    finally:
        if process is not None:
            process.end()
    return found

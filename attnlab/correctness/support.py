"""What a backend supports: whether it can run here (`listed`), and for every feature yes or why not (`support`).

A backend runs in a separate process, because it may crash. Its answers are checked against float64, as before every
race. It gives a reason for each workload that it declines. A wrong answer to a workload that it does not decline is a
fault.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends, compiles_often, settings_of
from attnlab.correctness.answering import SERVE, Held
from attnlab.processes import Failed, Process
from attnlab.workload.inputs import Inputs, pack
from attnlab.workload.mask_kinds import Part
from attnlab.workload.number_formats import DTYPES
from attnlab.workload.workload import DIRECTIONS, OUTPUT, Workload

YES = "yes"
#: how an entry begins if the backend does not decline the workload, but was not run on it
DECLARED = "declared, not run"
#: how an entry begins if the backend does not decline the workload, but fails on it
FAULT = "FAULT: "
#: seconds for a call, which may compile; for an import
_SECONDS, _IMPORT_SECONDS = 300.0, 60.0
#: what a NaN that the mask hides may do to the answer, the worst first
_HIDDEN = ("makes other numbers wrong", "comes out", "stays hidden")
#: exponents of the powers of two that are tried as scores in float16; 2^16 is beyond its largest number
_POWERS = range(8, 25)
#: the workload to which features are added: the smallest shape that kernels for real models take
BASE = Workload(batch=2, heads=4, queries=32, keys=32, head_dim=64)
PLAIN, BLOCK = "no mask", "multi-head block"
#: kinds of masks for which `features` adds no feature: those with a field (they are in `_FEATURES`), and a caller's own
#: array
_SAID_ELSEWHERE = ("causal", "window", "key_lengths", "given")
_FEATURES: dict[str, Mapping[str, Any]] = {
    PLAIN: {},
    "grouped heads": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "decoding, 1 query": {"queries": 1},
    "cross-attention, fewer queries": {"queries": 20},
    "cross-attention, fewer keys": {"keys": 20},
    "value_dim ≠ head_dim": {"value_dim": 32},
    BLOCK: {"d_model": 256},
    "causal, as many queries as keys": {"causal": "top_left"},
    "causal top-left, fewer queries": {"causal": "top_left", "queries": 20},
    "causal bottom-right, fewer queries": {"causal": "bottom_right", "queries": 20},
    "window": {"window": (5, 5)},
    "window and causal": {"window": (5, 0), "causal": "top_left"},
    "window and causal bottom-right": {"window": (5, 0), "causal": "bottom_right", "queries": 20},
    "key lengths": {"key_lengths": (20, 32)},
    "key lengths, one of them 0": {"key_lengths": (0, 32)},
    "bias": {"bias": "normal"},
    "ALiBi": {"bias": "alibi"},
    "soft cap": {"softcap": 5.0},
    "sinks": {"sinks": True},
    "scale": {"scale": 0.3},
    "layout bshd": {"layout": "bshd"},
    "packed keys": {"storage": "packed", "key_lengths": (20, 32)},
    "paged keys": {"storage": "paged", "queries": 1},
}


def features() -> dict[str, Mapping[str, Any]]:
    """The fields of `Workload` that each feature changes in `BASE`, by the name of the feature.

    Each kind of mask that is written as text is one feature; ``random`` stands for any boolean array.
    """
    found = dict(_FEATURES)
    for kind, cls in Part.kinds.items():
        part = None if kind in _SAID_ELSEWHERE else cls.drawn(np.random.default_rng(0), BASE.shape)
        if part is not None:
            found["any boolean mask" if kind == "random" else f"mask {kind}"] = {"mask": part.text}
    return found


def asked(feature: str, device: str, dtype: str = "float32", direction: str = "forward") -> Workload:
    """The small workload of a feature. Raises KeyError for an unknown one, ValueError for an impossible workload."""
    fields = {"value_dim": None, "kv_heads": None, "scale": None, **features()[feature]}
    return BASE.with_(**fields, dtype=dtype, direction=direction, device=device)


@dataclass(frozen=True)
class Support:
    """What one backend supports on one device. unavailable : why nothing could be asked.

    versions : of its libraries. answers : by feature, direction and number format: `YES`, or why not.
    hidden : what a NaN does in a key or a value that the mask hides. largest : the largest score that is right in
    float16.
    """

    backend: str
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)
    unavailable: str | None = None
    answers: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    hidden: str = ""
    largest: str = ""

    @property
    def faults(self) -> int:
        """The number of answers that are faults."""
        directions = (one for feature in self.answers.values() for one in feature.values())
        told = (answer for dtypes in directions for answer in dtypes.values())
        return sum(one.startswith(FAULT) for one in told)


def support(
    name: str,
    device: str = "cpu",
    folders: Sequence[str] = (),
    *,
    only: Sequence[str] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> Support:
    """Ask the backend `name` for every feature, in every direction and number format.

    Each workload that is not declined is run once, and the answer is judged. A backend that compiles for seconds at
    every shape is run only in the forward pass in float32; the rest is believed without a run. only : the features to
    ask for. Raises ValueError for an unknown backend.
    """
    slow, held = compiles_often(name, folders), Held(Contender.parse(name), folders, device)
    answers: dict[str, dict[str, dict[str, str]]] = {}
    try:
        for feature, direction in itertools.product(only or features(), DIRECTIONS):
            on_event(f"{name} on {device}: {feature}, {direction}")
            found = answers.setdefault(feature, {})[direction] = {}
            for dtype in DTYPES:
                run, process = not slow or (direction, dtype) == ("forward", "float32"), held.process
                try:
                    workload = asked(feature, device, dtype, direction)
                    process.ask("confirm", seconds=_SECONDS, workload=workload, run=run)
                    found[dtype] = YES if run else f"{DECLARED}: {slow}"
                except ValueError as nothing:  # an impossible workload
                    found[dtype] = str(nothing)
                except Failed as fault:
                    found[dtype] = str(fault) if fault.kind == "declined" else f"{FAULT}{fault}"
        ways = {"hidden": _hidden, "largest": _largest} if only is None and not slow else {}
        measured = {what: way(partial(_output, held, device)) for what, way in ways.items()}
        return Support(name, device, held.said["versions"], None, answers, **measured)
    except Failed as fault:
        return Support(name, device, unavailable=str(fault))
    finally:
        held.end()


def _output(held: Held, device: str, *arrays: Any, **asked: Any) -> NDArray[Any] | None:
    """The output for these arrays, in float32 unless `asked` has a dtype; None if the backend gives none."""
    plain, packed = pack(Inputs.of(*(np.asarray(one, np.float32) for one in arrays), **asked))
    how: dict[str, Any] = {"device": device, "direction": "forward", "layouts": []}
    try:
        reply = held.process.ask("answer", seconds=_SECONDS, plain=plain, arrays=list(packed), **how)
    except Failed:
        return None
    return np.asarray(reply["results"][OUTPUT])


def _hidden(output: Callable[..., NDArray[Any] | None]) -> str:
    """The worst of `_HIDDEN` that NaN in a masked key or value does, for a padded batch and for a causal mask.

    There are two NaN positions: the first masked key, in the same block of keys as the last visible one; and a key far
    behind it.
    """
    masks: tuple[dict[str, Any], ...] = ({"key_lengths": [70]}, {"causal": "top_left"})
    found = set[str]()
    for what, mask in itertools.product((1, 2), masks):
        arrays = [np.ones((1, 1, keys, 64)) for keys in (70, 140, 140)]
        arrays[2] *= np.arange(140)[:, None]  # the values differ, so that a wrong weight shows
        right = output(*arrays, **mask)
        arrays[what][:, :, [70, 139]] = np.nan
        answer = output(*arrays, **mask)
        if right is not None and answer is not None:
            same = np.isnan(answer) | np.isclose(answer, right, rtol=1e-3)
            found.add(_HIDDEN[1 if np.isnan(answer).any() else 2] if same.all() else _HIDDEN[0])
    return next((one for one in _HIDDEN if one in found), "")


def _largest(output: Callable[..., NDArray[Any] | None]) -> str:
    """The largest power of two that is right as a score in float16, at scale 1, beside a score of 15/16 of it."""
    right = 0
    for power in _POWERS:
        half, first = (power - 6) // 2, np.ones((1, 1, 2, 64)) * [[1.0], [0.0]]
        query, key = np.full(first.shape, 2.0**half), 2.0 ** (power - 6 - half) * (15 + first) / 16
        answer = output(query, key, first, scale=1.0, dtype="float16")
        if answer is None or not np.isclose(answer, 1, atol=0.01).all():
            break
        right = 2**power
    return "" if not right else f"over {right:,}" if power == _POWERS[-1] else f"{right:,}"


@dataclass(frozen=True)
class Listed:
    """A backend: its library if it loads, a summary in one line, and why it cannot run here (None if it can)."""

    name: str
    library: str
    summary: str
    reason: str | None


def listed(
    device: str,
    folders: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    on_event: Callable[[str], None] = lambda text: None,
) -> list[Listed]:
    """Every backend, or each of `names` in that order, and whether it can run a plain workload on `device`.

    They are imported one after the other in one process, because most of them share a library. If that process ends or
    hangs, the backend is tried again in a new one. Raises ValueError for a folder that does not exist.
    """
    found: list[Listed] = []
    variables = Contender("", "").environment(os.environ)
    process = Process(SERVE, environment=variables)
    opening: dict[str, Any] = {"settings": {}, "mask": None, "folders": list(folders), "device": device}
    try:
        for name in list(names) or backends(folders):
            on_event(f"looking at {name}")
            for _ in range(2):
                try:
                    own = [f"{key}={'|'.join(values)}" for key, values in settings_of(name, folders).items()]
                    settings = f" Settings: {', '.join(own)}." if own else ""
                    told = process.ask("load", seconds=_IMPORT_SECONDS, name=name, **opening)
                    one = Listed(name, told["library"], told["summary"] + settings, told["reason"])
                except (Failed, ValueError) as fault:
                    one = Listed(name, "", "", str(fault))
                if process.alive:
                    break
                process = Process(SERVE, environment=variables)
            found.append(one)
    finally:
        process.end()
    return found

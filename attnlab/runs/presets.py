"""Presets: the shapes of known models as workloads, by name, with the source of each number (``presets.toml``).

A preset has parts, one a phase, and one a kind of layer where a model has several. ``llama3-8b`` names all parts of a
preset, ``llama3-8b/decode`` one phase, ``gemma2-9b/decode/local`` one kind of layer; commas join several names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attnlab.plain import suggestion
from attnlab.workload.declaring import split_names
from attnlab.workload.grid import choices, workloads
from attnlab.workload.mask_kinds import OPEN
from attnlab.workload.workload import Workload


@dataclass(frozen=True)
class Part:
    """One phase of a preset, or one kind of layer in it.

    said : values by the names of a plan file. tokens : batch × length, where the batch follows from it.
    """

    preset: str
    name: str
    said: Mapping[str, Any]
    tokens: int | None = None

    @property
    def path(self) -> str:
        """``llama3-8b/decode``."""
        return f"{self.preset}/{self.name}"

    def workloads(self, said: Mapping[str, Any] | None = None) -> tuple[Workload, ...]:
        """Its workloads, small to large, the dtype last; what is `said` beside it, by the same names, goes before it.

        A window of the preset's own that hides nothing at a length is left out there, so that backends without windows
        take part. Raises ValueError as `Workload` does.
        """
        own = {name: value for name, value in (said or {}).items() if value is not None}
        told = {**self.said, **own}
        found: list[Workload] = []
        for dtype in told.get("dtypes", ("float32",)):
            for length in told["lengths"]:
                one = {**told, "dtypes": (dtype,), "lengths": (length,)}
                if self.tokens and "batch" not in own:
                    one["batch"] = max(1, self.tokens // length)
                if "window" in self.said and "window" not in own:
                    one |= _without_idle_window(one)
                found += workloads(one)
        return tuple(found)


@dataclass(frozen=True)
class Preset:
    """A model's shapes. source : where the numbers stand, and what they are called there. note : what differs here."""

    name: str
    title: str
    source: str
    note: str
    parts: tuple[Part, ...]


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, in the order of their file."""
    several = {choice.name for choice in choices(grid=True) if choice.several}

    def value(name: str, given: Any) -> Any:
        """As `workloads` takes it: a list as a tuple, and one value of a plural as one of several."""
        given = tuple(given) if isinstance(given, list) else given
        return (given,) if name in several and not isinstance(given, tuple) else given

    found = {}
    data = tomllib.loads(files("attnlab.runs").joinpath("presets.toml").read_text(encoding="utf-8"))
    for name, table in data.items():
        parts = []
        for part, own in table["parts"].items():
            said = {key: value(key, one) for key, one in {**table.get("shape", {}), **own}.items()}
            parts.append(Part(name, part, said, table.get("tokens")))
        found[name] = Preset(name, table["title"], table["source"], table.get("note", ""), tuple(parts))
    return found


def chosen_parts(text: str) -> tuple[Part, ...]:
    """The parts that names between commas stand for, each once: those of a preset whose paths begin with the name.

    Raises ValueError for an unknown name, naming the near ones.
    """
    known, found = presets(), dict[str, Part]()
    for name in split_names(text):
        preset, _, rest = name.partition("/")
        if preset not in known:
            raise ValueError(f"no preset is called {preset!r}; {suggestion(preset, known)}")
        parts = known[preset].parts
        mine = {one.path: one for one in parts if not rest or f"{one.name}/".startswith(f"{rest}/")}
        if not mine:
            there = ", ".join(one.name for one in parts)
            raise ValueError(f"the preset {preset} has no part {rest!r}; it has {there}")
        found |= mine
    return tuple(found.values())


def preset_workloads(text: str, said: Mapping[str, Any]) -> dict[Workload, str]:
    """The workloads of all parts that `text` names, each once, and the paths of the parts that ask for it.

    said : what goes before the presets, values by the names of a plan file. Raises ValueError as `chosen_parts` and
    `Workload` do.
    """
    found: dict[Workload, list[str]] = {}
    for part in chosen_parts(text):
        for workload in dict.fromkeys(part.workloads(said)):
            found.setdefault(workload, []).append(part.path)
    return {workload: ", ".join(paths) for workload, paths in found.items()}


def only_part(text: str) -> Part:
    """The one part that `text` names. Raises ValueError, naming them, where there are several."""
    found = chosen_parts(text)
    if len(found) > 1:
        paths = ", ".join(part.path for part in found)
        raise ValueError(
            f"--preset {text} stands for {len(found)} parts, and one is taken here: name one of {paths}"
        )
    return found[0]


def only_workload(text: str, said: Mapping[str, Any]) -> tuple[Workload, str]:
    """The workload that `text` names with what is `said` beside it, by the names of one workload's options.

    Of a part with several lengths the middle one; then the text says so, and is else empty. Raises ValueError, naming
    them, where there are several parts.
    """
    part, plural = only_part(text), {choice.fields: choice for choice in choices(grid=True)}
    told = {}
    for choice in choices(grid=False):  # in the words of a grid: length 512 is lengths (512,)
        if said.get(choice.name) is not None:
            other = plural[choice.fields]
            told[other.name] = (said[choice.name],) if other.several else said[choice.name]
    found = part.workloads(told)
    middle = found[(len(found) - 1) // 2]
    if len(found) == 1:
        return middle, ""
    lengths = ", ".join(str(one.keys) for one in found)
    return middle, f"{part.path}: length {middle.keys}, of {lengths}; --length takes another."


def _without_idle_window(said: Mapping[str, Any]) -> dict[str, Any]:
    """What to say instead where the window to the left reaches all keys: it hides nothing there.

    Nor does a causal mask then whose only query stands at the end of the keys.
    """
    left, right = said["window"]
    keys = said.get("keys", said["lengths"][0])
    if left < keys - 1:
        return {}
    causal = said.get("causal", False)
    found: dict[str, Any] = {"window": None if causal else (OPEN, right)}
    if causal == "bottom_right" and said.get("queries") == 1:
        found["causal"] = False
    return found

"""What to measure: contenders, workloads, and how much time each workload may take.

A preset is a set of workloads with the shapes of a known model; ``presets.toml`` gives the source of each number. A
preset has a part for each phase, and for each kind of layer if the model has several. ``llama3-8b`` names all parts of
a preset, ``llama3-8b/decode`` one phase, ``gemma2-9b/decode/local`` one kind of layer. Several names are separated by
commas.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec

from attnlab.backends.contender import parse_all
from attnlab.race.admission import Limits
from attnlab.text import decode, read_text, split_names, suggestion
from attnlab.workload.distributions import SUFFIX
from attnlab.workload.grid import GRID, choices, workloads
from attnlab.workload.mask_kinds import OPEN
from attnlab.workload.workload import Workload


@dataclass(frozen=True)
class Part:
    """One phase of a preset, or one kind of layer in it.

    said : values of options, by the names of a plan file. tokens : batch × length, if the batch follows from the
    length.
    """

    preset: str
    name: str
    said: Mapping[str, Any]
    tokens: int | None = None

    @property
    def path(self) -> str:
        """Its full name, such as ``llama3-8b/decode``."""
        return f"{self.preset}/{self.name}"

    def workloads(self, said: Mapping[str, Any] | None = None) -> tuple[Workload, ...]:
        """Its workloads, small to large, the dtype last. What is in `said`, by the same names, overrides its own
        values.

        If a window of the preset's own hides nothing at a length, it is left out there, so that backends without
        windows take part. Raises ValueError as `Workload` does.
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
    """The shapes of a model. source : where the numbers stand, and their names there. note : what differs here."""

    name: str
    title: str
    source: str
    note: str
    parts: tuple[Part, ...]


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, in the order of their file."""
    several = {choice.name for choice in choices(grid=True) if choice.several}
    found = {}
    data = tomllib.loads(files("attnlab.runs").joinpath("presets.toml").read_text(encoding="utf-8"))
    for name, table in data.items():
        parts = []
        for part, own in table["parts"].items():
            said = {**table.get("shape", {}), **own}
            for key, one in said.items():  # as `workloads` takes it: a plural has a tuple of values
                said[key] = tuple(one) if isinstance(one, list) else (one,) if key in several else one
            parts.append(Part(name, part, said, table.get("tokens")))
        found[name] = Preset(name, table["title"], table["source"], table.get("note", ""), tuple(parts))
    return found


def chosen_parts(text: str) -> tuple[Part, ...]:
    """The parts that the names in `text` select, each part once. A name selects the parts whose paths begin with it.

    Raises ValueError for an unknown name, with similar names.
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


def only_workload(text: str, said: Mapping[str, Any]) -> tuple[Workload, str]:
    """The workload that `text` names, with the values in `said`, by the names of one workload's options; and a remark.

    If the part has several lengths, the middle one is taken and the remark says so; else the remark is empty. Raises
    ValueError if there are several parts, and names them.
    """
    parts, plural = chosen_parts(text), {choice.fields: choice for choice in choices(grid=True)}
    if len(parts) > 1:
        paths = ", ".join(part.path for part in parts)
        raise ValueError(f"--preset {text} stands for {len(parts)} parts: name one of {paths}")
    told = {}
    for choice in choices(grid=False):  # as options of a grid: length 512 becomes lengths (512,)
        if said.get(choice.name) is not None:
            other = plural[choice.fields]
            told[other.name] = (said[choice.name],) if other.several else said[choice.name]
    (part,) = parts
    found = part.workloads(told)
    middle = found[(len(found) - 1) // 2]
    lengths = ", ".join(str(one.keys) for one in found)
    taken = f"{part.path}: length {middle.keys}, of {lengths}; --length takes another."
    return middle, taken if len(found) > 1 else ""


def _without_idle_window(said: Mapping[str, Any]) -> dict[str, Any]:
    """The values to replace if the window reaches all keys to the left: then it hides nothing there.

    A bottom-right causal mask then hides nothing either if there is one query, because that stands at the last key.
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


#: names every backend, including those that race only if they are named
EVERYBODY = "all"
#: most bytes of a plan file; a workload that is listed has about a hundred
_MOST_BYTES = 2**23
#: most workloads of one plan: at least about ten hours of races
_MOST_WORKLOADS = 20_000
#: fields of `Plan` that have another name in a plan file
_FILE_NAMES = {"contenders": "backends", "folders": "implementations"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Contenders x workloads. Empty `contenders` stands for all backends but those that race only if they are named.

    workloads : what every contender computes; `Plan.grid` makes them.
    origins : for each workload, the parts of presets that ask for it, by `Part.path`; empty without a preset.
    contenders : in contender notation, ``torch_sdpa[threads=1]``; ``all`` alone for every backend.
    baseline : the contender that the others are compared with; by default the first that is named, or torch_eager.
    folders : folders with users' backends.
    control : enter the baseline a second time; any difference between the two is noise (an A/A control).
    memory, ceilings : measure peak memory; measure the machine's limits.
    afresh : measure the machine's limits again even if they are stored.
    experiments : names for the numerical chapter; ``all`` or ``none``. The command line runs and checks them.
    limits : when to stop measuring, in seconds.

    Raises ValueError for an empty plan and for broken contender notation.
    """

    workloads: tuple[Workload, ...]
    origins: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    baseline: str | None = None
    folders: tuple[str, ...] = ()
    control: bool = True
    memory: bool = True
    ceilings: bool = True
    afresh: bool = False
    experiments: tuple[str, ...] = ("variance_scaling", "saturation")
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.workloads:
            raise ValueError("a plan needs at least one workload, got none")
        _require_few(len(self.workloads))
        wanted, got = len(self.workloads), len(self.origins)
        if got not in (0, wanted):
            raise ValueError(f"origins must be {wanted}, one a workload, got {got}")
        if self.contenders and self.contenders != (EVERYBODY,):
            names = [one.name for one in parse_all(self.contenders)]
            if self.baseline is not None and self.baseline not in names:
                raise ValueError(f"the baseline must be one of {', '.join(names)}, got {self.baseline!r}")

    @classmethod
    def grid(
        cls,
        *,
        preset: str | None = None,
        lengths: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        dtypes: Sequence[str] | None = None,
        **rest: Any,
    ) -> Plan:
        """The plan over all lengths x heads x dtypes, small to large; with `preset`, over the workloads of presets.

        `lengths` are queries and keys. `lengths` and `heads` default to those of `GRID`; `dtypes` to float32 on the
        CPU, float32 and bfloat16 on CUDA. If `distribution` is a file of inputs, all three default to those of the
        file. `rest` are fields of `Workload`, the same for all of them (``queries=1`` for decoding), and fields of
        `Plan`. `preset` is written as in `attnlab.runs.plan`; other arguments override its values.
        """
        said: dict[str, Any] = {"lengths": lengths, "heads": heads, "dtypes": dtypes}
        said |= {one.name: rest.pop(one.name) for one in choices(grid=True) if one.name in rest}
        said = {name: value for name, value in said.items() if value is not None}
        for one in (each for each in choices(grid=True) if each.several and each.name in said):
            if isinstance(said[one.name], str) or not isinstance(said[one.name], Sequence):
                raise ValueError(f"{one.name} must be several values, as (64, 128), got {said[one.name]!r}")
        from_file = SUFFIX in str(said.get("distribution", ""))
        if not from_file:
            on_gpu = said.get("device") == "cuda"
            said = {"dtypes": ("float32", "bfloat16") if on_gpu else ("float32",), **said}
        if preset is None and not from_file:
            said = {**GRID, **said}
        _require_few(math.prod(len(said.get(one.name, "1")) for one in choices(grid=True) if one.several))
        if preset is None:
            return cls(workloads=workloads(said), **rest)
        found: dict[Workload, list[str]] = {}  # each once, with the parts that ask for it
        for part in chosen_parts(preset):
            for workload in dict.fromkeys(part.workloads(said)):
                found.setdefault(workload, []).append(part.path)
        return cls(workloads=tuple(found), origins=tuple(map(", ".join, found.values())), **rest)

    def shard(self, text: str) -> Plan:
        """Part ``N/COUNT`` (from 1): every COUNT-th workload, so that all parts take about the same time.

        Raises ValueError for a part that does not exist or has no workload.
        """
        number, count = (int(one) if one.isdecimal() else 0 for one in text.partition("/")[::2])
        if not 1 <= number <= count <= len(self.workloads):
            raise ValueError(f"a shard must be N/COUNT, COUNT at most {len(self.workloads)}, got {text!r}")
        part = slice(number - 1, None, count)
        return replace(self, workloads=self.workloads[part], origins=self.origins[part])


def _require_few(count: int) -> None:
    """Raises ValueError for more workloads than a plan may have."""
    if count > _MOST_WORKLOADS:
        raise ValueError(f"a plan has at most {_MOST_WORKLOADS:,} workloads, got {count:,}: make several")


def read_plan(file: Path) -> dict[str, Any]:
    """The arguments of `Plan.grid` that a TOML file holds.

    Raises ValueError for a missing or unreadable file, an unknown key or a value of the wrong type.
    """
    try:
        data = tomllib.loads(read_text(file, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise ValueError(f"the plan file {file} cannot be read: {why}") from None
    found: Any = decode(data, _plan_file(), str(file))
    given = {name: getattr(found, name) for name in data}
    for field_name, name in _FILE_NAMES.items():
        if name in given:
            given[field_name] = given.pop(name)
    if "folders" in given:  # a path in a file is relative to the file
        given["folders"] = tuple(str(file.parent / folder) for folder in given["folders"])
    return given


def _plan_file() -> type:
    """A dataclass of what a plan file may hold: the options of workloads and the fields of a plan."""
    kinds = {"preset": str} | {choice.name: choice.kind for choice in choices(grid=True)}
    for name, kind in get_type_hints(Plan).items():
        if get_origin(kind) is tuple:
            kind = Annotated[kind, msgspec.Meta(min_length=1)]
        if name not in ("workloads", "origins"):
            kinds[_FILE_NAMES.get(name, name)] = kind
    return make_dataclass("plan", [(name, kind, None) for name, kind in kinds.items()])

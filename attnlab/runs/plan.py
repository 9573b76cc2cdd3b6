"""What to measure: contenders, workloads, and how much time each workload may take."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec

from attnlab.backends.contender import parse_all
from attnlab.lab import CHAPTER, chosen_experiments
from attnlab.plain import decode
from attnlab.race.limits import UTMOST, Limits
from attnlab.runs.presets import preset_workloads
from attnlab.text import read_text
from attnlab.workload.captured import is_captured
from attnlab.workload.declaring import MOST
from attnlab.workload.grid import GRID, choices, workloads
from attnlab.workload.workload import Workload

#: stands for every backend, those that race only where they are named included
EVERYBODY = "all"
#: of a plan file: a sweep lists its workloads one by one, some hundred bytes each
_MOST_BYTES = 2**23
#: of one plan: some ten hours of races at least
_MOST_WORKLOADS = 20_000
#: what a plan file calls the fields of `Plan` that have another name there
_FILE_NAMES = {"contenders": "backends", "folders": "implementations"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Contenders x workloads. Empty `contenders` stands for all backends that are available and do not ask to be named.

    ``all`` alone stands for those too.

    workloads : what every contender is asked; `Plan.grid` makes them.
    origins : the parts of presets that ask for each workload, by `Part.path`; empty where no preset was asked for.
    contenders : in contender notation, ``torch_sdpa[threads=1]``.
    baseline : the contender that the others are compared with; by default the first that is named, and
    torch_eager where nobody is.
    folders : hold users' backends.
    self_test : enter the baseline twice.
    memory, ceilings : measure peak memory; and the machine's limits, which the share of the ceiling is told against.
    afresh : measure the machine's limits, and ask for the same bits, also where they are remembered.
    experiments : those of the numerical chapter; ``all`` and ``none`` stand for every one and no one.
    limits : when to stop measuring, in seconds.

    Raises ValueError for an empty plan, broken contender notation or an unknown experiment.
    """

    workloads: tuple[Workload, ...]
    origins: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    baseline: str | None = None
    folders: tuple[str, ...] = ()
    self_test: bool = True
    memory: bool = True
    ceilings: bool = True
    afresh: bool = False
    experiments: tuple[str, ...] = CHAPTER
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.workloads:
            raise ValueError("a plan needs at least one workload, got none")
        _require_few(len(self.workloads))
        if self.origins and len(self.origins) != len(self.workloads):
            raise ValueError(
                f"origins must be one a workload, {len(self.workloads)}, or none, got {len(self.origins)}"
            )
        object.__setattr__(self, "experiments", chosen_experiments(self.experiments))
        if self.contenders and self.contenders != (EVERYBODY,):
            names = [one.name for one in parse_all(self.contenders)]
            if self.baseline is not None and self.baseline not in names:
                raise ValueError(
                    f"the baseline must be one of the contenders {', '.join(names)}, got {self.baseline!r}"
                )

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
        """The plan over all lengths x heads x dtypes, small to large; with `preset` over the workloads of presets.

        `lengths` are queries and keys, by default those of `GRID`, as are `heads`; `dtypes` defaults to float32 on the
        CPU, float32 and bfloat16 on CUDA; all three are what the file says where `distribution` is a file of inputs.
        `rest` are fields of `Workload`, the same for all of them (``queries=1`` for decoding), and fields of `Plan`.
        `preset` is written as in `attnlab.runs.presets`; what is said beside it goes before what it says. A plan
        that lists its `workloads`, as plain data or as they are, has no grid beside.
        """
        said: dict[str, Any] = {"lengths": lengths, "heads": heads, "dtypes": dtypes}
        said |= {one.name: rest.pop(one.name) for one in choices(grid=True) if one.name in rest}
        said = {name: value for name, value in said.items() if value is not None}
        if "workloads" in rest:
            beside = [*said, *(["preset"] if preset else [])]
            if beside:
                raise ValueError(f"a plan that lists its workloads takes no {beside[0]} beside them")
            _require_few(len(rest["workloads"]))
            listed = [
                one if isinstance(one, Workload) else Workload.from_dict(one) for one in rest.pop("workloads")
            ]
            return cls(workloads=tuple(listed), **rest)
        of_file = is_captured(str(said.get("distribution", "")))
        if not of_file:
            on_gpu = said.get("device") == "cuda"
            said = {"dtypes": ("float32", "bfloat16") if on_gpu else ("float32",), **said}
        if preset is None and not of_file:
            said = {**GRID, **said}
        _require_few(math.prod(len(said.get(one.name, "1")) for one in choices(grid=True) if one.several))
        if preset is None:
            return cls(workloads=workloads(said), **rest)
        found = preset_workloads(preset, said)
        return cls(workloads=tuple(found), origins=tuple(found.values()), **rest)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`. Raises ValueError for what is no plan."""
        stored = tuple(map(Workload.from_dict, data.get("workloads", ())))  # which knows former names
        return decode({**data, "workloads": stored}, cls, "the plan")


def _require_few(workloads: int) -> None:
    """Raises ValueError for more workloads than a plan may have."""
    if workloads > _MOST_WORKLOADS:
        raise ValueError(
            f"a plan has at most {_MOST_WORKLOADS:,} workloads, got {workloads:,}: make several plans, each a run"
        )


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
    if "limits" in given:
        given["limits"] = Limits(**{name: getattr(found.limits, name) for name in data["limits"]})
    for field_name, name in _FILE_NAMES.items():
        if name in given:
            given[field_name] = given.pop(name)
    if "folders" in given:  # a path in a file is meant from where the file lies
        given["folders"] = tuple(str(file.parent / folder) for folder in given["folders"])
    return given


def plan_text(plan: Plan) -> str:
    """TOML that `attnlab run --plan` reads as this very plan, its workloads listed one by one.

    Folders of backends are written as absolute paths, so that the file may lie anywhere.
    """
    whole = {
        "backends": plan.contenders,
        "baseline": plan.baseline,
        "implementations": [str(Path(one).resolve()) for one in plan.folders],
        **{name: getattr(plan, name) for name in ("self_test", "memory", "ceilings", "afresh")},
        "experiments": plan.experiments or ("none",),
        "origins": plan.origins,
    }
    defaults = {one.name: one.default for one in dataclasses.fields(Workload)}
    tables: list[tuple[str, dict[str, Any]]] = [("", whole), ("[limits]", vars(plan.limits))]
    for workload in plan.workloads:
        told = {name: getattr(workload, name) for name in defaults}
        tables.append(("[[workloads]]", {name: one for name, one in told.items() if one != defaults[name]}))
    lines = []
    for head, table in tables:
        lines += [
            head,
            *(f"{name} = {_toml(one)}" for name, one in table.items() if one not in (None, (), [])),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML: numbers and lists are as in JSON, and a text is with its letters as they are."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _plan_file() -> type:
    """What a plan file may hold: what may be said of workloads, and the fields of a plan and of its limits."""
    positive = {
        name: Annotated[kind, msgspec.Meta(gt=0, le=UTMOST.get(name, MOST))]
        for name, kind in get_type_hints(Limits).items()
    }
    limits = make_dataclass("limits", [(name, kind, None) for name, kind in positive.items()])
    kinds = {"preset": str} | {choice.name: choice.kind for choice in choices(grid=True)}
    kinds["workloads"] = Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]
    for name, kind in get_type_hints(Plan).items():
        if get_origin(kind) is tuple:
            kind = Annotated[kind, msgspec.Meta(min_length=1)]
        if name != "workloads":
            kinds[_FILE_NAMES.get(name, name)] = limits if name == "limits" else kind
    return make_dataclass("plan", [(name, kind, None) for name, kind in kinds.items()])

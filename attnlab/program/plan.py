"""What to measure: contenders, workloads, and how much time each workload may take."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

from attnlab.contract.workload import Workload
from attnlab.measuring.contender import parse_all
from attnlab.measuring.limits import Limits
from attnlab.numerics.catalogue import CHAPTER, chosen_experiments

DEFAULT_LENGTHS = (64, 128, 256, 512, 1024, 2048)
DEFAULT_HEADS = (1, 4, 16)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Contenders x workloads. Empty `contenders` stands for all backends that are available.

    `baseline` is the contender that the others are compared with; by default torch_eager where it takes part,
    otherwise the first. With `self_test` the baseline is entered twice. `folders` hold users' backends.
    `experiments` are those of the numerical chapter; ``all`` and ``none`` stand for every one and no one.
    Raises ValueError for an empty plan, broken contender notation or an unknown experiment.
    """

    workloads: tuple[Workload, ...]
    contenders: tuple[str, ...] = ()
    baseline: str | None = None
    folders: tuple[str, ...] = ()
    self_test: bool = True
    memory: bool = True
    ceilings: bool = True
    experiments: tuple[str, ...] = CHAPTER
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.workloads:
            raise ValueError("a plan needs at least one workload, got none")
        object.__setattr__(self, "experiments", chosen_experiments(self.experiments))
        if self.contenders:
            names = [one.name for one in parse_all(self.contenders)]
            if self.baseline is not None and self.baseline not in names:
                raise ValueError(
                    f"the baseline must be one of the contenders {', '.join(names)}, got {self.baseline!r}"
                )

    @classmethod
    def grid(
        cls,
        *,
        lengths: Sequence[int] = DEFAULT_LENGTHS,
        heads: Sequence[int] = DEFAULT_HEADS,
        dtypes: Sequence[str] | None = None,
        device: str = "cpu",
        batch: int = 1,
        head_dim: int = 64,
        causal: bool = False,
        **rest: Any,
    ) -> Plan:
        """The plan over all lengths x heads x dtypes, small to large.

        `dtypes` defaults to float32 on the CPU, float32 and bfloat16 on CUDA. `rest` are fields of `Plan`.
        """
        if dtypes is None:
            dtypes = ("float32", "bfloat16") if device == "cuda" else ("float32",)
        workloads = tuple(
            Workload(
                batch=batch,
                heads=count,
                queries=length,
                keys=length,
                head_dim=head_dim,
                dtype=dtype,
                device=device,
                causal=causal,
            )
            for dtype, length, count in product(dtypes, lengths, heads)
        )
        return cls(workloads=workloads, **rest)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**asdict(self), "workloads": [workload.to_dict() for workload in self.workloads]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`."""
        plain = dict(data)
        plain["workloads"] = tuple(map(Workload.from_dict, plain["workloads"]))
        plain["limits"] = Limits(**plain["limits"])
        for name in ("contenders", "folders", "experiments"):
            plain[name] = tuple(plain[name])
        return cls(**plain)


#: what a plan file may hold, with the type of each value
_GRID_KEYS: dict[str, type | tuple[type, type]] = {
    "lengths": (list, int),
    "heads": (list, int),
    "dtypes": (list, str),
    "device": str,
    "batch": int,
    "head_dim": int,
    "causal": bool,
}
_PLAN_KEYS: dict[str, type | tuple[type, type]] = {
    "backends": (list, str),
    "baseline": str,
    "implementations": (list, str),
    "self_test": bool,
    "memory": bool,
    "ceilings": bool,
    "experiments": (list, str),
    "limits": dict,
}


def read_plan(file: Path) -> dict[str, Any]:
    """The arguments of `Plan.grid` that a TOML file holds.

    Raises ValueError for a missing or unreadable file, an unknown key or a value of the wrong type.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ValueError(f"the plan file {file} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the plan file {file} cannot be read: it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as fault:
        raise ValueError(f"the plan file {file} is not valid TOML: {fault}") from None
    known = {**_GRID_KEYS, **_PLAN_KEYS}
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{file}: unknown key {key!r}; known: {', '.join(sorted(known))}")
        _check_type(f"{file}: {key}", value, known[key])
    if "limits" in data:
        data["limits"] = _limits(file, data["limits"])
    if "backends" in data:
        data["contenders"] = tuple(data.pop("backends"))
    if "experiments" in data:
        data["experiments"] = tuple(data["experiments"])
    if "implementations" in data:
        # a path in a file is meant from where the file lies
        data["folders"] = tuple(str(file.parent / folder) for folder in data.pop("implementations"))
    return data


def _limits(file: Path, data: dict[str, Any]) -> Limits:
    known = {one.name: one.type for one in fields(Limits)}
    for key, value in data.items():
        if key not in known:
            raise ValueError(f"{file}: unknown limit {key!r}; known: {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{file}: limits.{key} must be a positive number, got {value!r}")
        if known[key] == "int" and not isinstance(value, int):
            raise ValueError(f"{file}: limits.{key} must be a whole number, got {value!r}")
    return Limits(**data)


def _check_type(where: str, value: Any, kind: type | tuple[type, type]) -> None:
    outer, inner = kind if isinstance(kind, tuple) else (kind, None)
    right = isinstance(value, outer) and (outer is bool or not isinstance(value, bool))
    if right and inner is not None:
        right = bool(value) and all(isinstance(one, inner) and not isinstance(one, bool) for one in value)
    if not right:
        wanted = f"a list of {inner.__name__}, not empty" if inner else f"of type {outer.__name__}"
        raise ValueError(f"{where} must be {wanted}, got {value!r}")

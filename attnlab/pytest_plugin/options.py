"""What the command line of pytest asks for: contenders, a grid of workloads, a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from attnlab.backend.contender import Contender
from attnlab.problem.fields import split_names
from attnlab.problem.grid import by_option, choices, read_options, workloads
from attnlab.problem.vocabulary import DTYPES
from attnlab.problem.workload import Workload
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan
from attnlab.runs.presets import Part, only_part

#: small enough that all suites end within about a minute on two cores
_DEFAULTS = {"lengths": "64,256", "heads": "4", "dtypes": "float32"}


@dataclass(frozen=True)
class Settings:
    """The options, checked. `said` is what they say of workloads, by `Choice.name`.

    contenders : by name, in the order they were given. formats : the number formats in which accuracy is judged, all
    unless the user chose. part : that of a preset, where one is named.
    """

    contenders: Mapping[str, Contender]
    baseline: str
    folders: tuple[str, ...]
    said: Mapping[str, Any]
    formats: Sequence[str]
    ceilings: bool
    part: Part | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """The contenders' backends, each once."""
        return tuple(dict.fromkeys(one.backend for one in self.contenders.values()))

    def workload(self, **axes: int | str) -> Workload:
        """The first workload of the options' grid, or the one at `lengths`, `heads` and `dtypes`."""
        said = {**self.said, **{name: (value,) for name, value in axes.items()}}
        return (self.part.workloads(said) if self.part else workloads(said))[0]

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """The settings of this session. Raises ValueError for a user's mistake."""
        option = config.getoption
        given = {choice.name: option(choice.option) for choice in choices(grid=True)}
        said = read_options({**given, **_after_bare(config)}, grid=True)
        preset, names = option("--preset"), option("--backends")
        part = None if preset is None else only_part(preset)
        if part is not None:  # of the others the part knows itself
            said = {name: part.said[name] for name in _DEFAULTS if name in part.said} | said
        defaults = {name: text for name, text in _DEFAULTS.items() if name not in said}
        said |= read_options(defaults, grid=True)
        try:
            plan, contenders = resolve(
                Plan.grid(
                    preset=preset,
                    contenders=() if names is None else tuple(split_names(names)),
                    baseline=option("--baseline"),
                    folders=tuple(option("--implementations")),
                    self_test=False,
                    **said,
                )
            )
        except ValueError as fault:
            raise by_option(fault, said, grid=True) from None
        known = {contender.name: contender for contender in contenders}
        if plan.baseline not in known:
            raise ValueError(
                f"--baseline must be one of the contenders {', '.join(known)}, got {plan.baseline!r}"
            )
        formats = DTYPES if "dtypes" in defaults else said["dtypes"]
        ceilings = not option("--no-ceilings")
        return cls(known, plan.baseline, plan.folders, said, formats, ceilings, part)


def _after_bare(config: pytest.Config) -> dict[str, str]:
    """ "true" for options that stand bare before a path, which pytest took for their value: it is a path again."""
    found = {}
    for choice in choices(grid=True):
        value = config.getoption(choice.option)
        if not choice.bare or value is None or choice.is_value(value):
            continue
        place = config.invocation_params.dir / value.partition("::")[0]
        if place.exists() or config.getoption("--pyargs"):
            found[choice.name] = "true"
            if config.args_source is not pytest.Config.ArgsSource.ARGS:
                config.args.clear()
                config.args_source = pytest.Config.ArgsSource.ARGS
            config.args.append(value)
    return found


def add_options(parser: pytest.Parser) -> None:
    """Register the options. Everything is read as text, so that `Settings.of` words every complaint."""
    # argparse takes a word that begins with a dash for an option
    group = parser.getgroup("attnlab", "attention; a value that begins with a dash as in --window=-1,0")
    group.addoption(
        "--backends",
        metavar="LIST",
        help="contenders separated by commas, as in torch_sdpa,numpy_vectorized[threads=1]; default: all",
    )
    group.addoption(
        "--preset",
        metavar="NAME/PHASE",
        help="the shapes of a known model, one part of a preset as `attnlab plans` lists them: llama3-8b/decode",
    )
    for choice in choices(grid=True):
        bare: dict[str, Any] = {"nargs": "?", "const": "true"} if choice.bare else {}
        said = choice.help(_DEFAULTS.get(choice.name, "")).replace("%", "%%")
        group.addoption(choice.option, metavar=choice.metavar.strip("[]"), help=said, **bare)
    group.addoption(
        "--implementations",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with backends of your own; may be given several times",
    )
    group.addoption(
        "--baseline", metavar="CONTENDER", help="what ratios are taken to (torch_eager, or else the first)"
    )
    group.addoption(
        "--no-ceilings", action="store_true", help="leave out matrix-product rate and copy bandwidth"
    )

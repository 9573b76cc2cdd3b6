"""What the command line of pytest asks for: contenders, a grid of workloads, a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from attnlab.commands.options import split_names, split_sizes
from attnlab.contract.dtypes import DTYPES
from attnlab.contract.workload import Workload
from attnlab.measuring.contender import Contender
from attnlab.program.execute import resolve
from attnlab.program.plan import Plan

#: small enough that all suites end within about a minute on two cores
_LENGTHS, _HEADS, _DTYPES = "64,256", "4", "float32"


@dataclass(frozen=True)
class Settings:
    """The options, checked. `dtypes_given` tells a user's own choice of `dtypes` from the default."""

    contenders: tuple[Contender, ...]
    baseline: str
    folders: tuple[str, ...]
    lengths: tuple[int, ...]
    heads: tuple[int, ...]
    dtypes: tuple[str, ...]
    dtypes_given: bool
    head_dim: int
    batch: int
    device: str
    causal: bool
    ceilings: bool

    @property
    def names(self) -> tuple[str, ...]:
        """What the contenders are called, in the order they were given."""
        return tuple(contender.name for contender in self.contenders)

    @property
    def backends(self) -> tuple[str, ...]:
        """The contenders' backends, each once."""
        return tuple(dict.fromkeys(contender.backend for contender in self.contenders))

    @property
    def formats(self) -> tuple[str, ...]:
        """The number formats in which accuracy is judged: all, unless the user chose."""
        return self.dtypes if self.dtypes_given else DTYPES

    def contender(self, name: str) -> Contender:
        """The contender of that name."""
        return next(one for one in self.contenders if one.name == name)

    def workload(self, length: int, heads: int, dtype: str) -> Workload:
        """Self-attention over `length` positions, and what the options say for all workloads."""
        return Workload(
            batch=self.batch,
            heads=heads,
            queries=length,
            keys=length,
            head_dim=self.head_dim,
            dtype=dtype,
            device=self.device,
            causal=self.causal,
        )

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """The settings of this session. Raises pytest.UsageError, in one line, for a user's mistake."""
        try:
            return cls._read(config)
        except ValueError as fault:
            raise pytest.UsageError(" ".join(str(fault).split())) from None

    @classmethod
    def _read(cls, config: pytest.Config) -> Settings:
        option = config.getoption
        lengths, heads = (_several(name, option(name)) for name in ("--lengths", "--heads"))
        head_dim, batch = (_one(name, option(name)) for name in ("--head-dim", "--batch"))
        dtypes = tuple(
            dict.fromkeys(split_names(_DTYPES if option("--dtypes") is None else option("--dtypes")))
        )
        names = option("--backends")
        plan, contenders = resolve(
            Plan.grid(
                lengths=lengths,
                heads=heads,
                dtypes=dtypes,
                device=option("--device"),
                batch=batch,
                head_dim=head_dim,
                contenders=() if names is None else tuple(split_names(names)),
                baseline=option("--baseline"),
                folders=tuple(option("--implementations")),
                self_test=False,
            )
        )
        known = [contender.name for contender in contenders]
        assert plan.baseline is not None
        if plan.baseline not in known:
            raise ValueError(
                f"--baseline must be one of the contenders {', '.join(known)}, got {plan.baseline!r}"
            )
        return cls(
            contenders=contenders,
            baseline=plan.baseline,
            folders=plan.folders,
            lengths=lengths,
            heads=heads,
            dtypes=dtypes,
            dtypes_given=option("--dtypes") is not None,
            head_dim=head_dim,
            batch=batch,
            device=option("--device"),
            causal=option("--causal"),
            ceilings=not option("--no-ceilings"),
        )


def add_options(parser: pytest.Parser) -> None:
    """Register the options. Everything is read as text, so that `Settings.of` words every complaint."""
    group = parser.getgroup("attnlab", "attention")
    group.addoption(
        "--backends",
        metavar="LIST",
        help="contenders separated by commas, as in torch_sdpa,numpy_vectorized[threads=1]; default: all",
    )
    group.addoption("--lengths", metavar="LIST", default=_LENGTHS, help="queries and keys (%(default)s)")
    group.addoption("--heads", metavar="LIST", default=_HEADS, help="head counts (%(default)s)")
    group.addoption("--head-dim", metavar="N", default="64", help="size of a head (%(default)s)")
    group.addoption("--batch", metavar="N", default="1", help="batch size (%(default)s)")
    group.addoption(
        "--dtypes",
        metavar="LIST",
        help=f"number formats ({_DTYPES}; the accuracy suite takes all by default)",
    )
    group.addoption("--device", metavar="DEVICE", default="cpu", help="cpu or cuda (%(default)s)")
    group.addoption("--causal", action="store_true", help="query i sees keys 0 to i only")
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


def _several(option: str, text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(split_sizes(option, text)))


def _one(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{option} takes one whole number of at least 1, got {text!r}")
    return int(text)

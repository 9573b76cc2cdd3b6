"""What the command line of pytest asks for: contenders, a grid of workloads, a baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from attnlab.ground.workload import Workload
from attnlab.measuring.contender import Contender
from attnlab.plan import Plan
from attnlab.running import resolve

#: small enough that all suites end within about a minute on two cores
_LENGTHS, _HEADS, _DTYPES = "128,512", "4", "float32"
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[\]]*\])")


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
        lengths = _numbers("--lengths", option("--lengths"))
        heads = _numbers("--heads", option("--heads"))
        dtypes = tuple(_words("--dtypes", option("--dtypes") or _DTYPES))
        (head_dim,) = _numbers("--head-dim", option("--head-dim"), most=1)
        (batch,) = _numbers("--batch", option("--batch"), most=1)
        names = option("--backends")
        plan, contenders = resolve(
            Plan.grid(
                lengths=lengths,
                heads=heads,
                dtypes=dtypes,
                device=option("--device"),
                batch=batch,
                head_dim=head_dim,
                contenders=() if names is None else tuple(split_contenders(names)),
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


def split_contenders(text: str) -> list[str]:
    """The contenders in a list separated by commas; a comma inside brackets belongs to a contender.

    Raises ValueError for an empty entry.
    """
    names = [name.strip() for name in _OUTSIDE_BRACKETS.split(text)]
    if not all(names):
        raise ValueError(f"--backends must be contenders separated by commas, got {text!r}")
    return names


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
        "--dtypes", metavar="LIST", help=f"number formats ({_DTYPES}; the accuracy suite takes all by default)"
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


def _words(option: str, text: str) -> Sequence[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise ValueError(f"{option} must be names separated by commas, got {text!r}")
    return list(dict.fromkeys(words))


def _numbers(option: str, text: str, *, most: int | None = None) -> tuple[int, ...]:
    wanted = "one whole number" if most == 1 else "whole numbers separated by commas, each"
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) >= 1 for word in words) or (
        most is not None and len(words) > most
    ):
        raise ValueError(f"{option} must be {wanted} of at least 1, got {text!r}")
    return tuple(dict.fromkeys(map(int, words)))

"""The backends an experiment measures through: opened once, those that cannot be asked named with the reason,
and one that answers with an error made a failed row instead of the end of the experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec

import numpy as np

from attnlab.contract.errors import Declined, Unavailable
from attnlab.numerics.black_box import Attend, black_box
from attnlab.numerics.finding import Row
from attnlab.numerics.pace import is_slow

Facts = dict[str, str | float]
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Contestant:
    """One backend, ready to be asked. `slow` where only small sizes are affordable."""

    name: str
    attend: Attend
    slow: bool


def contestants(
    backends: Sequence[str],
    facts: Facts,
    *,
    dtype: str = "float64",
    folders: Sequence[Path | str] = (),
) -> list[Contestant]:
    """Those of `backends` that can compute in `dtype` here; why the others cannot goes into `facts`.

    Raises ValueError for an unknown name.
    """
    opened = []
    for name in backends:
        try:
            attend = black_box(name, dtype=dtype, folders=folders)
            opened.append(Contestant(name, attend, _slow(attend)))
        except (Declined, Unavailable) as reason:
            facts[f"without {name}"] = str(reason)
    facts["backends"] = ", ".join(one.name for one in opened) or "none"
    return opened


def _slow(attend: Attend) -> bool:
    try:
        return is_slow(attend)
    except (Declined, Unavailable):
        raise
    except Exception:  # other people's code: what it does wrong is found and shown where it is measured
        return True


def thermometer(opened: Sequence[Contestant]) -> Contestant | None:
    """The backend to measure with where one is enough: PyTorch's fused attention, else the first that is not slow."""
    fast = [one for one in opened if not one.slow]
    return next((one for one in fast if one.name == "torch_sdpa"), fast[0] if fast else None)


def rows_or_failure(
    one: Contestant,
    measure: Callable[Concatenate[Contestant, Arguments], Iterable[Row]],
    *arguments: Arguments.args,
    **options: Arguments.kwargs,
) -> list[Row]:
    """The rows of `measure` through `one`, or one failed row that says what the backend did wrong."""
    try:
        return list(measure(one, *arguments, **options))
    except Exception as fault:  # a backend is other people's code and may raise anything
        reason = f"{type(fault).__name__}: {fault}"
        return [Row("answered", {"backend": one.name, "reason": reason}, 1.0, 0.0, 0.0, passed=False)]


def agreement(rows: Sequence[Row], prediction: str) -> str:
    """The last sentence of a conclusion, without the stop: whether all `rows` meet `prediction`, or who does not."""
    failed = [row for row in rows if not row.passed]
    if not failed:
        return f"All {len(rows)} comparisons meet {prediction}"
    names = sorted({str(row.where.get("backend", row.quantity)) for row in failed})
    return f"{len(failed)} of {len(rows)} comparisons miss {prediction} ({', '.join(names)})"


def generator(seed: int, *stream: int) -> np.random.Generator:
    """A random stream of its own for every part of an experiment, so that parts do not move each other.

    Raises ValueError for a seed that is not a whole number of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return np.random.default_rng([seed, *stream])

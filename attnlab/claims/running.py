"""From claims to a ledger: every experiment run once, its checks kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.claims.catalogue import chosen
from attnlab.claims.claim import Claim
from attnlab.claims.laboratory import Laboratory, Unmeasured
from attnlab.claims.ledger import Entry, Ledger
from attnlab.numerics.contestants import Facts, contestants, generator
from attnlab.numerics.threads import one_thread

NO_EXPERIMENT = "no measurement can settle it"


def run_claims(
    ids: Iterable[str] = (),
    *,
    seed: int = 0,
    backends: Sequence[str] | None = None,
    folders: Sequence[Path | str] = (),
    parts: Mapping[str, Any] | None = None,
    on_event: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Measure the claims called `ids`, all where none is named, and return the ledger.

    backends : names to measure through, all that are found where None. folders : where to look for more of them.
    parts : ingredients of experiments to replace by name, see `attnlab.claims.laboratory`.

    Every library computes with one thread meanwhile. Raises ValueError for an unknown id or backend or a bad seed.
    """
    from attnlab.contract.discovery import backends as all_backends

    generator(seed)
    wanted = chosen(ids)
    facts: Facts = {"seed": seed}
    start = time.perf_counter()
    with one_thread():
        names = all_backends(folders) if backends is None else backends
        # each call computes in the number format of its own arrays; the trial is in double precision
        opened = tuple(contestants(names, facts, folders=folders, dtype="float64"))
        laboratory = Laboratory(_in_their_own_format(opened, folders), seed, parts=parts or {})
        entries = []
        for claim in wanted:
            on_event(claim.id)
            entries.append(_measured(claim, laboratory))
    facts["seconds"] = round(time.perf_counter() - start, 2)
    return Ledger(tuple(entries), facts)


def _in_their_own_format(opened: Sequence[Any], folders: Sequence[Path | str]) -> tuple[Any, ...]:
    from dataclasses import replace

    from attnlab.numerics.black_box import black_box

    return tuple(replace(one, attend=black_box(one.name, folders=folders)) for one in opened)


def _measured(claim: Claim, laboratory: Laboratory) -> Entry:
    if claim.measure is None:
        return Entry.of(claim, (), NO_EXPERIMENT)
    start = time.perf_counter()
    checks: Sequence[Any] = ()
    note = ""
    try:
        checks = claim.measure(laboratory.of(claim.id))
    except Unmeasured as reason:
        note = f"not measured here: {reason}"
    except Exception as fault:  # one experiment that fails must not take the ledger with it
        note = f"its experiment failed: {type(fault).__name__}: {fault}"
    return Entry.of(claim, tuple(checks), note, round(time.perf_counter() - start, 4))

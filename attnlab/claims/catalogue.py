"""All claims, theme by theme, in the order in which they are read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache

from attnlab.claims import (
    cost,
    formula,
    gradients,
    heads,
    history,
    logits,
    precision,
    reach,
    saturation,
    shapes,
    speed,
    temperature,
)
from attnlab.claims.claim import Claim, Theme

THEMES: tuple[Theme, ...] = (
    formula.THEME,
    shapes.THEME,
    reach.THEME,
    precision.THEME,
    temperature.THEME,
    logits.THEME,
    saturation.THEME,
    gradients.THEME,
    heads.THEME,
    cost.THEME,
    speed.THEME,
    history.THEME,
)


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim. Raises ValueError where two share an id."""
    found = tuple(claim for theme in THEMES for claim in theme.claims)
    twice = {one.id for one in found if sum(other.id == one.id for other in found) > 1}
    if twice:
        raise ValueError(f"two claims are called {', '.join(sorted(twice))}")
    return found


def chosen(ids: Iterable[str] = ()) -> tuple[Claim, ...]:
    """The claims called `ids`, all where none is named. Raises ValueError for an unknown id, naming near ones."""
    known = {claim.id: claim for claim in claims()}
    wanted = tuple(dict.fromkeys(ids)) or tuple(known)
    for id in wanted:
        if id not in known:
            near = difflib.get_close_matches(id, known, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else "attnlab claims --list names them all"
            raise ValueError(f"no claim is called {id!r}; {hint}")
    return tuple(known[id] for id in wanted)

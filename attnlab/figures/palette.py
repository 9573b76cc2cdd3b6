"""How a backend is drawn: one colour and marker in every figure, whoever else is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: what the others are usually held against
_BASELINE = "torch_eager"
_BASELINE_COLOUR = "#222222"
#: after Okabe and Ito 2008, darkened so that labels in these colours read on white; markers differ as well
_COLOURS = (
    "#1F5FBF",
    "#D55E00",
    "#00855A",
    "#B0408E",
    "#B87900",
    "#0093A8",
    "#6A4BC4",
    "#7A4A1E",
    "#C1121F",
    "#66801A",
)
_MARKERS = "osD^vPX<>h"


@dataclass(frozen=True)
class Style:
    """A contender's colour, marker and dashes, as Matplotlib writes them."""

    colour: str
    marker: str
    dashes: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each of `names`.

    The backends that come with attnlab keep theirs in every figure; other names take those that
    follow, in order, and repeats of a colour are dashed.
    """
    from attnlab.contract.discovery import backends

    known = [name for name in backends() if name != _BASELINE]
    order = [*known, *(name for name in dict.fromkeys(names) if name not in known and name != _BASELINE)]
    found = {_BASELINE: Style(_BASELINE_COLOUR, "o", "-")}
    for index, name in enumerate(order):
        turn, place = divmod(index, len(_COLOURS))
        found[name] = Style(_COLOURS[place], _MARKERS[place], ("-", "--", "-.", ":")[turn % 4])
    return {name: found[name] for name in names}

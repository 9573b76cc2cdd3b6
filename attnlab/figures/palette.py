"""The colours of all figures, and how a backend is drawn: alike in every figure, whoever else is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: after Okabe and Ito 2008, told apart with impaired colour vision; darkened so that words in them read on white
BLUE, ORANGE, GREEN, PURPLE, OCHRE, SKY, VIOLET, BROWN, RED, OLIVE = (
    "#1F5FBF", "#D55E00", "#00855A", "#B0408E", "#B87900", "#0093A8", "#6A4BC4", "#7A4A1E", "#C1121F", "#66801A",
)  # fmt: skip
BLACK, GREY, GRID = "#222222", "#6E6E6E", "#E2E2E2"
#: in the order in which curves take them
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, BLACK)
_BACKENDS = (BLUE, ORANGE, GREEN, PURPLE, OCHRE, SKY, VIOLET, BROWN, RED, OLIVE)
_MARKERS = "osD^vPX<>h"
#: what the others are usually compared with, drawn in black
_BASELINE = "torch_eager"


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
    found = {_BASELINE: Style(BLACK, "o", "-")}
    for index, name in enumerate(order):
        turn, place = divmod(index, len(_BACKENDS))
        found[name] = Style(_BACKENDS[place], _MARKERS[place], ("-", "--", "-.", ":")[turn % 4])
    return {name: found[name] for name in names}

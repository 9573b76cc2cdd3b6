"""The tables that commands print, and the sentences beside them, as wide as the place allows.

That of a race, a row a workload, is the same while ``attnlab run`` goes on, at its end, and in ``attnlab show``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import measure_renderables
from rich.table import Column, Table
from rich.text import Text

from attnlab.text import wrapped

if TYPE_CHECKING:
    from attnlab.lab.claims import Ledger


T = TypeVar("T")
#: columns of what is no terminal, whatever the terminal beside it has
_PIPED = 200
#: letters to which a column of sentences may shrink, and between two columns
_SENTENCES, _GAP = 20, 2


def show(*things: Fitted | str) -> None:
    """Print tables that have rows, and texts, a blank line between them, on standard output.

    A terminal's lines end between words. Elsewhere texts stay as they are, and tables have `_PIPED` columns.
    """
    here = sys.stdout.isatty()
    console = Console(width=None if here else _PIPED, force_terminal=here)
    told = [one for one in things if (one if isinstance(one, str) else one.rows)]
    for at, one in enumerate(told):
        if at:
            console.print()
        if isinstance(one, str):
            console.print(Text(wrapped(one, console.width) if here else one), soft_wrap=True)
        else:
            console.print(one)


@dataclass
class Fitted:
    """A table that breaks no name and no number, however narrow its place. Cells are plain text.

    Headers, and columns of `prose`, end their lines between words. What does not fit: of the columns `spare` as many
    as need be are left out, the last first, and named below; all else stands in further blocks, each with the first
    `keys` columns again. A spare column in which nothing stands is left out too. `note` holds lines below.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    prose: Collection[str] = ()
    spare: Sequence[str] = ()
    note: str = ""
    lines: bool = False
    keys: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The title, a block of columns or several, and what is not shown."""
        cells = [[Text(str(one)) for one in column] for column in zip(self.headers, *self.rows, strict=True)]
        measured = partial(measure_renderables, console, options.update(width=10**6))
        wholes = [measured(column).maximum for column in cells]
        least = [
            max(measured(column).minimum, min(whole, _SENTENCES))
            if header in self.prose
            else max(measured(column[:1]).minimum, measured(column[1:]).maximum)
            for header, column, whole in zip(self.headers, cells, wholes, strict=True)
        ]

        def room(block: Sequence[int]) -> int:
            return options.max_width - sum(least[at] for at in block) - _GAP * (len(block) - 1)

        spare, missing = [self.headers.index(one) for one in self.spare], list[str]()
        shown = [at for at, (_, *column) in enumerate(cells) if at not in spare or any(column)]
        for at in reversed(spare):
            if at in shown and room(shown) < 0:
                shown.remove(at)
                missing.insert(0, self.headers[at])
        blocks = [shown[: self.keys]]
        for at in shown[self.keys :]:
            if len(blocks[-1]) > self.keys and room([*blocks[-1], at]) < 0:
                blocks.append(shown[: self.keys])
            blocks[-1].append(at)
        for header in [*missing]:  # where a further block is there anyway, and has room
            at = self.headers.index(header)
            if len(blocks) > 1 and room([*blocks[-1], at]) >= 0:
                blocks[-1].append(at)
                missing.remove(header)
        if self.title:
            yield Text(self.title, style="bold")
        for block in blocks:
            widths = {at: least[at] for at in block}
            widths[block[-1]] = max(1, widths[block[-1]] + min(room(block), 0))  # one word longer than a line
            for _ in range(room(block)):  # to the column that would have most lines
                widest = max(block, key=lambda at: wholes[at] / max(1, widths[at]))
                widths[widest] += widths[widest] < wholes[widest]
            columns = [Column(cells[at][0], width=width) for at, width in widths.items()]
            made = Table(*columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
            made.show_lines = self.lines
            for row in zip(*(cells[at][1:] for at in block), strict=True):
                made.add_row(*row)
            yield from ([""] if block is not blocks[0] else [])
            yield made
        if self.note:
            yield Text(wrapped(self.note, options.max_width))
        if missing:
            yield Text(f"Not shown for want of room: {', '.join(missing)}; a pipe (| cat) has room.")


def _known(value: T | None, text: Callable[[T], str]) -> str:
    return "" if value is None else text(value)


def claims_table(listed: Sequence[tuple[str, str, str]]) -> Fitted:
    """A row a claim: its id, its theme, and what is said."""
    return Fitted(["id", "theme", "claim"], listed, prose=("theme", "claim"))


def ledger_table(found: Ledger) -> Fitted:
    """A row a claim: verdict, claim, right statement, the deciding figure."""
    from attnlab.lab.claims import ClaimVerdict

    words = {one: str(one) for one in ClaimVerdict}
    rows = [
        (one.id, one.verdict_in(words), one.says, one.truth, one.deciding_figure) for one in found.entries
    ]
    headers = ["id", "verdict", "claim", "what is so", "deciding figure"]
    return Fitted(headers, rows, prose=headers[1:], lines=True)

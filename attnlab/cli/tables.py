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

<<<<<<< HEAD
from attnlab.text import wrapped
=======
from attnlab.correctness.check import Checked
from attnlab.race.compare import Comparison
from attnlab.runs.presets import Part
from attnlab.runs.support import Listed
from attnlab.stats.verdicts import Kind
from attnlab.text import bytes_text, flops_text, seconds_text, wrapped
from attnlab.workload.result import SAME_BITS, Outcome
from attnlab.workload.workload import Workload
>>>>>>> 15eedddc (A check asks a worker process directly: questions are a workload, a layout and a draw, the fixed ones a table; relations go, since no planted fault needs them; what the gate was is an examination)

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


<<<<<<< HEAD
=======
def comparison_table(found: Comparison) -> Fitted:
    """A row a contender: time, ratio with its interval, verdict, memory, set-up, error; and who has none, and why."""
    headers = "contender | outcome | median | ratio | 95 % interval | verdict | peak | set-up | rel. error"
    rows = []
    contenders = found.to_json()["contenders"]
    measured = all(one["outcome"] == Outcome.MEASURED for one in contenders)
    for one in contenders:
        low, high = one["ratio_low"], one["ratio_high"]
        row = (
            one["name"] + _known(one["computes_in"], ", in {}".format),
            "" if measured else one["outcome"],
            _known(one["seconds_median"], seconds_text),
            _known(one["ratio"], "{:.3f}".format),
            "none"
            if one["no_interval"]
            else f"{low:.3f} to {high:.3f}"
            if one["verdict"] in set(Kind)
            else "",
            one["verdict"] or "",
            _known(one["peak_bytes"], bytes_text),
            _known(one["setup_seconds"], seconds_text),
            _known(one["relative_error"], "{:.1e}".format),
        )
        rows.append(row)
    spare = ("outcome", "peak", "set-up", "rel. error")
    return Fitted(
        headers.split(" | "), rows, f"{found.workload.label}, against {found.baseline}", spare=spare
    )


def medians(found: Comparison) -> str:
    """One line: each contender's median, and its ratio to the baseline where there is one."""
    said = [
        f"{one['name']} {seconds_text(one['seconds_median'])}"
        + _known(one["ratio"], " (ratio {:.3f})".format)
        for one in found.to_json()["contenders"]
        if one["seconds_median"] is not None
    ]
    return f"Medians: {', '.join(said)}." if said else ""


def check_table(found: Sequence[Checked]) -> Fitted:
    """A row a backend and number format: right or not; one a backend of which none was asked; the reasons below."""
    headers = "backend | dtype | result | asked | declined | too slow | gradients | ln Z"
    rows, reasons = [], dict[tuple[str, str], list[str]]()
    for checked in found:
        if checked.passed and checked.no_gradients:
            reasons[checked.name, f"no gradients. {_own_words(checked, checked.no_gradients)}"] = []
        for dtype, word, one in checked.lines:
            counts = (one.asked, one.declined, one.left_out) if dtype else [""] * 3
            further = [
                word if dtype in of else "none" if one.passed else ""
                for of in (checked.gradients, checked.log_sums)
            ]
            rows.append((checked.name, dtype, word, *counts, *further))
            if one.reason and not one.passed:
                why = f"{word}. {_own_words(checked, one.reason)}"
                reasons.setdefault((checked.name, why), []).extend(filter(None, [dtype]))
    note = "\n".join(f"{', '.join([name, *dtypes])}: {why}." for (name, why), dtypes in reasons.items())
    spare = ("gradients", "ln Z", "asked", "declined", "too slow")
    prose = ("result", "gradients", "ln Z")
    return Fitted(headers.split(" | "), rows, prose=prose, spare=spare, note=note, keys=2)


def _own_words(checked: Checked, reason: str) -> str:
    """The reason without who declines which workload: that stands beside it."""
    return re.sub(rf"^{re.escape(checked.name)} declines [^:]*: ", "", reason)


def precision_table(found: Sequence[Checked]) -> Fitted:
    """A row a backend, dtype and direction: how exact it is, for those that answered."""
    title = (
        "precision: budgets, what part of its class's budget the error takes; ulp, the largest error in units in the "
        "last place; bias, z of results that are all too large (+) or too small (-)"
    )
    rows = [
        (
            one.name,
            dtype + (f", in {one.lower[dtype]}" if dtype in one.lower else ""),
            what,
            answers[dtype]["class"] or "none",
            f"{answers[dtype]['relative_error']:.2e}",
            f"{answers[dtype]['budget_ratio']:.2f}",
            f"{answers[dtype]['max_ulp']:.3g}",
            f"{answers[dtype]['bias']:+.1f}",
        )
        for one in found
        for dtype in one.precision
        for what, answers in (("output", one.precision), ("gradients", one.gradients), ("ln Z", one.log_sums))
        if dtype in answers
    ]
    headers = ["backend", "dtype", "of", "class", "relative error", "budgets", "ulp", "bias"]
    return Fitted(headers, rows, title, prose=("dtype", "class"), spare=("ulp", "bias"), keys=3)


def same_bits_table(found: Sequence[Checked]) -> Fitted:
    """A row a backend and dtype: where it gives the same bits again."""
    words = {True: "same", False: "differ", None: ""}
    rows = [
        (one.contender, one.dtype, *(words[one.same.get(name)] for name in SAME_BITS), one.reason or "")
        for checked in found
        for one in checked.invariance
    ]
    title = "the same bits again, and when a part is computed by itself"
    headers, reason = ("backend", "dtype", *SAME_BITS, "reason"), ("reason",)
    return Fitted(headers, rows, title, prose=reason, spare=reason, keys=2)


def backend_table(device: str, found: Sequence[Listed]) -> Fitted:
    """A row a backend: whether it can run on `device`, and what it is or why it cannot."""
    rows = [
        (one.name, one.library, "no" if one.reason else "yes", one.reason or one.summary) for one in found
    ]
    headers = ["backend", "library", "here", "what it is, or why it cannot run"]
    return Fitted(headers, rows, f"backends on {device}", prose=headers[-1:])


def _costs(one: Workload) -> tuple[str, str, str]:
    return flops_text(one.flops).removesuffix("/s"), bytes_text(one.score_bytes), bytes_text(one.least_bytes)


def presets_table(presets: Mapping[str, Sequence[Part]]) -> Fitted:
    """A row a preset: what the labels of all its parts say, but for the length, its lengths, its parts."""
    rows = []
    for name, parts in presets.items():
        words = _shared([part.workloads()[-1].label.split() for part in parts])
        shape = " ".join(one for one in words if not re.fullmatch(r"b1|n\d.*|float32|cpu", one))
        lengths = sorted({length for part in parts for length in part.said["lengths"]})
        ends = " to ".join(dict.fromkeys(map(str, (lengths[0], lengths[-1]))))
        rows.append((name, shape, ends, ", ".join(part.name for part in parts)))
    return Fitted(("preset", "shape", "lengths", "parts"), rows, prose=("shape", "parts"))


def costs_tables(parts: Sequence[Part]) -> list[Fitted]:
    """Of each of these parts a row a workload: what it costs."""
    headers = ("workload", "FLOPs", "score matrix", "least bytes")
    found = []
    for part in parts:
        workloads = part.workloads()
        shared, labels = apart([one.label for one in workloads])
        rows = [(label, *_costs(one)) for label, one in zip(labels, workloads, strict=True)]
        found.append(Fitted(headers, rows, f"{part.path}: {shared}"))
    return found


def _shared(every: Sequence[Sequence[T]]) -> list[T]:
    """What stands in all of them, in the order of the first."""
    return [one for one in every[0] if all(one in other for other in every)]


#: words of a workload's label that stand in its row, whatever the others say: heads and length
_OWN = re.compile(r"[hn]\d")


def apart(labels: Sequence[str]) -> tuple[str, list[str]]:
    """What the labels of all workloads say, but for heads and length, and what each says beside it."""
    words = [label.split() for label in labels]
    shared = [one for one in _shared(words or [[]]) if not _OWN.match(one)]
    return " ".join(shared), [" ".join(one for one in mine if one not in shared) for mine in words]


>>>>>>> 15eedddc (A check asks a worker process directly: questions are a workload, a layout and a draw, the fixed ones a table; relations go, since no planted fault needs them; what the gate was is an examination)
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

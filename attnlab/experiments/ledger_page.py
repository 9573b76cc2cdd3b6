"""The ledger as a chapter of a report, in Markdown, a table a theme; and all its figures as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attnlab.experiments.claim import Check, ClaimVerdict, Role
from attnlab.experiments.ledger import Ledger, LedgerEntry

MARKS = {
    ClaimVerdict.CONFIRMED: "✓ confirmed",
    ClaimVerdict.CONDITIONAL: "~ conditional",
    ClaimVerdict.REFUTED: "✗ refuted",
    ClaimVerdict.NOT_MEASURABLE: "· not measurable",
}
_TESTED = {
    Role.CLAIM: "the claim",
    Role.BEYOND: "the claim, beyond its condition",
    Role.RIGHT: "the right statement",
    Role.CONTROL: "the experiment itself",
}


def render(ledger: Ledger, *, heading: str = "##") -> str:
    """The chapter as Markdown, its title at the level of `heading`."""
    themes: dict[str, list[LedgerEntry]] = {}
    for entry in ledger.entries:
        themes.setdefault(entry.theme, []).append(entry)
    parts = [f"{heading} What is said, and what is so", introduction(ledger)]
    for theme, entries in themes.items():
        parts += [f"{heading}# {theme}", _table(entries)]
    return "\n\n".join(part for part in parts if part) + "\n"


def introduction(ledger: Ledger) -> str:
    """What was done, how a verdict comes about, and how many there are of each."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in ledger.counts.items() if count)
    return (
        f"{len(ledger.entries)} claims that are often made about attention, in our own words: {counts}. "
        "No verdict is written down anywhere; each follows from figures of the experiments, or from published "
        "ones that are named with their source:\n\n- ✓ *confirmed*: the claim meets every test.\n- ~ "
        "*conditional*: it meets those within the condition that is named, and fails beyond it.\n- ✗ *refuted*: "
        "it fails, and the right statement meets its own tests.\n- · *not measurable*: no experiment here "
        "settles it, or none did in this run.\n\nA statistic must lie within five standard errors of what is "
        "claimed, a computed number within the error that its roundings allow. The deciding figure is the first "
        "test that the claim fails, or its first where it fails none; where several backends or sizes were "
        "tested, it is the one that comes out worst for the claim. All stand in the table beside this page."
    )


def _table(entries: Iterable[LedgerEntry]) -> str:
    lines = [
        "| id | claim | verdict | what is so | deciding figure | read more |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        cells = (
            f"`{entry.id}`",
            entry.says,
            verdict_of(entry, MARKS),
            entry.truth,
            deciding_figure(entry),
            entry.reference,
        )
        lines.append(_line(cells))
    return "\n".join(lines)


def verdict_of(entry: LedgerEntry, marks: dict[ClaimVerdict, str]) -> str:
    """The verdict in words, with its condition where it hangs on one."""
    conditional = entry.verdict is ClaimVerdict.CONDITIONAL and entry.condition
    return marks[entry.verdict] + (f": {entry.condition}" if conditional else "")


def deciding(entry: LedgerEntry) -> Check | None:
    """The check on which the verdict turns: the first that the claim fails, or its first where it fails none."""
    said = [check for check in entry.checks if check.role in (Role.CLAIM, Role.BEYOND)]
    tests = [check for check in entry.checks if check.role in (Role.RIGHT, Role.CONTROL)]
    if entry.verdict is ClaimVerdict.NOT_MEASURABLE:
        return next((check for check in tests if not check.holds), None)
    return next((check for check in said if not check.holds), said[0])


def deciding_figure(entry: LedgerEntry) -> str:
    """That check in words, or why there is none: ``Var(q·k): 1014 ± 6, claimed = 256 (σ = 2, d_k = 64)``."""
    check = deciding(entry)
    if check is None:
        return entry.note
    of = "claimed" if check.role in (Role.CLAIM, Role.BEYOND) else "predicted"
    where = f" ({check.where})" if check.where else ""
    return f"{check.quantity}: {_measured(check)}, {of} {_expected(check)}{where}"


def _measured(check: Check) -> str:
    return _number(check.measured) + (f" ± {check.standard_error:.2g}" if check.standard_error else "")


def _expected(check: Check) -> str:
    slack = f" ± {check.slack:.2g}" if check.slack and check.relation not in "<>" else ""
    return f"{check.relation} {_number(check.expected)}{slack}"


def _number(value: float) -> str:
    """A whole number in full, any other to four digits."""
    return f"{value:,.0f}" if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"


def figures(ledger: Ledger) -> list[dict[str, Any]]:
    """Every test of every claim as plain values, a row a test."""
    return [
        {
            "claim": entry.id,
            "tested": _TESTED[check.role],
            "quantity": check.quantity,
            "measured": check.measured,
            "standard_error": check.standard_error,
            "relation": check.relation,
            "expected": check.expected,
            "slack": check.slack,
            "met": check.holds,
            "where": check.where,
        }
        for entry in ledger.entries
        for check in entry.checks
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(' '.join(text.split()).replace('|', chr(92) + '|') for text in cells)} |"

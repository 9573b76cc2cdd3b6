"""The ledger as a chapter of a report, in Markdown: a table a theme, and all figures folded below it."""

from __future__ import annotations

from collections.abc import Iterable

from attnlab.claims.check import Check, Role
from attnlab.claims.ledger import Entry, Ledger
from attnlab.claims.verdict import Verdict

MARKS = {
    Verdict.CONFIRMED: "✓ confirmed",
    Verdict.CONDITIONAL: "~ conditional",
    Verdict.REFUTED: "✗ refuted",
    Verdict.NOT_MEASURABLE: "· not measurable",
}
_TESTED = {
    Role.CLAIM: "the claim",
    Role.BEYOND: "the claim, beyond its condition",
    Role.RIGHT: "the right statement",
    Role.CONTROL: "the experiment itself",
}


def render(ledger: Ledger, *, heading: str = "##") -> str:
    """The chapter as Markdown, its title at the level of `heading`."""
    themes: dict[str, list[Entry]] = {}
    for entry in ledger.entries:
        themes.setdefault(entry.theme, []).append(entry)
    parts = [f"{heading} What tutorials say, and what is so", introduction(ledger)]
    for theme, entries in themes.items():
        parts += [f"{heading}# {theme}", _table(entries), _figures(entries)]
    return "\n\n".join(part for part in parts if part) + "\n"


def introduction(ledger: Ledger) -> str:
    """What was done, how a verdict comes about, and how many there are of each."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in ledger.counts.items() if count)
    facts = ledger.facts
    through = ", ".join(f"`{name}`" for name in str(facts.get("backends", "none")).split(", "))
    return (
        f"{len(ledger.entries)} claims about attention from five tutorials, in our own words: {counts}. "
        "S0 to S4 are the tutorials and the numbers behind them their lines; the texts are not part of this "
        "repository.\n\n"
        "No verdict is written down anywhere; each is computed from its figures:\n\n"
        "- ✓ *confirmed*: the claim meets every test.\n"
        "- ~ *conditional*: it meets those within the condition that is named, and fails beyond it.\n"
        "- ✗ *refuted*: it fails, and the right statement meets its own tests.\n"
        "- · *not measurable*: no experiment settles it, or none did in this run.\n\n"
        "A statistic must lie within five standard errors of what is claimed, a computed number within the error "
        "that its roundings allow. The deciding figure is the first test that the claim fails, or its first where "
        "it fails none; all are folded below each table. "
        f"Measured through {through}, with seed {facts.get('seed', '?')}, in {facts.get('seconds', '?')} s. Times "
        "are of one thread of this process, in alternating pairs."
    )


def _table(entries: Iterable[Entry]) -> str:
    lines = [
        "| id | claim | verdict | what is so | deciding figure | read more |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        verdict = MARKS[entry.verdict]
        if entry.verdict is Verdict.CONDITIONAL and entry.condition:
            verdict += f": {entry.condition}"
        cells = (
            f"`{entry.id}`",
            f"{entry.says} ({', '.join(entry.where)})",
            verdict,
            entry.truth,
            deciding_figure(entry),
            entry.reference,
        )
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines)


def deciding(entry: Entry) -> Check | None:
    """The check on which the verdict turns: the first that the claim fails, or its first where it fails none."""
    said = [check for check in entry.checks if check.role in (Role.CLAIM, Role.BEYOND)]
    tests = [check for check in entry.checks if check.role in (Role.RIGHT, Role.CONTROL)]
    if entry.verdict is Verdict.NOT_MEASURABLE:
        return next((check for check in tests if not check.holds), None)
    return next((check for check in said if not check.holds), said[0])


def deciding_figure(entry: Entry) -> str:
    """That check in words, or why there is none."""
    check = deciding(entry)
    return entry.note if check is None else sentence(check)


def sentence(check: Check) -> str:
    """A check in words: ``Var(q·k): 1014 ± 6, claimed = 256 (σ = 2, d_k = 64)``."""
    of = "claimed" if check.role in (Role.CLAIM, Role.BEYOND) else "predicted"
    where = f" ({check.where})" if check.where else ""
    return f"{check.quantity}: {measured(check)}, {of} {expected(check)}{where}"


def measured(check: Check) -> str:
    """The measured number with its standard error and unit."""
    error = f" ± {check.standard_error:.2g}" if check.standard_error else ""
    return f"{number(check.measured)}{error}{f' {check.unit}' if check.unit else ''}"


def expected(check: Check) -> str:
    """What the number must be, with the slack that it has."""
    slack = f" ± {check.slack:.2g}" if check.slack and check.relation not in "<>" else ""
    return f"{check.relation} {number(check.expected)}{slack}"


def number(value: float) -> str:
    """A whole number in full, any other to four digits."""
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _figures(entries: Iterable[Entry]) -> str:
    lines = [
        "| claim | tested | quantity | measured | expected | met | where |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        for check in entry.checks:
            cells = (
                f"`{entry.id}`",
                _TESTED[check.role],
                check.quantity,
                measured(check),
                expected(check),
                "yes" if check.holds else "no",
                check.where,
            )
            lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    if len(lines) == 2:
        return ""
    table = "\n".join(lines)
    return f"<details><summary>All figures</summary>\n\n{table}\n\n</details>"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

"""Experiments in Markdown: their chapter in a report, and the page of all of them and of the claims they decide."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.figures import Drawn
from attnlab.lab import EXPERIMENTS, experiment, figure
from attnlab.lab.claims import Claim, ClaimVerdict, Ledger
from attnlab.lab.finding import Finding, Row, Shown
from attnlab.report import data_tables, layout
from attnlab.report.layout import FIGURES, NONE, TABLES, Picture, evenly, linked, markdown, shortened
from attnlab.text import counted, listed, named, number_text

PAGE, STORE, CLAIMS = "numerics.md", "numerics.json", "claims.json"
#: letters of what is said of an experiment in the table of all
_MOST = 165
#: conditions of a row that do not belong to the question: who answered, and what the answer showed
_ANSWERS = ("backend", "precision", "subnormals", "counted", "reason")
_MARKS = {
    ClaimVerdict.CONFIRMED: "✓ confirmed",
    ClaimVerdict.CONDITIONAL: "~ conditional",
    ClaimVerdict.REFUTED: "✗ refuted",
    ClaimVerdict.NOT_MEASURABLE: "· not measurable",
}
#: the backend whose rows the short table shows, where it was measured
_SHOWN = "torch_sdpa"
#: rows shown of an experiment: that were picked, and that missed their prediction
_MOST_SHOWN, _MOST_FAILED = 10, 10
_WITHOUT = r"without (\S+)(?: in (\S+))?"
#: names of quantities and conditions as a reader writes them; any other is shown as it is
_WORDS: Mapping[str, str] = {
    "entropy": "entropy H (nats)",
    "entropy against temperature": "entropy H (nats) against temperature",
    "largest_weight": "largest weight",
    "largest_weight on the map": "largest weight on the map",
    "largest_weight against temperature": "largest weight against temperature",
    "participation": "Σp²",
    "participation against temperature": "Σp² against temperature",
    "frozen fraction": "share of rows with a weight above ½",
    "variance": "variance of the logits",
    "log_partition": "ln Z",
    "mean_energy": "⟨s⟩",
    "heat_capacity": "heat capacity Var_p(s)",
    "keys": "n",
    "head_dim": "d_k",
    "rule": "logits",
    "scheme": "initialisation",
    "norm": "below",
    "axis": "varied",
    "beta": "β",
    "beta / critical": "β / β_c",
    "temperature / freezing": "T / T_c",
    "gap": "gap Δ",
    "dtype": "format",
    "logit_std": "std of the logits",
}


# -- the chapter ------------------------------------------------------------------------------------


def draw(findings: Sequence[Finding]) -> dict[str, Drawn]:
    """Each experiment's own figure; one that this version does not know, or whose rows it cannot draw, has none."""
    drawn = {}
    for one in findings:
        if one.experiment in EXPERIMENTS:
            # a file may hold text where a number belongs, and rows that no experiment made: `content` tells it
            with contextlib.suppress(ArithmeticError, LookupError, TypeError, ValueError):
                said = f"{one.title}. {first_sentence(one.conclusion)}"
                drawn[f"finding-{one.experiment}"] = Drawn(figure(one), said)
    return drawn


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text, maxsplit=1)[0]


def content(one: Finding, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    """What the templates show of it, with its picture and a link to its table."""
    good, of = passed(one)
    told = f"{good} of {counted(of, 'comparison')} passed" if of else "Nothing was predicted of it"
    picture = pictures.get(f"finding-{one.experiment}")
    known = experiment(one.experiment) if one.experiment in EXPERIMENTS else None
    texts = {name: getattr(known, name, "") for name in ("theory", "caption", "lesson")}
    return {
        **{name: getattr(one, name) for name in ("experiment", "title", "question", "conclusion")},
        **texts,
        "picture": picture and picture.link,
        "facts": conditions(one.facts),
        "chosen": table(picked(one.rows, known.shown if known else ())),
        "failed": table([row for row in one.rows if not row.passed][:_MOST_FAILED]),
        "summary": f"{told}{'' if picture else ' (without a figure)'}",
        "link": linked("every row", f"{TABLES}/finding-{one.experiment}.csv"),
    }


def passed(one: Finding) -> tuple[int, int]:
    """How many comparisons passed, and of how many."""
    rows = [row for row in one.rows if row.compared]
    return sum(row.passed for row in rows), len(rows)


def picked(rows: Sequence[Row], shown: Sequence[Shown]) -> list[Row]:
    """The rows that show best what was found, a few of each, and every failed one after them."""
    names = list(dict.fromkeys(str(row.where["backend"]) for row in rows if "backend" in row.where))
    every: list[list[Row]] = []
    for one in shown:
        mine = [row for row in rows if row.takes(one.quantity, one.where)]
        there = {row.where.get("backend") for row in mine}
        if not one.every and len(there) > 1:
            # the first name that is there; the slow ones come with fewer sizes
            through = next((name for name in (_SHOWN, *reversed(names)) if name in there), None)
            mine = [row for row in mine if row.where.get("backend") == through]
        every.append(mine)
    each = max(1, _MOST_SHOWN // max(1, sum(map(bool, every))))  # as many of each
    few = [row for mine in every for row in evenly(mine, each)][:_MOST_SHOWN]
    return few + [row for row in rows if not row.passed and row not in few][:_MOST_FAILED]


def conditions(facts: Mapping[str, str | float]) -> str:
    """What an experiment ran with as sentences; who was left out is told once for all of them, by `left_out`."""
    plain: list[str] = []
    more: list[str] = []
    for key, value in facts.items():
        if re.fullmatch(_WITHOUT, key):
            continue
        if key == "backends":
            count = len(str(value).split(", "))
            plain.append("through " + (counted(count, "backend") if value != "none" else "no backend"))
        elif key == "seconds" and isinstance(value, int | float):
            plain.append(f"in {float(value):.1f} s")
        elif key == "dtype":
            plain.append(f"in {value}")
        elif isinstance(value, int | float):
            plain.append(f"{key} {_short(value)}")
        else:
            more.append(f" {key[0].upper()}{key[1:]}: {value}.")
    return ((f"Ran with {', '.join(plain)}." if plain else "") + "".join(more)).strip()


def left_out(findings: Iterable[Finding]) -> list[str]:
    """Who took no part in some experiment, a sentence a reason."""
    absent: dict[str, dict[str, list[str]]] = {}
    for key, value in ((key, value) for one in findings for key, value in one.facts.items()):
        if matched := re.fullmatch(_WITHOUT, key):
            name, dtype = matched.groups()
            reason = re.sub(rf"^{re.escape(name)} declines .*?: ", "", str(value))
            formats = absent.setdefault(reason, {}).setdefault(name, [])
            formats += [dtype] if dtype and dtype not in formats else []
    told = []
    for reason, names in absent.items():
        formats = list(dict.fromkeys(dtype for dtypes in names.values() for dtype in dtypes))
        # what cannot be done in all formats is not for want of one
        within = f" in {listed(formats)}" if len(formats) == 1 else ""
        told.append(f"{named(list(names))}{within}: {reason}")
    return told


def table(rows: Sequence[Row]) -> str:
    """Predicted against measured, row by row; a bound with its relation, and a dash where nothing is predicted."""
    keys = list(dict.fromkeys(key for row in rows for key in row.where))
    cells = []
    for row in rows:
        bound = "" if row.relation == "=" else f"{row.relation} "
        cells.append(
            [
                _short(row.quantity),
                *(_short(row.where.get(key, NONE)) for key in keys),
                f"{bound}{number_text(row.predicted, 4)}" if row.compared else NONE,
                number_text(row.measured, 4),
                number_text(row.standard_error, 2) if row.standard_error else NONE,
                NONE if row.passed and not row.compared else "pass" if row.passed else "**FAIL**",
            ]
        )
    headers = ["quantity", *map(_short, keys), "predicted", "measured", "standard error", "verdict"]
    return markdown(headers, cells, narrow=True)


def _short(value: str | float) -> str:
    if isinstance(value, str):
        return _WORDS.get(value, value)
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


# -- the page of all --------------------------------------------------------------------------------


def write(
    findings: Sequence[Finding],
    folder: Path,
    *,
    environment: Mapping[str, Any],
    command: str,
    ledger: Ledger | None = None,
) -> Path:
    """Write the page, its figures, ``numerics.json`` and, with a `ledger`, ``claims.json`` into `folder`.

    Returns the page's path.

    Raises OSError where the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = {STORE: [finding.to_dict() for finding in findings]}
    tables = {f"finding-{one.experiment}": data_tables.finding_rows(one.rows) for one in findings}
    tables["facts"] = [
        {"experiment": one.experiment, "fact": name, "value": str(fact)}
        for one in findings
        for name, fact in one.facts.items()
    ]
    if ledger:
        stored[CLAIMS], tables["claims"] = ledger.to_dict(), ledger.rows()
    for name, plain in stored.items():
        (folder / name).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    pictures = layout.Writing(draw(findings), folder / FIGURES).finish()
    data_tables.write(tables.items(), folder / TABLES)
    text = layout.fill(
        "experiments.md.j2",
        count=len(findings),
        predicting=sum(passed(one)[1] > 0 for one in findings),
        missed=[one.title for one in findings if not one.passed],
        compared=compared(findings),
        seconds=sum(float(one.facts.get("seconds", 0.0)) for one in findings),
        cpu=environment.get("cpu"),
        date=datetime.now(UTC).date(),
        overview=overview(findings),
        findings=[content(one, pictures) for one in findings],
        left_out=left_out(findings),
        ledger=ledger,
        counts=", ".join(f"{count} {verdict}" for verdict, count in ledger.counts.items() if count)
        if ledger
        else "",
        themes=_themes(ledger.entries) if ledger else {},
        command=command,
    )
    (folder / PAGE).write_text(text, encoding="utf-8")
    return folder / PAGE


def compared(findings: Sequence[Finding]) -> str:
    """How many comparisons there are, and of how many questions: all backends are asked the same, on the same draws."""
    rows = [(one.experiment, row) for one in findings for row in one.rows if row.compared]
    asked = [
        (name, row.quantity, *sorted((key, str(row.where[key])) for key in row.where if key not in _ANSWERS))
        for name, row in rows
    ]
    return f"{len(rows):,} comparisons on {len(set(asked)):,} questions"


def overview(findings: Sequence[Finding]) -> str:
    """A row an experiment: what was found, of which the chapter says all, and how many comparisons passed."""
    rows = [
        [one.title, _found(one), "{} of {}".format(*counts) if (counts := passed(one))[1] else NONE]
        for one in findings
    ]
    return markdown(["experiment", "what was found", "passed"], rows, left=2, narrow=True)


def _found(finding: Finding) -> str:
    """The first sentence of the conclusion, up to the last clause of it that ends before `_MOST` letters."""
    sentence = first_sentence(finding.conclusion)
    if len(sentence) <= _MOST:
        return sentence
    starts = (sentence[: one.start()] for one in re.finditer(r"[;,:] | \(", sentence[:_MOST]))
    ends = [len(one) for one in starts if one.count("(") == one.count(")")]  # not within brackets
    return f"{sentence[: ends[-1]]} …" if ends else shortened(sentence, _MOST)


def _themes(entries: Iterable[Claim]) -> dict[str, str]:
    """A table of claims by theme."""
    themes: dict[str, list[list[str]]] = {}
    for one in entries:
        verdict, figure = one.verdict_in(_MARKS), one.deciding_figure
        cells = [f"`{one.id}`", one.says, verdict, one.truth, figure, one.reference]
        themes.setdefault(one.theme, []).append(cells)
    headers = ["id", "claim", "verdict", "what is so", "deciding figure", "read more"]
    return {theme: markdown(headers, rows, left=6, narrow=True) for theme, rows in themes.items()}

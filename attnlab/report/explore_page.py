"""Stored runs as one page to explore: a single HTML file that opens from disk and needs no network.

Its scripts (``assets/*.js``) select and draw, by Observable Plot and d3, which stand beside them; its policy lets in
nothing but itself: ``default-src 'none'``, no network, no frame, no picture, no style or script but those whose SHA-256
stands there. The data stands packed in blocks that no browser runs, and that the page's script unpacks. Nothing is
judged here or in the page: verdicts, intervals and first places are those of `attnlab.stats.analysis`, and the answer
is that of the report.
"""

from __future__ import annotations

import base64
import decimal
import gzip
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from attnlab import figures
from attnlab.environment import fingerprint
from attnlab.errors import NotStored
from attnlab.report import data_tables, sentences
from attnlab.report.analysis import Analysis, analyse, mapping
from attnlab.report.answer import answer_of
from attnlab.report.layout import plain
from attnlab.runs.store import Run
from attnlab.stats.analysis import Cell
from attnlab.stats.groups import condition, conditions, place_text
from attnlab.stats.ranking import Lead, Sure
from attnlab.stats.replication import seconds
from attnlab.text import bytes_text, interval_text, one_line, ratio_text
from attnlab.workload.result import Measurement, Result

PAGE = "explore.html"
#: bytes that a page takes at most
LIMIT = 5_000_000
_LIBRARIES = ("d3-7.9.2", "plot-0.6.17")
#: the page's own scripts, in the order in which one uses another
_SCRIPTS = ("data", "parts", "chart", "winners", "figures", "rounds", "runs", "page")
#: fields that have a filter of their own whatever the run; all others have one where they take several values
ALWAYS = ("heads", "keys", "dtype", "direction", "device")
#: entries of an environment that two runs are compared by
_MACHINE = (
    *("cpu", "gpus", "cores", "affinity", "memory_bytes", "system", "libc", "python", "attnlab", "governor"),
    *("turbo", "huge_pages", "variables", "load_at_start"),
)
Rows = list[dict[str, Any]]
_FIVE = decimal.Context(prec=5, rounding=decimal.ROUND_05UP)
_DASHES = {"-": "", "--": "6 4", "-.": "8 3 2 3", ":": "2 3"}


def write(runs: Sequence[Run], file: Path, known: Sequence[Analysis] = ()) -> Path:
    """Write the page of `runs` into `file`, which is replaced, and return its path. Raises NotStored, in one line.

    known : reports' analyses of some of the runs, which then need not be judged again.
    """
    text = render(runs, known=known)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise NotStored(
            f"{file} cannot be written: {fault.strerror}; name another place with --out"
        ) from None
    return file


def render(runs: Sequence[Run], limit: int = LIMIT, known: Sequence[Analysis] = ()) -> str:
    """The page of one run or several, in at most `limit` bytes: raw rounds are left out evenly until it fits.

    Raises ValueError for no run, and where a page without any raw round would be larger than `limit`.
    """
    if not runs:
        raise ValueError("a page needs at least one run, got none")
    data, latencies = page_data(runs, known)
    block = packed(data)
    page = _fill(block, packed_rounds(latencies, limit - len(_fill(block, "").encode())))
    size = len(page.encode())
    if size > limit:
        answers = sum(len(run.results) for run in runs)
        raise ValueError(
            f"{answers:,} results make a page of {bytes_text(size)} without a raw round, more than "
            f"{bytes_text(limit)}; give fewer runs, or smaller ones"
        )
    return page


def _fill(data: str, rounds: str) -> str:
    from jinja2 import Environment, StrictUndefined

    # each library with its licence, which asks to stand in every copy
    scripts = [f"/*\n{_asset(f'{name}.LICENSE')}*/\n{_asset(f'{name}.min.js')}" for name in _LIBRARIES]
    own = "\n".join(f"// {name}.js\n{_asset(f'{name}.js')}" for name in _SCRIPTS)
    scripts.append(f'(async () => {{\n"use strict";\n{own}}})();\n')  # in one scope, which waits for the data
    style = _asset("page.css")
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    template = Environment(undefined=StrictUndefined, autoescape=True).from_string(_asset("page.html.j2"))
    return template.render(policy=policy, style=style, scripts=scripts, data=data, rounds=rounds)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    """The text of a file of the page, with line ends as a browser reads them."""
    text = (resources.files("attnlab.report") / "assets" / name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


# -- what the page shows ------------------------------------------------------------------------------


def page_data(
    runs: Sequence[Run], known: Sequence[Analysis] = ()
) -> tuple[dict[str, Any], list[Measurement]]:
    """All but the raw rounds, and the latency of each result that has a time, in the order of the results.

    known : reports' analyses of some of the runs, which need not be judged again.
    """
    analyses = [_analysed(run, known) for run in runs]
    titles = [one_line(run.folder.resolve().name) for run in runs]
    if len(runs) > 1:
        titles = [f"{ascii_uppercase[at % 26]}: {title}" for at, title in enumerate(titles)]
    workloads: Rows = []
    results: Rows = []
    fields: Rows = []
    latencies: list[Measurement] = []
    for number, analysis in enumerate(analyses):
        for cell in analysis.cells:
            for name, result in cell.answers.items():
                results.append({"workload": len(workloads), **_result(cell, name, result, analysis.baseline)})
                if results[-1]["time"] is not None and result.latency is not None:
                    latencies.append(result.latency)
            workloads.append({"run": number, **_workload(cell)})
            run = {"run": titles[number]} if len(runs) > 1 else {}
            heads, keys = cell.at
            fields.append({**run, "heads": heads, "keys": keys, **conditions(cell.workload)})
    names = list(dict.fromkeys(name for one in analyses for name in one.names))
    data = {
        "runs": [_run(*one) for one in zip(titles, runs, analyses, strict=True)],
        "contenders": [
            {"name": name, "colour": style.colour, "symbol": style.marker, "dashes": _DASHES[style.dashes]}
            for name, style in figures.styles(names).items()
        ],
        "fields": list(_fields(fields)),
        "workloads": _columns(workloads),
        "results": _columns(results),
    }
    return data, latencies


def _analysed(run: Run, known: Sequence[Analysis]) -> Analysis:
    """`run`, judged; by one of the `known`, where no text had to be changed in it for Markdown."""
    shown = replace(run, contenders=tuple(map(one_line, run.contenders)), baseline=one_line(run.baseline))
    for one in known:
        if one.run == shown:
            return one
    return analyse(shown, lambda same: same)


def _run(title: str, run: Run, analysis: Analysis) -> dict[str, Any]:
    answer = answer_of(analysis)
    machine = {name: _text(name, run.environment.get(name)) for name in _MACHINE}
    settings = {}
    for ran in data_tables.contenders(analysis):
        facts = analysis.facts(ran["contender"])
        modes, versions = (_entries(facts.get(name)) for name in ("modes", "versions"))
        threads = f"threads: {ran['threads_asked_and_in_pools']}"
        settings[ran["contender"]] = one_line("; ".join([threads, *modes, *versions]))
        for library, _, version in (each.rpartition(" ") for each in versions):
            known = machine.setdefault(one_line(library), one_line(version))
            if version not in known.split(", "):
                machine[one_line(library)] = one_line(f"{known}, {version}")
    return {
        "title": title,
        "started": one_line(run.started).replace("T", " ").replace("+00:00", " UTC"),
        "date": one_line(run.started),
        "machine_id": fingerprint(run.environment),
        "command": one_line(run.command, 4000),
        "baseline": analysis.baseline,
        "shared": one_line(analysis.shared),
        "warnings": [plain(one_line(one, 1000)) for one in sentences.warnings(analysis)],
        "answer": [plain(one_line(one, 1000)) for one in (answer.line, *answer.sentences)],
        "machine": one_line(sentences.machine(run.environment)),
        "about": [
            [name.removesuffix("_bytes").replace("_", " "), said] for name, said in machine.items() if said
        ],
        "settings": settings,
    }


def _entries(found: Any) -> list[str]:
    return [f"{key} {one}" for key, one in mapping(found).items()]


def _text(name: str, value: Any) -> str:
    """An entry of an environment in one line; empty for None."""
    if name.endswith("_bytes") and isinstance(value, int):
        return bytes_text(value)
    if isinstance(value, Mapping):
        value = _entries({key: one for key, one in value.items() if one is not None})
    return one_line(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value or ""))


def _workload(cell: Cell) -> dict[str, Any]:
    """One workload, and who is first there, with what to tell of it."""
    won = cell.won
    failed = Counter(_outcome(cell, name) for name in cell.answers if name not in cell.measured)
    told = {
        "first": ", ".join(won.first),
        "same kernel": ", ".join(sorted(cell.first.difference(won.first))),
        "verdict": str(won.sure),
        "ahead of the next": _ahead(won.ahead),
        "ahead of the baseline": _ahead(won.over_baseline),
        "not measured": ", ".join(f"{count} {outcome}" for outcome, count in failed.items()),
    }
    return {
        "group": cell.group,
        "place": place_text(cell.workload),
        "label": cell.workload.label,
        "margin": cell.margin,
        "size": cell.workload.score_bytes,
        "state": str(won.sure),
        "first": None if won.sure is Sure.NOBODY else won.name,
        "best": cell.ranking.best.contender if cell.ranking else None,
        "next_ratio": won.ahead.ratio if won.ahead else None,
        "baseline_ratio": won.over_baseline.ratio if won.over_baseline else None,
        "told": [f"{name}: {one}" for name, one in told.items() if one],
    }


def _ahead(lead: Lead | None) -> str:
    if lead is None:
        return ""
    span = "" if lead.low is None or lead.high is None else f" {interval_text(lead.low, lead.high)}"
    return f"{ratio_text(lead.ratio)}{span} × as fast as {lead.over}"


def _outcome(cell: Cell, name: str) -> str:
    return "not believed" if name in cell.faults else data_tables.outcome(cell, name)[0].replace("_", " ")


def _result(cell: Cell, name: str, result: Result, baseline: str) -> dict[str, Any]:
    """One contender's answer to one workload. What needs a time is None for one without a believed one."""
    row = data_tables.result(cell, name)
    timed = row["median_s"] is not None
    span = seconds(result.latency) if timed and result.latency else None
    best = cell.ranking.best.contender if cell.ranking else None
    instead = f" (asked for {result.asked_kernel})" if result.fell_back else ""
    return {
        "contender": name,
        "outcome": _outcome(cell, name),
        "reason": row["reason"],
        "kernel": f"{result.kernel}{instead}" if result.kernel else None,
        "computes_in": row["computes_in"],
        "rounds": row["rounds"] or 0,
        "processes": span.processes if span else 0,
        "time": row["median_s"],
        "time_low": span.low if span else None,
        "time_high": span.high if span else None,
        "memory": row["peak_bytes"],
        "error": row["relative_error"] if timed else None,
        "allowed": row["error_budget"] if timed else None,
        "share": row["share_of_matmul"],
        "bandwidth": row["share_of_copy"],
        **_turned("baseline", row, "over_baseline", name == baseline),
        **_turned("best", row, "over_fastest", name == best),
    }


def _turned(against: str, row: Mapping[str, Any], over: str, itself: bool) -> dict[str, str | float | None]:
    """The verdict on a contender against another, and how many times as fast it is, with its interval."""
    ends = {"": "", "_low": "_high", "_high": "_low"}  # the slowest is the least times as fast
    ratios = {f"{against}{end}": row[f"{over}{of}"] for end, of in ends.items()}
    found = {name: 1 / ratio if ratio else None for name, ratio in ratios.items()}
    return {f"{against}_is": row[f"{over}_verdict"], **found, **({against: 1.0} if itself else {})}


def _fields(told: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Fields to filter by: their values as text, as numbers where they are, and the place of each workload's."""
    for name in dict.fromkeys(name for one in told for name in one):
        values = list(dict.fromkeys(one[name] for one in told))
        if name not in ALWAYS and len(values) < 2:
            continue
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        values.sort(key=None if numbers else str)
        yield {
            "name": name,
            "label": "n" if name == "keys" else name.replace("_", " "),
            "values": [_said(name, one) for one in values],
            "numbers": values if numbers else None,
            "of": [values.index(one[name]) for one in told],
        }


def _said(name: str, value: Any) -> str:
    if name in ("run", "heads", "keys", "direction"):
        return str(value).replace("_", " ")
    return one_line(condition(name, value, always=True) or str(value))


# -- small data --------------------------------------------------------------------------------------


def packed(data: Any) -> str:
    """`data` as JSON, packed by gzip, in base64: no text in it can end the element that it stands in.

    Raises ValueError for a number that is not finite.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 7, mtime=0)).decode()


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A column for each entry of the rows."""
    return {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def _column(values: list[Any]) -> Any:
    """Figures with five digits; texts, which repeat, each in one safe line as ``codes`` into ``values``."""
    if not any(isinstance(one, str) for one in values):
        return [figure(one) if isinstance(one, float) else one for one in values]
    places = {text: place for place, text in enumerate(dict.fromkeys(values))}
    return {
        "values": [None if one is None else one_line(one) for one in places],
        "codes": [places[one] for one in values],
    }


def figure(value: float) -> float | None:
    """`value` with five digits, one more than are ever written; None where it is negative or not finite.

    Rounded to fewer digits it is what `value` rounds to: no digit is made 0 or 5 by what was cut off behind it.
    """
    # as many digits as come back unchanged from a float
    return float(_FIVE.create_decimal(f"{value:.14e}")) if 0 <= value < math.inf else None


def packed_rounds(latencies: Sequence[Measurement], most: int) -> str:
    """The raw rounds of all results, `packed` in at most `most` letters: thinned evenly until they fit.

    ``all`` and ``shown`` tell how many rounds there were and are; ``every`` that one of so many is kept, 0 for none,
    and then there is nothing else.
    """
    count = sum(len(one.samples) for one in latencies)
    longest = max((len(one.samples) for one in latencies), default=0)
    step = 1
    while True:
        block = packed({"all": count, "every": step, **_rounds(latencies, step)})
        if len(block) <= most:
            return block
        if step >= longest:  # not even one of each fits
            return packed({"all": count, "shown": 0, "every": 0})
        step = min(max(step + 1, math.ceil(step * len(block) / max(most, 1))), longest)


def _rounds(latencies: Sequence[Measurement], step: int) -> dict[str, Any]:
    """Of every so many rounds the first: a row a result.

    ``times`` are whole numbers of 10^``exponent`` seconds, of four digits or more; ``disturbed`` are places among them.
    ``schedule`` is a place in ``schedules``, lists of rounds and of their processes: many results share one.
    """
    rows: Rows = []
    schedules: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for latency in latencies:
        samples, left_out = latency.by_round(), latency.disturbed_rounds
        numbers = tuple(sorted(samples)[::step])
        exponent = math.floor(math.log10(min((one for one in samples.values() if one > 0), default=1.0))) - 3
        taken = (numbers, tuple(latency.visits[one] for one in numbers))
        row = {
            "exponent": exponent,
            "times": [round(samples[one] / 10.0**exponent) for one in numbers],
            "disturbed": [at for at, one in enumerate(numbers) if one in left_out],
            "schedule": schedules.setdefault(taken, len(schedules)),
        }
        rows.append(row)
    return {"shown": sum(len(row["times"]) for row in rows), "schedules": list(schedules), **_columns(rows)}

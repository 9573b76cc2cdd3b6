"""What ``attnlab compare`` answers beside one race: the same at several values of one option, and what is predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from attnlab.backend.contender import with_setting
from attnlab.cli import options
from attnlab.cli.progress import note
from attnlab.cli.tables import show, table
from attnlab.judge.prediction import Prediction
from attnlab.problem.result import Outcome
from attnlab.problem.workload import Workload
from attnlab.race import prediction
from attnlab.race.compare import compare
from attnlab.race.series import Series
from attnlab.text import bytes_text, seconds_text


def raced_at_each(
    contenders: Sequence[str],
    said: Mapping[str, str | None],
    preset: str | None,
    name: str,
    values: Sequence[str],
    how: Mapping[str, Any],
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Race them at each of `values` of the option `name`, of threads in one race; print a table and a sentence.

    Exits with 1 where fewer than two could be measured at any of them.
    """
    with note(quiet=as_json or quiet) as on_event:
        if name == "threads":
            every = [with_setting(one, name, value) for value in values for one in contenders]
            whole = compare(every, options.read_workload(said, preset), on_event=on_event, **how)
            found, further = Series.of_settings(name, contenders, values, whole), whole.sentences()
        else:
            # all are read before the first is raced
            workloads = {value: options.read_workload({**said, name: value}, preset) for value in values}
            races = {
                value: compare(contenders, one, on_event=on_event, **how) for value, one in workloads.items()
            }
            found = Series(name, tuple(contenders), races)
            further = found.left_out()
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        if not quiet:
            headers = [name.replace("_", " "), *contenders, "first", "times as fast as the next"]
            show(table(headers, found.rows()))
        for line in (found.sentence(), *further):
            click.echo(line)
        if not quiet:
            click.echo(f"Repeat this: {options.typed()}")
    counts = [
        sum(each.outcome is Outcome.MEASURED for each in one.results) for one in found.comparisons.values()
    ]
    return 0 if max(counts) > 1 else 1


def predicted(
    contenders: Sequence[str], workload: Workload, how: Mapping[str, Any], *, as_json: bool, quiet: bool
) -> int:
    """Print what each contender would take for `workload`. Exits with 1 where nothing could be predicted."""
    with note(quiet=as_json or quiet) as on_event:
        found = prediction.predicted(contenders, workload, on_event=on_event, **how)
    if as_json:
        told = {"workload": workload.to_dict(), "contenders": [one.to_json() for one in found]}
        click.echo(json.dumps(told, allow_nan=False))
    else:
        rows = [
            [
                one.contender,
                *_cells(one.seconds, seconds_text),
                *_cells(one.peak, bytes_text),
                _from(one.seconds),
            ]
            for one in found
        ]
        headers = ["contender", "time", "95 % interval", "peak", "95 % interval", "measured up to"]
        show(table(headers, rows, f"{workload.label}, predicted, not run"))
        for one in found:
            for line in one.sentences(workload.device):
                click.echo(line)
        if not quiet:
            click.echo(f"Repeat this: {options.typed()}")
    return 0 if any(one.seconds for one in found) else 1


def _cells(one: Prediction | None, text: Any) -> tuple[str, str]:
    return ("", "") if one is None else (text(one.value), f"{text(one.low)} to {text(one.high)}")


def _from(one: Prediction | None) -> str:
    return "" if one is None else f"{one.longest}, at {one.lengths} lengths"

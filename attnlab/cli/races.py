"""``attnlab run``, ``compare``, ``selftest`` and ``plans``: races, and what the presets ask."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnlab.cli import options

if TYPE_CHECKING:
    from attnlab.runs.plan import Plan


@click.command(cls=options.WorkloadCommand)
@click.option("--plan", "file", type=options.PATH, metavar="FILE.toml", help="A plan file.")
@options.preset
@click.option(
    "--resume",
    type=options.PATH,
    metavar="DIR",
    help="Go on with an interrupted run; its plan stands in its folder, so no other option is taken.",
)
@options.chosen_backends("Contenders; all by default that set up fast, all for every one.")
@options.workload_options(grid=True)
@click.option(
    "--baseline",
    metavar="NAME",
    type=options.Name(options.backends),
    help="The contender that the others are compared with.",
)
@options.folders
@click.option(
    "--experiments",
    metavar="A,B",
    type=options.Names(options.experiments),
    help="The numerical chapter: names, or all, or none.",
)
@click.option(
    "--seconds", type=options.AMOUNT, help="Time for the rounds of one workload; long calls need more."
)
@click.option(
    "--processes",
    type=options.PROCESSES,
    metavar="N",
    help="Fresh processes of each contender; five by default.",
)
@click.option("--afresh", is_flag=True, default=None, help="Ask again for ceilings and the same bits.")
@options.out("A new folder for the run; reports/latest by default, where the run before is moved aside.")
@options.quiet
def run(resume: Path | None, out: Path | None, quiet: bool, **given: Any) -> int:
    """Measure a plan, write its report, and print the verdict.

    Options given here go before those of the plan file, and both before what a preset says. Ctrl-C keeps what is done
    and still writes the report; --resume goes on from there.
    """
    from attnlab.cli.progress import live_progress
    from attnlab.cli.tables import show_verdict
    from attnlab.report import content_of, write
    from attnlab.runs import execute
    from attnlab.workload.result import Outcome

    started = time.monotonic()
    if resume is None:
        asked = plan_of(**given)
    elif out or any(one not in (None, ()) for one in given.values()):
        raise ValueError(
            f"--resume takes no other option: {resume} holds the plan; start a new run for another one"
        )
    with live_progress(quiet=quiet) as progress:
        if resume is None:
            found = execute.run(asked, out, command=options.typed(), progress=progress)
        else:
            found = execute.resume(resume, progress=progress)
        progress.detail("writing the report")
        with execute.accounted(found, "report"):
            page = write(found)
        found.save()
    show_verdict(content_of(found))
    if not quiet:
        click.echo(f"\nThe report: {page}  ({time.monotonic() - started:.0f} s in all)")
    if not found.complete:
        click.echo(
            "Interrupted: the report covers what was measured until then. "
            f"Go on with: attnlab run --resume {shlex.quote(str(found.folder))}",
            err=True,
        )
        return 130
    if not any(one.outcome is Outcome.MEASURED for one in found.results):
        reasons = dict.fromkeys(one.reason for one in found.results)
        click.echo(f"Nothing was measured: {'; '.join(filter(None, reasons))}", err=True)
        return 1
    return 0


def plan_of(
    file: Path | None,
    *,
    backends: tuple[str, ...] | None = None,
    seconds: float | None = None,
    processes: int | None = None,
    folders: tuple[str, ...] = (),
    **given: Any,
) -> Plan:
    """The plan of a file, changed by what was typed. Raises ValueError, naming the file or the option."""
    from attnlab.race.limits import Limits
    from attnlab.runs.plan import Plan, read_plan
    from attnlab.workload.grid import by_option, read_options

    typed = read_options(given, grid=True)
    chosen: dict[str, Any] = read_plan(file) if file else {}
    limits: dict[str, Any] = {}
    if seconds is not None:
        limits["workload_seconds"] = seconds
    if processes is not None:
        limits |= {"processes": processes, "most_processes": processes}
    if limits:
        chosen["limits"] = replace(chosen.get("limits", Limits()), **limits)
    beside = {name: given.get(name) for name in ("preset", "baseline", "experiments", "afresh")}
    beside |= {"contenders": backends, "folders": folders or None}
    chosen |= {name: value for name, value in beside.items() if value is not None} | typed
    try:
        return Plan.grid(**chosen)
    except ValueError as fault:
        told = by_option(fault, typed, grid=True)
        raise (ValueError(f"{file}: {fault}") if file and told is fault else told) from None


@click.command(cls=options.WorkloadCommand)
@click.argument(
    "contenders",
    nargs=-1,
    required=True,
    metavar="CONTENDER CONTENDER...",
    type=options.Name(options.backends),
)
@click.option(
    "--with",
    "requirements",
    metavar="PACKAGE==VERSION",
    multiple=True,
    help="Race each contender with these versions, installed into an environment that is kept; repeatable.",
)
@options.preset
@options.workload_options(grid=False)
@click.option("--threads", metavar="N,...", help="Each contender with so many threads.")
@click.option(
    "--seconds",
    type=options.AMOUNT,
    help="Time for the rounds of the first five processes; 1 for each contender by default.",
)
@click.option(
    "--processes",
    type=options.PROCESSES,
    default=8,
    help="Fresh processes of each, at most; five where they decide it.",
)
@options.folders
@options.as_json
@options.quiet
def compare(
    contenders: tuple[str, ...],
    requirements: tuple[str, ...],
    preset: str | None,
    threads: str | None,
    seconds: float | None,
    processes: int,
    folders: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **said: str | None,
) -> int:
    """Race contenders on one workload; the first is the baseline.

    Prints ratios with intervals, a verdict in a sentence, and the command that repeats it. Exits with 1 where fewer
    than two could be measured, 2 where fewer than two load. One option may have several values, as --batch 1,4,16: who
    is first at each is told.
    """
    from attnlab.backends.contender import with_setting
    from attnlab.cli.progress import note
    from attnlab.cli.tables import comparison_table, medians, show
    from attnlab.race.compare import compare as race
    from attnlab.workload.grid import several_values
    from attnlab.workload.result import Outcome

    if requirements:
        contenders = tuple(with_setting(one, "with", asked) for one in contenders for asked in requirements)
    several = several_values({**said, "threads": threads})
    if threads and not several:
        contenders = tuple(with_setting(one, "threads", threads) for one in contenders)
    how: dict[str, Any] = {"folders": folders, "seconds": seconds, "processes": processes}
    if several:
        from attnlab.cli.questions import answer

        return answer(contenders, said, preset, several, as_json=as_json, quiet=quiet, **how)
    workload, chosen, words = options.read_workload(said, preset)
    with note(quiet=as_json or quiet) as on_event:
        found = race(*contenders, workload=workload, on_event=on_event, words=words, **how)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        some = any(one.latency for one in found.results)
        figures = comparison_table(found) if some and not quiet else medians(found)
        show("\n".join(filter(None, [chosen, *found.sentences()])), figures)
        if some and not quiet:
            click.echo(f"\nRepeat this: {found.command}")
    return 0 if sum(one.outcome is Outcome.MEASURED for one in found.results) > 1 else 1


@click.command()
@options.chosen_backends("Backends to test with; all that are there by default.")
@click.option(
    "--conditions",
    default="idle,cpu,memory",
    type=options.Names(("idle", "cpu", "memory")),
    help="On the machine as it is, beside a process that takes a core, one that takes the memory's bandwidth.",
)
@click.option("--seconds", type=options.AMOUNT, default=5.0, help="Time for the rounds of one race.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports/selftest"),
    metavar="DIR",
    help="Where selftest.md and selftest.json go.",
)
@options.as_json
@options.quiet
def selftest(backends: tuple[str, ...] | None, out: Path, as_json: bool, quiet: bool, **how: Any) -> int:
    """Test the instrument on contenders whose ratio is known.

    Races the same contender twice, known slow-downs, and everything against itself alone. Takes a quarter of an hour.
    Exits with 1 where an answer is wrong: then do not believe small differences here.
    """
    from attnlab.cli.progress import note
    from attnlab.cli.tables import selftest_tables, show
    from attnlab.race.selftest import selftest as put_to_the_test
    from attnlab.report.selftest_page import page, verdict

    out.mkdir(parents=True, exist_ok=True)  # before a quarter of an hour is spent
    with note(quiet=as_json or quiet) as on_event:
        found = put_to_the_test(names=backends or (), on_event=on_event, **how)
    (out / "selftest.json").write_text(json.dumps(found.to_json(), indent=1), encoding="utf-8")
    (out / "selftest.md").write_text(page(found), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        show("\n".join(verdict(found)), *([] if quiet else selftest_tables(found)))
        if not quiet:
            click.echo(f"\nThe page: {out / 'selftest.md'}  ({found.seconds:.0f} s in all)")
    return 0 if found.passed else 1


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME[/PHASE]]...", type=options.Name(options.presets))
@options.as_json
def plans(names: tuple[str, ...], as_json: bool) -> int:
    """List the presets; of those named, the cost at each length.

    FLOPs are those of the matrix products over the pairs that the mask keeps; the score matrix is what an
    implementation holds that makes it whole; least bytes are the inputs read once and the results written once. In
    float32, as presets are measured on the CPU unless --dtypes says otherwise.
    """
    from attnlab.cli.tables import costs_tables, presets_table, show
    from attnlab.runs.presets import Part, chosen_parts, presets

    parts = chosen_parts(",".join(names or presets()))
    asked: dict[str, list[Part]] = {}
    for part in parts:
        asked.setdefault(part.preset, []).append(part)
    if as_json:
        costs = ("flops", "score_bytes", "least_bytes")
        plain = [
            {key: getattr(presets()[name], key) for key in ("name", "title", "source", "note")}
            | {
                "parts": [
                    {
                        "name": part.path,
                        "workloads": [
                            one.to_dict() | {key: getattr(one, key) for key in costs}
                            for one in part.workloads()
                        ],
                    }
                    for part in mine
                ]
            }
            for name, mine in asked.items()
        ]
        click.echo(json.dumps(plain, ensure_ascii=False))
    elif names:
        for name, mine in asked.items():
            one = presets()[name]
            note = f"\nNote: {one.note}" if one.note else ""
            show(f"{one.title}\nSource: {one.source}.{note}", *costs_tables(mine))
    else:
        show(
            presets_table(asked),
            "h32/8: 32 heads, 8 of key and value; d128: of dimension 128; in every part, as far as all are alike.\n"
            "One of them with its costs and its source: attnlab plans NAME.\n"
            "To measure it: attnlab run --preset NAME, or NAME/PART for a part of it.",
        )
    return 0

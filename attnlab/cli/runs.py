"""The commands ``run``, ``compare``, ``gate`` race; ``show``, ``report``, ``diff``, ``collect`` read stored runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnlab import lab
from attnlab.backends.contender import parse_all, percentage, require_two, setting_of
from attnlab.backends.discovery import backends as there
from attnlab.backends.discovery import on_request
from attnlab.cli import options
from attnlab.cli.progress import progress
from attnlab.race.admission import Limits
from attnlab.race.compare import compare as race
from attnlab.race.sittings import Record
from attnlab.report import REPORT, bmf, comparison_text, to_json, verdict_text, write
from attnlab.report.explore import PAGE
from attnlab.report.frames import differences
from attnlab.report.render import fill, print_markdown
from attnlab.runs import diff as two
from attnlab.runs import execute
from attnlab.runs import gate as regression
from attnlab.runs.plan import Plan, chosen_parts, presets, read_plan
from attnlab.runs.store import Run, read_run
from attnlab.runs.store import collect as join
from attnlab.system import terminable
from attnlab.text import finite, one_line
from attnlab.workload.distributions import SUFFIX
from attnlab.workload.grid import by_option, read_options
from attnlab.workload.result import Outcome


@click.command(
    cls=options.Command,
    common=("backends", "lengths", "heads", "dtypes", "preset", "seconds", "out", "resume"),
)
@click.option("--plan", "file", type=options.PATH, metavar="FILE.toml", help="A plan file.")
@options.preset
@click.option("--shard", metavar="N/COUNT", help="Measure one part of the plan's workloads, e.g. 3/16.")
@click.option("--shards", type=options.COUNT, help="Measure the plan in so many parts, each a run in --out.")
@click.option("--cluster", type=click.Choice(["slurm", "local"]), help="Runs the shards (default: local).")
@click.option("--slurm", metavar="KEY=VALUE", multiple=True, help="Option for Slurm, e.g. partition=cpu.")
@click.option("--list-presets", is_flag=True, help="List the presets; with --preset also what they cost.")
@click.option(
    "--resume", type=options.PATH, metavar="DIR", help="Continue this run; no other option is taken."
)
@options.chosen_backends(help="Backends to race (default: those that start quickly; 'all': every one).")
@options.workload_options(grid=True)
@click.option("--baseline", metavar="NAME", help="The contender that the others are compared with.")
@options.folders
@options.names("--experiments", metavar="A,B", help="Numerical experiments to run: names, all or none.")
@click.option("--seconds", type=options.AMOUNT, help="Time for each workload, in all its visits.")
@click.option("--visits", type=options.VISITS, metavar="N", help="Visits to each workload, at most.")
@click.option("--afresh", is_flag=True, default=None, help="Measure ceilings again.")
@options.out(help="A new folder (default: reports/latest; an earlier run there is moved aside).")
@options.quiet
def run(
    list_presets: bool,
    resume: Path | None,
    out: Path | None,
    quiet: bool,
    shard: str | None,
    shards: int | None,
    cluster: str | None,
    slurm: tuple[str, ...],
    **given: Any,
) -> int:
    """Measure a plan and write its report.

    Options override the plan file; both override the preset. Ctrl-C keeps what was measured and writes the report;
    --resume continues the run.
    """
    if list_presets:  # all presets, or those of --preset with their cost at each length
        parts = chosen_parts(given["preset"]) if given["preset"] else ()
        known = [presets()[one] for one in dict.fromkeys(part.preset for part in parts) or presets()]
        print_markdown(fill("presets.md.j2", known=known, parts=parts))
        return 0
    spread = (shard, shards, cluster, slurm)
    if resume and any(one not in (None, ()) for one in (out, *spread, *given.values())):
        raise ValueError(f"--resume takes no other option: {resume} holds the plan; start a new run instead")
    unused = (cluster, slurm) if shards is None else (shard, slurm and cluster != "slurm")
    if any(unused):
        raise ValueError("--cluster needs --shards, --slurm needs --cluster slurm, --shard excludes them")
    if resume is None:
        asked = plan_of(**given)
        if shards is not None:
            return _run_shards(asked, shards, out, cluster, slurm)
        if shard is not None:
            asked = asked.shard(shard)
    import pandas  # noqa: F401 (imported now: if Ctrl-C interrupted it between two laps, no report could be written)

    with progress(quiet=quiet) as shown:
        how: dict[str, Any] = {"progress": shown, "on_lap": partial(_report, shown)}
        if resume is None:
            found = execute.run(asked, out, command=options.typed(), **how)
        else:
            found = execute.resume(resume, **how)
    print_markdown(verdict_text(found))
    if not quiet:
        click.echo(f"\nThe report: {found.folder / REPORT}")
    if not found.complete:
        again = f"attnlab run --resume {shlex.quote(str(found.folder))}"
        click.echo(f"Interrupted. The report covers what was measured. Continue with: {again}", err=True)
        return 130
    if not any(one.outcome is Outcome.MEASURED for one in found.results):
        reasons = dict.fromkeys(one.reason for one in found.results)
        click.echo(f"Nothing was measured: {'; '.join(filter(None, reasons))}", err=True)
        return 1
    return 0


def _report(shown: execute.Progress, found: Run, ended: bool) -> None:
    """Write the report. At the end, run the plan's experiments first, through every backend that was right.

    If the experiments are interrupted, the run counts as incomplete, and --resume runs those that are missing.
    """
    # there are no predictions for lower precision, and most backends that race only if they are named compile for long
    right = [one for one in found.results if one.outcome is Outcome.MEASURED and one.computes_in is None]
    raced = dict.fromkeys(one.backend for one in right)
    names = [name for name in raced if not on_request(name, found.plan.folders)]
    total = len(found.plan.workloads)
    how: dict[str, Any] = {"backends": names, "folders": found.plan.folders}
    how["stage"] = lambda name, **_: shown.stage(f"numerics: {name}", done=total, total=total)
    try:
        if names and ended and found.complete:
            with execute.accounted(found, "numerics"), terminable():
                lab.run_chapter(found.folder, found.plan.experiments, **how)
    except KeyboardInterrupt:
        found.complete = False
    shown.detail("writing the report")
    with execute.accounted(found, "report"):
        write(found, explore=ended)


def _run_shards(plan: Plan, shards: int, out: Path | None, cluster: str | None, slurm: Sequence[str]) -> int:
    """Run the shards that are missing, wait for their end, and print which failed."""
    if out is None:
        raise ValueError("--shards needs --out FOLDER: each shard is a run in a folder of its own there")
    if bad := [one for one in slurm if "=" not in one]:
        raise ValueError(f"--slurm must be KEY=VALUE, e.g. partition=cpu, got {bad[0]!r}")
    words = options.words_without("--shards", "--cluster", "--slurm", "--out")[1:]
    jobs = list(execute.missing(plan, [one for one in words if one != "--quiet"], shards, out))
    click.echo(f"{shards - len(jobs)} of {shards} shards are complete; {len(jobs)} to run", err=True)
    parameters = dict(one.split("=", 1) for one in slurm) if cluster == "slurm" else None
    if execute.carry_out(
        jobs, out, slurm=parameters, tell=lambda text: click.echo(f"attnlab: {text}", err=True)
    ):
        click.echo(f"attnlab: {execute.AGAIN}", err=True)
        return 1
    click.echo(f"All shards are complete. To join them: attnlab collect {shlex.quote(str(out))}")
    return 0


def plan_of(
    file: Path | None,
    *,
    backends: tuple[str, ...] | None = None,
    seconds: float | None = None,
    visits: int | None = None,
    folders: tuple[str, ...] = (),
    **given: Any,
) -> Plan:
    """The plan of a file, with the options that were typed. Raises ValueError, naming the file or the option."""
    typed = read_options(given, grid=True)
    chosen: dict[str, Any] = read_plan(file) if file else {}
    least = None if visits is None else min(visits, Limits().visits)
    asked = {"workload_seconds": seconds, "visits": least, "most_visits": visits}
    if limits := {name: value for name, value in asked.items() if value is not None}:
        chosen["limits"] = replace(chosen.get("limits", Limits()), **limits)
    beside = {name: given.get(name) for name in ("preset", "baseline", "experiments", "afresh")}
    beside |= {"contenders": backends, "folders": folders or None}
    chosen |= {name: value for name, value in beside.items() if value is not None} | typed
    try:
        lab.chosen_experiments(chosen.get("experiments", ()))
        return Plan.grid(**chosen)
    except ValueError as fault:
        told = by_option(fault, typed, grid=True)
        raise (ValueError(f"{file}: {fault}") if file and told is fault else told) from None


@click.command(
    cls=options.Command,
    common=("length", "heads", "causal", "dtype", "direction", "preset", "seconds", "as_json"),
)
@click.argument("contenders", nargs=-1, required=True, metavar="CONTENDER CONTENDER...")
@options.preset
@options.workload_options(grid=False)
@click.option("--seconds", type=options.AMOUNT, help="Time for all visits (default: 10).")
@click.option("--visits", type=options.VISITS, help="Number of visits, whatever time they take.")
@click.option("--afresh", is_flag=True, help="Do not count earlier calls on this machine.")
@click.option("--sittings", is_flag=True, help="List earlier calls on this machine; race nothing.")
@options.folders
@options.as_json
@options.quiet
def compare(contenders: tuple[str, ...], preset: str | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Race backends on one workload; the first is the baseline.

    A contender is a backend, and may have settings: torch_sdpa[threads=1], torch_sdpa[with=torch==2.12.0]. Exits with 1
    if fewer than two contenders could be measured, with 2 if fewer than two can run here.
    """
    if given.pop("sittings"):
        known = Record(tell=partial(click.echo, err=True)).lines()
        names = {one.name for one in parse_all(contenders)}
        # for one contender: all its calls; for several: the calls between them
        lines = [one for one in known if (both := {one.baseline, one.contender}) <= names or names <= both]
        if as_json:
            click.echo(msgspec.json.encode(lines))
        else:
            print_markdown(fill("sittings.md.j2", lines=lines))
        return 0
    how = {name: given.pop(name) for name in ("seconds", "visits", "folders", "afresh")}
    workload, chosen, words = options.read_workload(given, preset)
    with progress(quiet=as_json or quiet) as shown:
        how |= {"words": words, "on_event": shown.detail, "interruptible": True}
        found = race(*contenders, workload=workload, **how)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        print_markdown(comparison_text(found, chosen=chosen, quiet=quiet))
    return 130 if found.interrupted else int(sum(bool(one.latency) for one in found.results) < 2)


#: the workloads that a gate races by default
_GATE_GRID = {"lengths": "128,512,1024", "heads": "8"}


def _percent(context: click.Context, param: click.Parameter, text: str) -> float:
    """Reads ``3%`` or ``3`` as 0.03."""
    if (found := percentage(text)) is None:
        raise ValueError(f"{param.opts[0]} must be a percentage, e.g. 3%, got {text!r}")
    return found / 100


#: opened before the race, so that a wrong path is reported at once
_APPENDED = click.File("a", encoding="utf-8", lazy=False)
_margin = partial(click.option, callback=_percent, metavar="%")


@click.command(
    cls=options.Command,
    common=("backends", "lengths", "heads", "folders", "slower", "unseen", "summary", "as_json"),
)
@click.argument("base")
@click.argument("head")
@click.option("--plan", "file", type=options.PATH, metavar="FILE.toml", help="A plan file: its workloads.")
@options.preset
@options.chosen_backends(help="What is raced; the backends of --implementations by default.")
@options.workload_options(grid=True, defaults=_GATE_GRID)
@options.folders
@_margin("--margin", "slower", default="3%", help="A regression is surely slower, perhaps by this.")
@_margin("--memory-margin", "memory", default="5%", help="The same for peak memory.")
@_margin("--setup-margin", "setup", default="50%", help="The same for set-up.")
@_margin("--unseen", default="5%", help="No verdict if a larger slowdown could be missed.")
@click.option("--allow-kernel-change", "kernel_may_change", is_flag=True, help="Another kernel is allowed.")
@click.option("--seconds", type=options.AMOUNT, default=20.0, help="Time for one race.")
@click.option("--visits", type=options.VISITS, metavar="N", default=50, help="Most visits to a workload.")
@click.option("--summary", type=_APPENDED, metavar="FILE", help="Append the verdict in Markdown.")
@options.as_json
@options.quiet
def gate(base: str, head: str, summary: IO[str] | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Race two versions: did it become slower, bigger or wrong?

    BASE and HEAD may be commits, branches or tags of the git repository here, or . for the working tree as it is. They
    may be paths of interpreters or virtual environments. Or they may be requirements such as torch==2.11.0, which are
    installed over this environment's packages. The default workloads have 8 heads and lengths 128, 512 and 1024.

    Exits with 0 if nothing regressed, and reports how large a slowdown it could have missed. Exits with 1 if two races
    find the same regression. Exits with 3 if there is no verdict, so that a pipeline can try again.
    """
    sides, seconds, visits = (setting_of(base), setting_of(head)), given.pop("seconds"), given.pop("visits")
    require_two(*sides)
    margins = regression.Margins(**{one.name: given.pop(one.name) for one in fields(regression.Margins)})
    if not (given["file"] or given["preset"] or SUFFIX in (given["distribution"] or "")):
        given |= {name: given[name] or text for name, text in _GATE_GRID.items()}
    plan = plan_of(**given)
    raced = plan.contenders or tuple(sorted({*there(plan.folders)} - {*there()}))
    if not raced:
        raise ValueError("name what is raced: --backends A,B, or --implementations DIR with backend files")
    if visits < regression.LEAST_VISITS:
        raise ValueError(f"--visits must be at least {regression.LEAST_VISITS} for a gate, got {visits}")
    most = {"visits": min(regression.LIMITS.visits, visits), "most_visits": visits}
    limits = replace(regression.LIMITS, workload_seconds=seconds, **most)
    how: dict[str, Any] = {"folders": plan.folders, "margins": margins, "limits": limits}
    with progress(quiet=as_json or quiet) as shown:
        how |= {"on_event": shown.detail, "interruptible": True}
        found = regression.gate(*sides, raced, plan.workloads, **how)
    if as_json:
        click.echo(msgspec.json.encode(found.to_json()))  # msgspec writes null for nan
    else:
        print_markdown(fill("gate.md.j2", found=found, quiet=quiet))
    if summary:
        try:
            summary.write(fill("gate.md.j2", found=found, quiet=False))
            summary.flush()
        except OSError as fault:  # the exit status still shows the verdict
            click.echo(f"attnlab: {summary.name} cannot be written: {fault.strerror}", err=True)
    return regression.STATUS[found.found]


# -- stored runs --------------------------------------------------------------------------------------


@click.command(cls=options.Command)
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@options.out(help="Where to write (default: RUN_DIR).")
def report(folder: Path, out: Path | None) -> None:
    """Write the report of a stored run again.

    Writes report.md, details.md, figures/ and the page to explore, explore.html, from the stored results alone.
    """
    found = read_run(folder)
    page = write(found, out)
    print_markdown(verdict_text(found))
    click.echo(f"\nThe report: {page}\nThe page to explore: {page.with_name(PAGE)}")


@click.command(cls=options.Command)
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@click.option(
    "--format", "form", type=click.Choice(["text", "md", "bmf"]), default="text", help="bmf: Bencher."
)
@options.as_json
def show(folder: Path, form: str, as_json: bool) -> None:
    """Print the verdict and the table of a stored run.

    Prints what `attnlab run` prints at its end; for an interrupted run, what exists. Writes no files.
    """
    found = read_run(folder)
    if as_json:
        click.echo(json.dumps(to_json(found), allow_nan=False))
    elif form == "bmf":
        click.echo(json.dumps(bmf(found), allow_nan=False))
    else:
        (click.echo if form == "md" else print_markdown)(verdict_text(found))


@click.command(cls=options.Command)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=options.PATH)
@click.option("-o", "--out", type=options.PATH, default="results.parquet", help="A Parquet file.")
def collect(folders: tuple[Path, ...], out: Path) -> int:
    """Write the results of many runs into one table.

    Takes every run in and below the folders; of an interrupted run, the finished part. A row holds one measurement with
    its workload, contender, run and machine. A result without measurements has one row too. An existing file is
    replaced. Exits with 1 if a run could not be read; the other runs are still written.
    """
    runs, rows, skipped = join(folders, out)
    for fault in skipped:
        click.echo(f"attnlab: skipped: {one_line(fault)}", err=True)
    click.echo(f"{out}: {rows} rows of {runs} runs")
    return int(bool(skipped))


@click.command(cls=options.Command)
@click.argument("first", metavar="RUN", type=options.PATH)
@click.argument("second", metavar="RUN", type=options.PATH)
@click.option("--anyway", is_flag=True, help="Show runs of different conditions too, without verdicts.")
@options.as_json
def diff(first: Path, second: Path, anyway: bool, as_json: bool) -> None:
    """Show two stored runs side by side.

    The runs must be of one machine and one plan, e.g. with two library versions. They did not race each other, so a
    ratio of their times has no interval and no verdict. Within a run, each contender raced the baseline. "changed"
    means that the two runs' intervals of this speedup lie apart by more than the margin.
    """
    found = two.diff(read_run(first), read_run(second), anyway=anyway)
    if as_json:
        click.echo(json.dumps(finite(asdict(found))))
    else:
        print_markdown(fill("diff.md.j2", found=found, rows=differences(found)))

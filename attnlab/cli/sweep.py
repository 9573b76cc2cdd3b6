"""``attnlab sweep``: a plan over many machines, cut into shards that jobs carry out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from attnlab.cli import options
from attnlab.cli.races import plan_of
from attnlab.errors import NotStored, Unavailable

if TYPE_CHECKING:
    from attnlab.runs.plan import Plan
    from attnlab.runs.sweep_cutting import Costs
    from attnlab.runs.sweep_folder import Sweep
    from attnlab.runs.sweep_slurm import Asked

_COUNT, _AMOUNT = options.COUNT, options.AMOUNT
_DEFAULT = Path("reports/sweep")
#: workloads to a shard where nothing is said: starting contenders and measuring ceilings takes as long as several
_WORKLOADS_A_SHARD = 16
#: headings of its options
_GROUPS = {
    "The cluster": ("cluster", "partition", "constraint", "further", "hours", "at_once", "detach"),
    "The cut": ("shards", "hours_per_shard", "only_cut", "shard"),
    "What it will take": ("only_estimate", "learned_from", "sample", "machines", "price_per_hour"),
    "Going on": ("only_status", "only_report", "resume"),
}


@contextmanager
def _kept() -> Iterator[None]:
    """One line where the disk is full or the sweep's folder has become unreachable."""
    try:
        yield
    except BrokenPipeError:  # of whoever reads what is printed
        raise
    except OSError as fault:
        where = "" if fault.filename is None else f" ({fault.filename})"
        raise NotStored(
            f"the sweep stops: {fault.strerror}{where}; what is done is kept, --resume goes on"
        ) from None


@click.command(cls=options.GroupedCommand, groups=_GROUPS)
@click.argument("plans", nargs=-1, type=options.PATH, metavar="[PLAN.toml]...")
@click.option("--cluster", type=click.Choice(["slurm", "local"]), default="local", help="Slurm, or here.")
@click.option("--out", type=options.PATH, default=_DEFAULT, help="Its folder: all machines see it.")
@click.option("--partition", metavar="NAME", help="Slurm's partition.")
@click.option("--constraint", metavar="FEATURES", help="What nodes must have, as Slurm's --constraint.")
@click.option(
    "--sbatch", "further", multiple=True, metavar="NAME=VALUE", help="An option of sbatch; repeatable."
)
@click.option("--job-hours", "hours", type=_AMOUNT, default=24.0, help="The most that a job may take.")
@click.option("--at-once", type=_COUNT, default=1000, help="Nodes at work at once.")
@click.option(
    "--shards", type=_COUNT, metavar="N", help="Cut it into N parts; one for 16 workloads by default."
)
@click.option("--hours-per-shard", type=_AMOUNT, metavar="H", help="Cut it into parts of about so long.")
@click.option("--cut", "only_cut", is_flag=True, help="Cut the plan and stop: for any other cluster.")
@click.option("--shard", type=int, metavar="N", help="Do shard N of the sweep in --out, as its job does.")
@click.option("--estimate", "only_estimate", is_flag=True, help="What it will take, and stop.")
@click.option(
    "--from", "learned_from", multiple=True, type=options.PATH, help="A run to learn from; repeatable."
)
@click.option("--sample", type=_COUNT, default=8, help="Or workloads to measure here for that.")
@click.option("--machines", type=_COUNT, metavar="N", help="For --estimate: at once; one a shard by default.")
@click.option("--price-per-hour", type=_AMOUNT, metavar="P", help="For --estimate: of one, in any currency.")
@click.option("--detach", is_flag=True, help="Submit the jobs and return; --status and --resume go on.")
@click.option("--status", "only_status", is_flag=True, help="How far the sweep in --out has come.")
@click.option("--report", "only_report", is_flag=True, help="Reports of what is done in --out, and stop.")
@click.option("--resume", is_flag=True, help="Go on with the sweep in --out: jobs for all that is left.")
@options.as_json
@_kept()
def sweep(
    plans: tuple[Path, ...],
    cluster: Literal["slurm", "local"],
    out: Path,
    further: tuple[str, ...],
    shards: int | None,
    hours_per_shard: float | None,
    only_cut: bool,
    only_estimate: bool,
    learned_from: tuple[Path, ...],
    sample: int,
    machines: int | None,
    price_per_hour: float | None,
    shard: int | None,
    detach: bool,
    only_status: bool,
    only_report: bool,
    resume: bool,
    as_json: bool,
    **limits: Any,
) -> int:
    """Measure a plan on many machines, in shards.

    A shard is whole workloads, measured by `attnlab run` in a job of its own.

    Several plans, which may differ in their workloads alone, make one sweep.

    A job has its node alone and holds a lock on the host, so nothing else of attnlab measures there meanwhile. Ctrl-C
    asks the jobs to end and keeps what is done; --resume goes on.
    """
    from attnlab.runs.sweep_cutting import joined
    from attnlab.runs.sweep_folder import new_sweep, read_sweep
    from attnlab.runs.sweep_job import work
    from attnlab.runs.sweep_slurm import Asked

    going_on = only_status or only_report or resume or shard is not None
    if going_on and plans:
        raise ValueError(
            f"--status, --report, --resume and --shard go on with the sweep in {out}, which holds its plan: give none"
        )
    if not going_on and not plans:
        raise ValueError(
            "a sweep needs a plan: attnlab sweep PLAN.toml; --status and --resume go on with one"
        )
    if only_status or only_report:
        return _told(read_sweep(out), as_json, report=only_report)
    if shard is not None:
        outcome = work(out, shard)
        reason = (read_sweep(out).shard(shard).outcome() or {}).get("reason")
        click.echo(f"shard {shard}: {outcome}" + (f": {reason}" if reason else ""))
        return {"complete": 0, "interrupted": 130}.get(outcome, 1)
    for one in further:
        if "=" not in one:
            raise ValueError(f"--sbatch takes NAME=VALUE, as in --sbatch qos=low, got {one!r}")
    if detach and cluster != "slurm":
        raise ValueError("--detach is for Slurm: give --cluster slurm too")
    asked = Asked(cluster=cluster, further=dict(one.split("=", 1) for one in further), **limits)
    if not plans:
        found = read_sweep(out)
        found.require_version()
        return _carried_out(found.begin_again(), asked, detach)
    whole = joined({str(file): plan_of(file) for file in plans})
    if not only_estimate and (machines, price_per_hour) != (None, None):
        raise ValueError("--machines and --price-per-hour are for --estimate: give it too")
    if shards is not None and hours_per_shard is not None:
        raise ValueError("--shards and --hours-per-shard say the same thing: give one of them")
    if shards is None:
        shards = -(-len(whole.workloads) // _WORKLOADS_A_SHARD)
    seconds = None
    if only_estimate or learned_from or hours_per_shard is not None:
        costs = _costs(whole, learned_from, out, sample)
        seconds = costs.of_plan(whole)
        if hours_per_shard is not None:
            shards = math.ceil(max(1, min(len(whole.workloads), sum(seconds) / (3600 * hours_per_shard))))
        if only_estimate:
            return _estimated(whole, costs, seconds, shards, machines, price_per_hour, as_json)
    found = new_sweep(whole, out, shards, seconds)
    click.echo(f"{_sizes(found.told.sizes)}: {out}", err=True)
    return 0 if only_cut else _carried_out(found, asked, detach)


def _sizes(shards: Sequence[int]) -> str:
    from attnlab.text import counted

    return f"{counted(sum(shards), 'workload')} in {counted(len(shards), 'shard')}"


def _costs(plan: Plan, runs: tuple[Path, ...], out: Path, count: int) -> Costs:
    """What races cost, by these runs, or by a sample of the plan that is measured here, once."""
    from attnlab.cli.progress import live_progress
    from attnlab.runs import execute
    from attnlab.runs.lock import host_held
    from attnlab.runs.store import RUN_FILE, read_run
    from attnlab.runs.sweep_cutting import learned, sample

    if runs:
        return learned([read_run(one) for one in runs])
    place, asked = out.with_name(f"{out.name}-sample"), sample(plan, count)
    there = read_run(place) if (place / RUN_FILE).is_file() else None
    if there is not None and there.plan != execute.resolve(asked)[0]:
        raise ValueError(
            f"{place} holds a sample of another plan: give another --out, or learn from it with --from {place}"
        )
    if there is not None and there.complete:
        return learned([there])
    click.echo(
        f"No --from: {len(asked.workloads)} workloads of the plan are measured here, into {place}", err=True
    )
    with host_held(wait=False), live_progress() as progress:
        if there is not None:
            found = execute.resume(place, progress=progress)
        else:
            found = execute.run(asked, place, command="attnlab sweep --estimate", progress=progress)
    if not found.complete:
        raise KeyboardInterrupt
    return learned([found])


def _estimated(
    plan: Plan,
    costs: Costs,
    seconds: Sequence[float],
    shards: int,
    machines: int | None,
    price: float | None,
    as_json: bool,
) -> int:
    """Print what the plan will take."""
    from attnlab.runs.sweep_cutting import cut
    from attnlab.runs.sweep_folder import duration
    from attnlab.text import counted, percent

    taken, cuts = dict(zip(plan.workloads, seconds, strict=True)), cut(plan, shards, seconds)
    parts = [costs.overhead + sum(taken[one] for one in part.workloads) for part in cuts]
    machines, hours = machines or len(parts), sum(parts) / 3600
    wall = max(*parts, sum(parts) / machines)  # as many machines as shards: the longest one
    if as_json:
        told = {"seconds": seconds, "shard_seconds": parts, "machines": machines, "hours": hours}
        told |= {"wall_hours": wall / 3600, "money": None if price is None else hours * price}
        click.echo(json.dumps({**told, "error": costs.off}))
        return 0
    money = "" if price is None else f", which cost {hours * price:.3g} at {price:g} an hour"
    click.echo(
        f"{_sizes([len(part.workloads) for part in cuts])}: {hours:.3g} machine hours{money}; "
        f"on {counted(machines, 'machine')} of that kind about {duration(wall)}\n"
        f"Starts and calls added up, as measured on {' and '.join(costs.machines)}; half of the races measured there "
        f"come out to within {percent(costs.off)}. A shard takes {costs.overhead:.0f} s beside its races."
    )
    return 0


def _carried_out(found: Sweep, asked: Asked, detach: bool) -> int:
    """Jobs for all shards, seen through; then the report. Returns the exit status."""
    from attnlab.cli.progress import sweep_progress
    from attnlab.runs.sweep_job import on_this_host
    from attnlab.runs.sweep_slurm import Jobs

    jobs = Jobs(found, asked) if asked.cluster == "slurm" else None
    if detach and jobs is not None:
        jobs.submit()
        click.echo(
            f"Submitted. How far it is: attnlab sweep --status --out {found.folder}; "
            f"to see it through to its report: {asked.resume(found.folder)}",
            err=True,
        )
        return 0
    try:
        with sweep_progress() as tell:
            if jobs is not None:
                jobs.see_through(tell)
            else:
                on_this_host(found, tell)
    except KeyboardInterrupt:
        _told(found, as_json=False)
        click.echo(
            f"Interrupted; all that is done is kept. Go on with: {asked.resume(found.folder)}", err=True
        )
        return 130
    return _told(found, as_json=False, report=True)


def _report(found: Sweep) -> None:
    """A report for every kind of machine and a page of all, from the shards' runs, which are collected in a dataset."""
    from attnlab.report import content_of, explore_page, write
    from attnlab.runs import dataset
    from attnlab.runs.sweep_folder import by_machine

    machines, known = by_machine(found), []
    for machine, run in machines.items():
        content = content_of(run)
        known.append(content.analysis)
        click.echo(f"The report of machine {machine}: {write(run, content=content)}")
    if not machines:
        return
    page = explore_page.write(list(machines.values()), found.folder / explore_page.PAGE, known)
    click.echo(f"The page to explore: {page}")
    place = found.folder / "dataset"
    try:
        added = sum(one.added for one in dataset.collect(found.runs(), place))
    except Unavailable as missing:
        click.echo(f"No dataset: {missing}; then attnlab sweep --report --out {found.folder}", err=True)
    else:
        click.echo(f"The dataset: {place} ({added} workloads added)")


def _told(found: Sweep, as_json: bool, *, report: bool = False) -> int:
    """Print how far a sweep is, with its `report` before; the status is 1 where a shard ended and is not complete."""
    from attnlab.runs.sweep_folder import status

    if report:
        _report(found)
    now = status(found)
    if as_json:
        told = asdict(now)
        click.echo(json.dumps({**told, "shards": told.pop("states")}))
    else:
        click.echo("\n".join([now.summary(), *now.reasons()]))
    return 1 if any(one.state in ("killed", "refused", "failed") for one in now.states) else 0

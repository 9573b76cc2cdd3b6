"""A sweep in one folder: the plan cut into shards, what happened to each, how far it is, and what came of it.

    sweep.json             format, version of attnlab, numbers; written whole
    plan.toml              the whole plan: `attnlab run --plan` of it is the same without a sweep
    shards/0007/plan.toml  the plan of one shard; `attnlab run --plan` of it is what its job does
    shards/0007/run-1      what came of it: a plain run; run-2 where another kind of machine went on
    shards/0007/journal.jsonl  what happened, a line an event, appended
    machines/NAME          the results of all shards that were raced on one kind of machine, as one run
    jobs/                  what submitit keeps, with the logs

Nothing but files: any number of hosts that see the folder can work on it, and any program can read it.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attnlab.environment import fingerprint
from attnlab.plain import decode
from attnlab.runs.execute import resolve
from attnlab.runs.lock import is_held
from attnlab.runs.plan import Plan, plan_text, read_plan
from attnlab.runs.store import RESULTS, RUN_FILE, Run, append, read_run, require_format, write_json
from attnlab.runs.sweep_cutting import asking, cut, only, origins_of
from attnlab.text import one_line, without_home
from attnlab.workload.workload import Workload

FORMAT = 1
SWEEP_FILE, PLAN_FILE, JOURNAL = "sweep.json", "plan.toml", "journal.jsonl"
#: how a shard may end
OUTCOMES = ("complete", "killed", "refused", "failed")
#: of shards that ended for one reason, so many are named
_NAMED = 5


@dataclass(frozen=True)
class Told:
    """What ``sweep.json`` says beside its format.

    sizes : workloads of each shard. series : how often the sweep was begun or gone on with; a shard that ended without
    being complete has another try in the next series.
    """

    attnlab: str
    cut: str
    contenders: int
    sizes: tuple[int, ...]
    series: int = 1


@dataclass(frozen=True)
class Shard:
    """One part of a sweep's plan, `size` workloads for so many `contenders`, in a folder of its own."""

    folder: Path
    number: int
    size: int
    contenders: int
    series: int

    @cached_property
    def plan(self) -> Plan:
        """Raises ValueError where its file is no plan."""
        return Plan.grid(**read_plan(self.folder / PLAN_FILE))

    def runs(self) -> list[Path]:
        """The folders of its runs, the first one first."""
        found = [one.parent for one in self.folder.glob(f"run-*/{RUN_FILE}")]
        return sorted(found, key=lambda one: int(one.name.removeprefix("run-")))

    def left(self) -> list[Workload]:
        """The workloads that no run of it has all results of, in the plan's order."""
        found = map(read_run, self.runs())
        done = {one.workload for run in found for one in run.whole()}
        return [one for one in self.plan.workloads if one not in done]

    def done(self) -> int:
        """How many workloads its runs hold the results of: counted, not read."""
        lines = 0
        for file in filter(Path.is_file, self.folder.glob(f"run-*/{RESULTS}")):
            with file.open("rb") as handle:
                lines += sum(line.endswith(b"\n") for line in handle)
        return min(self.size, lines // self.contenders)

    def note(self, event: str, **told: Any) -> None:
        """Append an event to the journal, with the time by the clock of the files: hosts' clocks may differ."""
        journal = self.folder / JOURNAL
        journal.touch()
        told = {"event": event, "series": self.series, "time": journal.stat().st_mtime, **told}
        append(journal, (json.dumps(told) + "\n").encode())

    def journal(self) -> list[dict[str, Any]]:
        """All events, the first one first."""
        return [one for one in read_lines(self.folder / JOURNAL) if isinstance(one, dict) and "event" in one]

    def end(self, outcome: str, reason: str | None = None) -> str:
        """Note the outcome, and return it."""
        self.note("outcome", outcome=outcome, reason=None if reason is None else one_line(reason))
        return outcome

    def outcome(self) -> dict[str, Any] | None:
        """The event that ended it: complete, or in this series killed, refused or failed; None while it goes on."""
        ends = (one for one in reversed(self.journal()) if one["event"] == "outcome")
        return next(
            (one for one in ends if one["outcome"] == "complete" or one["series"] == self.series), None
        )


@dataclass(frozen=True)
class Sweep:
    """A plan cut into shards, in one folder."""

    folder: Path
    told: Told

    @property
    def shards(self) -> list[Shard]:
        """All of them, by number."""
        return [self.shard(number) for number in range(len(self.told.sizes))]

    def shard(self, number: int) -> Shard:
        """Raises ValueError where there is none of that number."""
        told = self.told
        if not 0 <= number < len(told.sizes):
            raise ValueError(f"{self.folder} has shards 0 to {len(told.sizes) - 1}, got {number}")
        place = self.folder / "shards" / f"{number:04d}"
        return Shard(place, number, told.sizes[number], told.contenders, told.series)

    def runs(self) -> list[Path]:
        """The folders of all runs, by shard: what `attnlab collect` and any reader of runs takes."""
        return [run for shard in self.shards for run in shard.runs()]

    def begin_again(self) -> Sweep:
        """The same in the next series: what ended without being complete is tried again."""
        return Sweep(self.folder, replace(self.told, series=self.told.series + 1))._saved()

    def require_version(self) -> None:
        """Raises ValueError, naming both, where the sweep was cut by another version of attnlab than this one."""
        here = version("attnlab")
        if self.told.attnlab != here:
            raise ValueError(
                f"the sweep in {self.folder} is of attnlab {self.told.attnlab}, and this is attnlab {here}: "
                "install that version here, or cut the plan anew with this one"
            )

    def _saved(self) -> Sweep:
        write_json(self.folder / SWEEP_FILE, {"format": FORMAT, **asdict(self.told)})
        return self


def new_sweep(plan: Plan, folder: Path | str, shards: int, seconds: Sequence[float] | None = None) -> Sweep:
    """Cut `plan` into `shards` in `folder`, which must be new or empty, and return the sweep.

    seconds : what each workload is predicted to take, in the plan's order. Contenders and baseline are spelt out, as a
    run does: every shard has the same. Raises ValueError for an unknown backend and for a folder that cannot be used.
    """
    folder, (spelt, contenders) = Path(folder), resolve(plan)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        again = "; go on with --resume" if (folder / SWEEP_FILE).is_file() else ""
        raise ValueError(
            f"the output folder {folder} already holds something{again}, or give a new one with --out"
        )
    parts = cut(spelt, shards, seconds)
    sizes = tuple(len(one.workloads) for one in parts)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    sweep = Sweep(folder, Told(version("attnlab"), begun, len(contenders), sizes))
    try:
        for shard, part in zip(sweep.shards, parts, strict=True):
            shard.folder.mkdir(parents=True)
            (shard.folder / PLAN_FILE).write_text(plan_text(part), encoding="utf-8")
        (folder / PLAN_FILE).write_text(plan_text(spelt), encoding="utf-8")
    except OSError as fault:
        raise ValueError(f"the output folder {folder} cannot be written to: {fault.strerror}") from None
    return sweep._saved()


def read_sweep(folder: Path | str) -> Sweep:
    """The sweep in `folder`. Raises ValueError where there is none, or one of another format."""
    file = Path(folder) / SWEEP_FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no sweep: there is no {SWEEP_FILE} in it") from None
    except (OSError, ValueError, RecursionError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else fault
        raise ValueError(f"{file} cannot be read: {why}") from None
    require_format(data, file, FORMAT, "cut the plan again with this version")
    return Sweep(Path(folder), decode(data, Told, str(file), known_only=False))


def read_lines(file: Path) -> list[Any]:
    """What the lines of `file` hold as JSON, without those that were cut off; nothing where there is no file."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:  # by a kill, or a full disk
            continue
    return found


# -- how far it is -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """How far one shard has come: `done` of `size` workloads.

    state : complete, killed, refused or failed, with the reason; running, waiting (for its host), stopped (to be gone
    on with), or open. seconds : what its attempts took so far, each until its last result. host : where the last was.
    """

    number: int
    size: int
    done: int
    state: str
    reason: str | None = None
    host: str | None = None
    machines: tuple[str, ...] = ()
    attempts: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Status:
    """A sweep as a whole: so many of its `size` workloads have all their results. `over` when every shard has ended.

    seconds_left : with as many shards at work as now, at the pace so far; None while nothing is known of that.
    """

    states: tuple[State, ...]
    size: int
    done: int
    over: bool
    seconds_left: float | None

    def summary(self) -> str:
        """One line: how many workloads and shards are done, and the time left."""
        counts = Counter(one.state for one in self.states)
        order = (*OUTCOMES, "running", "waiting", "stopped", "open")
        counted = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
        text = f"{self.done} of {self.size} workloads; shards: {counted}"
        if self.over:
            return text
        if self.seconds_left is None:
            return f"{text}; time left not known yet"
        if self.done == self.size:  # what a run does behind its last race, nobody has foretold
            return f"{text}; all is raced, the last runs are to end"
        return f"{text}; about {duration(self.seconds_left)} left"

    def reasons(self) -> list[str]:
        """A line for every reason why shards ended without being complete, with those that it ended."""
        alike: dict[tuple[str, str], list[State]] = {}
        for one in self.states:
            if one.reason:
                alike.setdefault((one.state, one.reason), []).append(one)
        lines = []
        for (state, why), some in alike.items():
            shown = [*(str(one.number) for one in some[:_NAMED]), *["..."] * (len(some) > _NAMED)]
            numbers = ", ".join(shown)
            who = f"shard {numbers}" if len(some) == 1 else f"{len(some)} shards ({numbers})"
            done, size = sum(one.done for one in some), sum(one.size for one in some)
            lines.append(f"{who} {state} with {done} of {size} workloads: {why}")
        return lines


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def status(sweep: Sweep) -> Status:
    """How far every shard has come, from the sweep's files alone: any host that sees the folder can tell."""
    states = tuple(map(_state, sweep.shards))
    left = sum(one.size - one.done for one in states if one.state not in OUTCOMES)
    seen = [one for one in states if one.seconds > 0 and one.done]
    pace = sum(one.seconds for one in seen) / sum(one.done for one in seen) if seen else None
    at_work = max(1, sum(one.state == "running" for one in states))
    return Status(
        states,
        size=sum(one.size for one in states),
        done=sum(one.done for one in states),
        over=all(one.state in OUTCOMES for one in states),
        seconds_left=0.0 if not left else None if pace is None else pace * left / at_work,
    )


def _state(shard: Shard) -> State:
    journal, outcome = shard.journal(), shard.outcome() or {}
    starts = [one for one in journal if one["event"] == "started"]
    last: dict[str, Any] = starts[-1] if starts else {}
    if outcome:
        state = outcome["outcome"]
    elif is_held(shard.folder):
        state = "running" if journal and journal[-1]["event"] == "started" else "waiting"
    else:
        state = "stopped" if journal else "open"
    seconds = 0.0
    for one, after in zip_longest(journal, journal[1:]):
        results = shard.folder / one.get("run", "") / RESULTS
        if one["event"] == "started" and results.exists():
            last_result = results.stat().st_mtime
            until = last_result if after is None else min(last_result, after.get("time", last_result))
            seconds += max(0.0, until - one["time"])
    return State(
        shard.number,
        shard.size,
        shard.size if state == "complete" else shard.done(),
        state,
        reason=outcome.get("reason"),
        host=last.get("node") or last.get("host"),
        machines=tuple(dict.fromkeys(one["machine"] for one in starts)),
        attempts=len(starts),
        seconds=seconds,
    )


# -- what came of it ---------------------------------------------------------------------------------


def by_machine(sweep: Sweep) -> dict[str, Run]:
    """One run for every kind of machine, by its fingerprint, over the workloads that were raced there.

    Written anew into ``machines/FINGERPRINT`` of the sweep. A race is of one machine, so verdicts are as in the shards;
    two hosts of one kind count as one machine. The environment is that of the first run there. Of a sweep that is not
    complete, those workloads are in its plan too that the last run of a shard is yet to race.
    Raises ValueError where two runs of a shard answer one workload.
    """
    found: dict[str, list[Run]] = {}
    for shard in sweep.shards:
        answered: set[Workload] = set()
        folders = shard.runs()
        for folder in folders:
            run, last = read_run(folder), folder == folders[-1]
            run.results = run.whole()  # what it was cut off in, a later run of the shard has
            done = dict.fromkeys(one.workload for one in run.results)
            if not answered.isdisjoint(done):
                raise ValueError(f"{shard.folder}: two of its runs have results of one workload")
            answered.update(done)
            if done:
                run.complete = run.complete or not last
                if not last:
                    run.plan = only(run.plan, list(done), chapter=True)
                found.setdefault(fingerprint(run.environment), []).append(run)
    words = ["attnlab", "sweep", str(sweep.folder / PLAN_FILE), "--shards", str(len(sweep.told.sizes))]
    command = without_home(shlex.join(words))
    return {
        machine: _merged(sweep.folder / "machines" / machine, runs, command)
        for machine, runs in found.items()
    }


def _merged(folder: Path, runs: list[Run], command: str) -> Run:
    origins = {one: origin for run in runs for one, origin in origins_of(run.plan).items()}
    experiments = max((run.plan.experiments for run in runs), key=len)
    found = replace(
        runs[0],
        folder=folder,
        plan=replace(asking(runs[0].plan, origins), experiments=experiments),
        command=command,
        started=min(run.started for run in runs),
        complete=all(run.complete for run in runs),
        account=dict(sum((Counter(run.account) for run in runs), Counter())),
        ceilings=list({(one.device, one.dtype): one for run in runs for one in run.ceilings}.values()),
        invariance=max((run.invariance for run in runs), key=len),
        findings=[one for run in runs for one in run.findings],
        results=[],
        torn={f"{run.folder}/{name}": some for run in runs for name, some in run.torn.items()},
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).unlink(missing_ok=True)
    for run in runs:
        found.append(run.results)
    found.save()
    return found

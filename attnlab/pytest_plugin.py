"""A pytest plugin: races attention backends in your own tests, and gives the times to pytest-benchmark.

Load it with ``pytest -p attnlab.pytest_plugin``. A test that takes

``contender`` and ``workload``
    runs once for every contender × length × heads × dtype of the options (``--backends``, ``--lengths``, ``--heads``,
    ``--dtypes``); every other field of a workload has an option too (``pytest --help``);
``interleaved``
    calls ``interleaved(contender, workload)``. The contenders that are selected (by ``-k``, node id or marker) and the
    baseline race once per workload, in separate processes. The samples of this contender go into the table and files of
    pytest-benchmark. The call returns the `Result`. If the contender has no speed, the test is skipped or fails, with
    the reason. Under ``--benchmark-disable``, and beside other test processes, nothing is timed: the call checks the
    answer and returns None;
``answered``
    calls ``answered(contender, workload)``, which checks the answer without timing it and returns the `Accuracy`;
``peak``
    calls ``peak(contender, workload)``, which measures peak memory and returns the `Result` with its `peak_bytes`;
``checked``
    calls ``checked(contender)``, which asks every question of ``attnlab check`` in a separate process. It returns the
    `Checked`; after a wrong answer, the test fails with that question.

A contender is skipped if its call takes longer than ``--benchmark-max-time``, or than 1 s if that time is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import pytest

from attnlab.backends.contender import Contender
from attnlab.correctness.check import Checked, check
from attnlab.race.admission import Limits
from attnlab.race.compare import Comparison
from attnlab.race.conductor import Conductor
from attnlab.race.sittings import Record
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan
from attnlab.stats.intervals import verdicts_against
from attnlab.text import interval_text, number_text, seconds_text, split_names, within
from attnlab.workload.grid import by_option, choices, read_options, workloads
from attnlab.workload.number_formats import DTYPES
from attnlab.workload.result import Accuracy, Outcome, Result
from attnlab.workload.workload import Workload, option

Interleaved = Callable[[str, Workload], Result | None]
Answered = Callable[[str, Workload], Accuracy]
Measured = Callable[[str, Workload], Result]
Examined = Callable[[str], Checked]
T = TypeVar("T")

#: default sizes: small enough that all suites end within about a minute on two cores
_DEFAULTS = {"lengths": "64,256", "heads": "4", "dtypes": "float32"}
#: visits; rounds of a visit (the first has half as many): pytest-benchmark gets 25 samples of each contender
_VISITS, _ROUNDS = 3, 10
_SKIPPED = (Outcome.DECLINED, Outcome.UNAVAILABLE, Outcome.OVER_BUDGET)


@dataclass(frozen=True)
class Settings:
    """The options, after they were checked.

    contenders : by name, in the order given. said : the values of workload options, by `Choice.name`. formats : the
    number formats in which ``checked`` judges answers: all, unless the user chose some.
    """

    contenders: Mapping[str, Contender]
    baseline: str
    folders: tuple[str, ...]
    said: Mapping[str, Any]
    formats: Sequence[str]

    def workload(self, **axes: int | str) -> Workload:
        """The first workload of the options' grid, or the one at `lengths`, `heads` and `dtypes`."""
        said = {**self.said, **{name: (value,) for name, value in axes.items()}}
        return workloads(said)[0]

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """The settings of this session. Raises ValueError for wrong options."""
        typed = config.getoption
        within("--benchmark-max-time", float(typed("--benchmark-max-time")))
        said = read_options({one.name: typed(option(one.name)) for one in choices(grid=True)}, grid=True)
        names = typed("--backends")
        defaults = {name: text for name, text in _DEFAULTS.items() if name not in said}
        said |= read_options(defaults, grid=True)
        own = {"baseline": typed("--baseline"), "folders": tuple(typed("--implementations"))}
        chosen = () if names is None else tuple(split_names(names))
        try:
            plan, contenders = resolve(Plan.grid(contenders=chosen, control=False, **own, **said))
        except ValueError as fault:
            raise by_option(fault, said, grid=True) from None
        known = {contender.name: contender for contender in contenders}
        formats = DTYPES if "dtypes" in defaults else said["dtypes"]
        return cls(known, plan.baseline or names[0], plan.folders, said, formats)


class Races:
    """The races of one session, each run once. No process is started before the first race."""

    def __init__(self, settings: Settings, selected: set[str], seconds: float) -> None:
        self.settings = settings
        self.raced: dict[Workload, Comparison] = {}
        #: notices to print after the results
        self.notices: list[str] = []
        self._once: dict[tuple[Workload, bool], Mapping[str, Result]] = {}
        names = [name for name in settings.contenders if name in {*selected, settings.baseline}]
        self._contenders = [settings.contenders[name] for name in names]
        self._conductor = Conductor(self._contenders, baseline=settings.baseline, folders=settings.folders)
        self.limits = Limits(
            visits=_VISITS,
            most_visits=_VISITS,
            rounds=_ROUNDS,
            visit_seconds=600.0,  # enough for all rounds of slow contenders
            call_seconds=max(1.0, seconds),
            most_call_seconds=max(1.0, seconds),
        )

    def race(self, workload: Workload) -> Comparison:
        """The race on `workload`, with verdicts against the baseline over this sitting and earlier sittings."""
        if workload not in self.raced:
            results, baseline = self._run(workload, self.limits, memory=True), self.settings.baseline
            verdicts = verdicts_against(tuple(results.values()), baseline)
            entered = sorted(self._contenders, key=lambda one: one.name != baseline)
            sittings = Record(tell=self.notices.append).combine(
                workload, entered, verdicts, self.settings.folders
            )
            verdicts |= {name: one.verdict for name, one in sittings.items()}
            found = Comparison(workload, baseline, tuple(results.values()), verdicts, _VISITS)
            self.raced[workload] = replace(found, sittings=sittings)
        return self.raced[workload]

    def once(self, workload: Workload, *, memory: bool = False) -> Mapping[str, Result]:
        """Outcomes, errors and, with `memory`, peaks of all contenders on `workload`: one round, no verdicts."""
        if workload in self.raced:
            return {one.contender: one for one in self.raced[workload].results}
        if (workload, memory) not in self._once:
            limits = replace(self.limits, visits=1, most_visits=1, rounds=1, turn_seconds=1e-9)
            self._once[workload, memory] = self._run(workload, limits, memory=memory)
        return self._once[workload, memory]

    def close(self) -> None:
        """End all processes."""
        self._conductor.__exit__()

    def _run(self, workload: Workload, limits: Limits, *, memory: bool) -> Mapping[str, Result]:
        self._conductor.limits, self._conductor.memory = limits, memory
        return {result.contender: result for result in self._conductor.race(workload)}


SETTINGS = pytest.StashKey[Settings]()
_SELECTED = pytest.StashKey[set[str]]()
_RACES = pytest.StashKey[Races]()


class ReplayClock:
    """Gives samples that were measured elsewhere to pytest-benchmark, unchanged, through its own interface.

    pytest-benchmark reads its timer, calls the function, reads the timer again, and keeps the difference. This timer
    shows 0. `replay` is the function that is called: after it, the timer shows the next sample for one reading.
    """

    #: the name of this timer in the reports of pytest-benchmark
    __name__ = "attnlab.interleaved"

    def __init__(self) -> None:
        #: the samples to be replayed, in seconds, one for each round
        self.samples: Iterator[float] = iter(())
        self._shown = 0.0

    def __call__(self) -> float:
        shown, self._shown = self._shown, 0.0
        return shown

    def replay(self) -> None:
        """Show the next sample at the next reading, or 0 if none is left (a profiler calls once more)."""
        self._shown = next(self.samples, 0.0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options. All values are text: `Settings.of` reads them, so that its error messages are used."""
    # argparse reads a word that begins with a dash as an option
    group = parser.getgroup("attnlab", "attention; write a value that begins with a dash as in --window=-1,0")
    text = "contenders, as in torch_sdpa,numpy_vectorized[threads=1] (default: all)"
    group.addoption("--backends", metavar="LIST", help=text)
    text = "what the others are compared with (default: the first of --backends)"
    group.addoption("--baseline", metavar="CONTENDER", help=text)
    for one in choices(grid=True):
        text = one.help(_DEFAULTS.get(one.name, "")).replace("%", "%%")
        group.addoption(option(one.name), metavar=one.metavar.strip("[]"), help=text)
    text = "a folder with backends of your own; may be given several times"
    group.addoption("--implementations", metavar="DIR", action="append", default=[], help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Read the options now, so that a mistake is reported in one line, not as an error in every test."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("pytest-benchmark is not loaded; pip install 'attnlab[pytest]' installs it")
    try:
        config.stash[SETTINGS] = Settings.of(config)
    except ValueError as fault:
        raise pytest.UsageError(" ".join(str(fault).split())) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the options' workloads and contenders, except for axes that a test parametrizes itself."""
    settings = metafunc.config.stash[SETTINGS]
    axes: dict[str, tuple[Sequence[int | str], str]] = {"contender": (list(settings.contenders), "{}")}
    if {"contender", "workload"} & set(metafunc.fixturenames):
        axes |= {
            "length": (settings.said["lengths"], "n{}"),
            "heads": (settings.said["heads"], "h{}"),
            "dtype": (settings.said["dtypes"], "{}"),
        }
    marks = metafunc.definition.iter_markers("parametrize")
    named = [mark.args[0] if mark.args else mark.kwargs["argnames"] for mark in marks]
    every = [each.split(",") if isinstance(each, str) else each for each in named]
    own = {name.strip() for names in every for name in names}
    for axis in ("length", "heads", "dtype", "contender"):
        if axis in axes and axis in metafunc.fixturenames and axis not in own:
            values, name = axes[axis]
            metafunc.parametrize(axis, values, ids=list(map(name.format, values)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test that replays samples a separate clock, and keep the options of its benchmark mark."""
    for item in items:
        if "interleaved" in getattr(item, "fixturenames", ()):
            mark = item.get_closest_marker("benchmark")
            own = mark.kwargs if mark else {}
            item.add_marker(pytest.mark.benchmark(**{**own, "timer": ReplayClock()}), append=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Store which contenders are left after pytest has selected the tests."""
    chosen = (getattr(item, "callspec", None) for item in session.items)
    session.config.stash[_SELECTED] = {one.params.get("contender", "") for one in chosen if one is not None}


@pytest.fixture(scope="session")
def races(pytestconfig: pytest.Config) -> Iterator[Races]:
    """The session's `Races`; their processes end with the session."""
    settings, seconds = pytestconfig.stash[SETTINGS], float(pytestconfig.getoption("--benchmark-max-time"))
    found = Races(settings, pytestconfig.stash[_SELECTED], seconds)
    pytestconfig.stash[_RACES] = found
    yield found
    found.close()


@pytest.fixture
def workload(pytestconfig: pytest.Config, length: int, heads: int, dtype: str) -> Workload:
    """One workload of the options' grid."""
    return pytestconfig.stash[SETTINGS].workload(lengths=length, heads=heads, dtypes=dtype)


@pytest.fixture
def answered(races: Races) -> Answered:
    """A function that checks the answer of a contender to a workload without timing; see the module."""

    def answer(contender: str, workload: Workload) -> Accuracy:
        result = _of(contender, races.once(workload))
        measured = result.outcome is Outcome.MEASURED
        return result.accuracy if measured and result.accuracy else _end(result)

    return answer


@pytest.fixture
def peak(races: Races) -> Measured:
    """A function that measures the peak memory of one call; see the module."""

    def measure(contender: str, workload: Workload) -> Result:
        result = _of(contender, races.once(workload, memory=True))
        return result if result.outcome is Outcome.MEASURED else _end(result)

    return measure


@pytest.fixture
def checked(pytestconfig: pytest.Config) -> Examined:
    """A function that asks a contender every question of ``attnlab check``; see the module."""

    def examine(contender: str) -> Checked:
        settings = pytestconfig.stash[SETTINGS]
        found = check(
            _of(contender, settings.contenders),
            settings.folders,
            settings.workload().device,
            dtypes=settings.formats,
            keep=len(settings.contenders) > 1,
        )
        if found.passed is None and found.loaded:
            pytest.skip(f"{contender}: {found.reason}")
        if not found.passed:
            said = "" if found.loaded else "cannot be loaded: "
            pytest.fail(f"{contender}: {said}{found.reason}", pytrace=False)
        return found

    return examine


@pytest.fixture
def interleaved(
    request: pytest.FixtureRequest, benchmark: Any, races: Races, answered: Answered
) -> Interleaved:
    """A function that races contenders and gives the samples of one to pytest-benchmark; see the module."""
    options = request.node.get_closest_marker("benchmark").kwargs
    clock: ReplayClock = options["timer"]

    def measure(contender: str, workload: Workload) -> Result:
        race = races.race(workload)
        result = _of(contender, {each.contender: each for each in race.results})
        if result.latency is None:
            _end(result)
        benchmark.group = options.get("group") or workload.label
        told = race.to_json()
        one = next(one for one in told["contenders"] if one.pop("name") == contender)
        one |= {"contender": contender, "workload": workload.label, "baseline": told["baseline"]}
        benchmark.extra_info.update(one)
        clock.samples = iter(result.latency.samples)
        benchmark.pedantic(clock.replay, rounds=len(result.latency.samples), iterations=1)
        return result

    def in_report(contender: str, workload: Workload) -> Result | None:
        try:
            if benchmark.enabled:
                return measure(contender, workload)
            answered(contender, workload)
        except pytest.fail.Exception as failure:
            # pytest-benchmark warns of a fixture that was not used: here it is used by a call that fails, and
            # `has_error` keeps it out of every report
            benchmark.has_error = True
            benchmark.pedantic(pytest.fail, args=(failure.msg, failure.pytrace))
        benchmark.pedantic(clock.replay)
        return None

    return in_report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the verdicts: pytest-benchmark's table has no column for them."""
    races = config.stash.get(_RACES, None)
    if races is None or not races.raced or config.getoption("--benchmark-quiet"):
        return
    baseline, line = races.settings.baseline, terminalreporter.write_line
    terminalreporter.section(f"attention: speedup over {baseline}")
    if config.getoption("--benchmark-compare"):
        proves = "compares times of different races, which proves nothing; use attnlab gate."
        line(f"--benchmark-compare {proves}", yellow=True)
    for workload, race in races.raced.items():
        line(workload.label)
        timed = [(one.latency.median, one.contender, one.latency) for one in race.results if one.latency]
        for median, name, latency in sorted(timed):
            verdict, disturbed = race.verdicts.get(name), len(latency.disturbed_rounds)
            said = "the baseline" if name == baseline else "not compared"
            if verdict and (told := verdict.turned):
                said = f"{number_text(told.ratio)} {interval_text(told.low, told.high)} {verdict.kind}"
            if name in race.sittings and (earlier := len(race.sittings[name].sittings) - 1):
                said += f", by this session and {earlier} earlier"
            noted = f"; disturbed: {disturbed} of {len(latency.samples)} samples" if disturbed else ""
            line(f"  {name:24} {seconds_text(median):>9}  {said}{noted}")
        for name, one in race.sittings.items():
            if one.differ:
                was, now = (
                    interval_text(1 / high, 1 / low) for _, low, high in (at.span for at in one.differ)
                )
                line(f"  two sittings differ on {name}: {was} at {one.differ[0].moment}, {now} now")
    for notice in dict.fromkeys(races.notices):
        line(notice, yellow=True)


def _of(contender: str, there: Mapping[str, T]) -> T:
    """The entry of a contender in `there`; the test fails, in one line, if there is none."""
    if contender not in there:
        said = f"{contender!r} takes no part here, but {', '.join(there) or 'nothing'}"
        pytest.fail(f"{said}: name it in --backends and take the fixture `contender`", pytrace=False)
    return there[contender]


def _end(result: Result) -> NoReturn:
    """Skip or fail the test for an outcome other than measured, in one line."""
    line = " ".join(f"{result.contender} {str(result.outcome).replace('_', ' ')}: {result.reason}".split())
    if result.outcome in _SKIPPED:
        pytest.skip(line)
    pytest.fail(line, pytrace=False)

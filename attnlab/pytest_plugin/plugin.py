"""A pytest plugin: attention backends as contenders in your own tests, timed fairly by pytest-benchmark.

Load it with ``pytest -p attnlab.pytest_plugin.plugin``. A test that takes

``contender`` and ``workload``
    runs once for every contender x length x heads x dtype that the options ask for
    (``--backends``, ``--lengths``, ``--heads``, ``--dtypes``); every other field of a workload has an option too
    (``--kv-heads``, ``--causal``, ``--direction``, ..., see ``pytest --help``);
``interleaved``
    calls ``interleaved(contender, workload)``: all contenders of the workload are raced in processes of their
    own, once, round by round, and this contender's samples go into pytest-benchmark's table, its JSON and its
    comparisons. It returns the `Result`. A contender that has no speed skips or fails the test, saying why.
    Under ``--benchmark-disable`` it starts no process: it calls the backend once, checks it and returns None;
``answered``
    calls ``answered(contender, workload)``: the same without a clock; it returns the `Accuracy`;
``peak``
    calls ``peak(contender, workload)``: the same for memory; it returns the `Result`, of which `peak_bytes` counts;
``checked``
    calls ``checked(contender)``: the whole accuracy gate of ``attnlab check``, outputs and gradients, in a process
    of its own; it returns the `Checked`, or fails with the question that was answered wrong;
``confirmed``
    calls ``confirmed(experiment, backend)``: an experiment of `attnlab.lab` through one backend, in this
    process; it returns the `Finding`, or fails with every row that was missed. ``backend`` runs over the
    contenders' backends.

``--benchmark-max-time`` is how long a race may take, times its contenders; a call predicted to take more than
a fifth of it is over budget. How many rounds and calls that makes is decided by the race.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from attnlab.backends.contender import Contender
from attnlab.correctness.check import Checked, check
from attnlab.lab.finding import Finding, Row
from attnlab.pytest_plugin.harness import Harness
from attnlab.race.limits import Limits
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan
from attnlab.runs.presets import Part, only_part
from attnlab.workload.declaring import split_names, within
from attnlab.workload.grid import by_option, choices, read_options, workloads
from attnlab.workload.result import Accuracy, Outcome, Result
from attnlab.workload.vocabulary import DTYPES
from attnlab.workload.workload import Workload

Interleaved = Callable[[str, Workload], Result | None]
Answered = Callable[[str, Workload], Accuracy]
Measured = Callable[[str, Workload], Result]
Examined = Callable[[str], Checked]
Confirmed = Callable[[str, str], Finding]

#: small enough that all suites end within about a minute on two cores
_DEFAULTS = {"lengths": "64,256", "heads": "4", "dtypes": "float32"}


@dataclass(frozen=True)
class Settings:
    """The options, checked. `said` is what they say of workloads, by `Choice.name`.

    contenders : by name, in the order they were given. formats : the number formats in which accuracy is judged, all
    unless the user chose. part : that of a preset, where one is named.
    """

    contenders: Mapping[str, Contender]
    baseline: str
    folders: tuple[str, ...]
    said: Mapping[str, Any]
    formats: Sequence[str]
    ceilings: bool
    part: Part | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """The contenders' backends, each once."""
        return tuple(dict.fromkeys(one.backend for one in self.contenders.values()))

    def workload(self, **axes: int | str) -> Workload:
        """The first workload of the options' grid, or the one at `lengths`, `heads` and `dtypes`."""
        said = {**self.said, **{name: (value,) for name, value in axes.items()}}
        return (self.part.workloads(said) if self.part else workloads(said))[0]

    @classmethod
    def of(cls, config: pytest.Config) -> Settings:
        """The settings of this session. Raises ValueError for a user's mistake."""
        option = config.getoption
        within("--benchmark-max-time", float(option("--benchmark-max-time")))
        given = {choice.name: option(choice.option) for choice in choices(grid=True)}
        said = read_options({**given, **_after_bare(config)}, grid=True)
        preset, names = option("--preset"), option("--backends")
        part = None if preset is None else only_part(preset)
        if part is not None:  # of the others the part knows itself
            said = {name: part.said[name] for name in _DEFAULTS if name in part.said} | said
        defaults = {name: text for name, text in _DEFAULTS.items() if name not in said}
        said |= read_options(defaults, grid=True)
        try:
            plan, contenders = resolve(
                Plan.grid(
                    preset=preset,
                    contenders=() if names is None else tuple(split_names(names)),
                    baseline=option("--baseline"),
                    folders=tuple(option("--implementations")),
                    self_test=False,
                    **said,
                )
            )
        except ValueError as fault:
            raise by_option(fault, said, grid=True) from None
        known = {contender.name: contender for contender in contenders}
        if plan.baseline not in known:
            raise ValueError(
                f"--baseline must be one of the contenders {', '.join(known)}, got {plan.baseline!r}"
            )
        formats = DTYPES if "dtypes" in defaults else said["dtypes"]
        ceilings = not option("--no-ceilings")
        return cls(known, plan.baseline, plan.folders, said, formats, ceilings, part)


def _after_bare(config: pytest.Config) -> dict[str, str]:
    """ "true" for options that stand bare before a path, which pytest took for their value: it is a path again."""
    found = {}
    for choice in choices(grid=True):
        value = config.getoption(choice.option)
        if not choice.bare or value is None or choice.is_value(value):
            continue
        place = config.invocation_params.dir / value.partition("::")[0]
        if place.exists() or config.getoption("--pyargs"):
            found[choice.name] = "true"
            if config.args_source is not pytest.Config.ArgsSource.ARGS:
                config.args.clear()
                config.args_source = pytest.Config.ArgsSource.ARGS
            config.args.append(value)
    return found


SETTINGS = pytest.StashKey[Settings]()
_HARNESS = pytest.StashKey[Harness]()
_SKIPPED = (Outcome.DECLINED, Outcome.UNAVAILABLE, Outcome.OVER_BUDGET)


class ReplayClock:
    """Samples that were taken elsewhere, told to pytest-benchmark through its own interface, bit for bit.

    pytest-benchmark reads its timer, calls the function, reads the timer again, and keeps the difference. This timer
    shows 0 until its `replay`, which stands for the function, sets it to the next sample, and 0 again once it was read.
    """

    #: how pytest-benchmark names this timer in its reports
    __name__ = "attnlab.interleaved"

    def __init__(self) -> None:
        #: what is still to be replayed: seconds, one sample a round
        self.samples: Iterator[float] = iter(())
        self._shown = 0.0

    def __call__(self) -> float:
        shown, self._shown = self._shown, 0.0
        return shown

    def replay(self) -> None:
        """Let the next sample pass; without one left (a profiler calls once more), no time passes."""
        self._shown = next(self.samples, 0.0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options. Everything is read as text, so that `Settings.of` words every complaint."""
    # argparse takes a word that begins with a dash for an option
    group = parser.getgroup("attnlab", "attention; a value that begins with a dash as in --window=-1,0")
    group.addoption(
        "--backends",
        metavar="LIST",
        help="contenders separated by commas, as in torch_sdpa,numpy_vectorized[threads=1]; default: all",
    )
    group.addoption(
        "--preset",
        metavar="NAME/PHASE",
        help="the shapes of a known model, one part of a preset as `attnlab plans` lists them: llama3-8b/decode",
    )
    for choice in choices(grid=True):
        bare: dict[str, Any] = {"nargs": "?", "const": "true"} if choice.bare else {}
        said = choice.help(_DEFAULTS.get(choice.name, "")).replace("%", "%%")
        group.addoption(choice.option, metavar=choice.metavar.strip("[]"), help=said, **bare)
    group.addoption(
        "--implementations",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with backends of your own; may be given several times",
    )
    group.addoption(
        "--baseline", metavar="CONTENDER", help="what ratios are taken to (the first of --backends)"
    )
    group.addoption(
        "--no-ceilings", action="store_true", help="leave out matrix-product rate and copy bandwidth"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the options now, so that a mistake is one line and not an error in every test."""
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("pytest-benchmark is not loaded; pip install 'attnlab[pytest]' installs it")
    try:
        config.stash[SETTINGS] = Settings.of(config)
    except ValueError as fault:
        raise pytest.UsageError(" ".join(str(fault).split())) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread tests over the options' workloads and contenders, but for what a test spreads itself."""
    if not {"contender", "workload", "confirmed"} & set(metafunc.fixturenames):
        return
    settings = metafunc.config.stash[SETTINGS]
    axes: dict[str, tuple[Sequence[int | str], str]] = {
        "length": (settings.said["lengths"], "n{}"),
        "heads": (settings.said["heads"], "h{}"),
        "dtype": (settings.said["dtypes"], "{}"),
        "contender": (list(settings.contenders), "{}"),
        "backend": (settings.backends, "{}"),
    }
    own = {
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    }
    for axis, (values, name) in axes.items():
        if axis in metafunc.fixturenames and axis not in own:
            metafunc.parametrize(axis, values, ids=list(map(name.format, values)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test that replays samples a clock of its own, beside what its own benchmark mark says."""
    for item in items:
        if "interleaved" in getattr(item, "fixturenames", ()):
            mark = item.get_closest_marker("benchmark")
            own = mark.kwargs if mark else {}
            item.add_marker(pytest.mark.benchmark(**{**own, "timer": ReplayClock()}), append=False)


@pytest.fixture(scope="session")
def harness(pytestconfig: pytest.Config) -> Iterator[Harness]:
    """The session's `Harness`: its races, and the processes that run them, ended with the session."""
    settings = pytestconfig.stash[SETTINGS]
    limits = _limits(pytestconfig, len(settings.contenders))
    found = Harness(settings, limits, enabled=_benchmarks_enabled(pytestconfig))
    pytestconfig.stash[_HARNESS] = found
    yield found
    found.close()


@pytest.fixture
def workload(pytestconfig: pytest.Config, length: int, heads: int, dtype: str) -> Workload:
    """One workload of the options' grid."""
    return pytestconfig.stash[SETTINGS].workload(lengths=length, heads=heads, dtypes=dtype)


@pytest.fixture
def answered(harness: Harness) -> Answered:
    """Put a workload to a contender without a clock; see the module."""

    def answer(contender: str, workload: Workload) -> Accuracy:
        found = harness.answer(contender, workload)
        return found if isinstance(found, Accuracy) else _end(found)

    return answer


@pytest.fixture
def peak(harness: Harness) -> Measured:
    """Measure the peak memory of one call; see the module. Skips where no process may be started."""

    def measure(contender: str, workload: Workload) -> Result:
        if not harness.enabled:
            pytest.skip("peak memory is measured in a process of its own; --benchmark-disable starts none")
        result = harness.single_round(workload, memory=True)[contender]
        if result.outcome is not Outcome.MEASURED:
            _end(result)
        return result

    return measure


@pytest.fixture
def checked(pytestconfig: pytest.Config, harness: Harness) -> Examined:
    """Put the whole gate's questions to a contender; see the module."""

    def examine(contender: str) -> Checked:
        if not harness.enabled:
            pytest.skip("the gate asks in a process of its own; --benchmark-disable starts none")
        settings = pytestconfig.stash[SETTINGS]
        found = check(
            settings.contenders[contender],
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
def confirmed(pytestconfig: pytest.Config) -> Confirmed:
    """Run one experiment through one backend; see the module."""

    def confirm(experiment: str, backend: str) -> Finding:
        from attnlab.lab import run_experiment

        finding = run_experiment(experiment, [backend], folders=pytestconfig.stash[SETTINGS].folders)
        # experiments in several number formats say it for each
        absent = [
            str(why) for fact, why in finding.facts.items() if f"{fact} ".startswith(f"without {backend} ")
        ]
        if absent and not any(row.where.get("backend") == backend for row in finding.rows):
            pytest.skip(f"{backend}: {absent[0]}")
        missed = [_missed(row) for row in finding.rows if not row.passed]
        if missed or not finding.rows:
            head = f"{backend}: {len(missed)} of {len(finding.rows)} rows. {finding.question} {finding.conclusion}"
            pytest.fail("\n".join([head, *missed]), pytrace=False)
        return finding

    return confirm


@pytest.fixture
def interleaved(
    request: pytest.FixtureRequest, benchmark: Any, harness: Harness, answered: Answered
) -> Interleaved:
    """Race a workload and hand one contender's samples to pytest-benchmark; see the module."""
    options = request.node.get_closest_marker("benchmark").kwargs
    clock: ReplayClock = options["timer"]

    def measure(contender: str, workload: Workload) -> Result:
        race = harness.race(workload)
        result = race.results[contender]
        if result.latency is None:
            _end(result)
        benchmark.group = options.get("group") or workload.label
        benchmark.extra_info.update(race.extra_info(contender, harness.share_of_ceiling(result)))
        clock.samples = iter(result.latency.samples)
        benchmark.pedantic(clock.replay, rounds=len(result.latency.samples), iterations=1)
        return result

    def in_report(contender: str, workload: Workload) -> Result | None:
        try:
            if benchmark.enabled and harness.enabled:
                return measure(contender, workload)
            answered(contender, workload)
        except pytest.fail.Exception as failure:
            # pytest-benchmark warns of a fixture that was not used, and this one is used up by failing:
            # the mark of an error keeps it out of every report
            benchmark.has_error = True
            benchmark.pedantic(_raise, args=(failure,))
        benchmark.pedantic(clock.replay)
        return None

    return in_report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The verdicts, which pytest-benchmark's table has no column for."""
    harness = config.stash.get(_HARNESS, None)
    if harness is None or not harness.races or config.getoption("--benchmark-quiet"):
        return
    terminalreporter.section(f"attention: time a call, as a ratio to {harness.settings.baseline}")
    if config.getoption("--benchmark-compare"):
        terminalreporter.write_line(
            "--benchmark-compare holds these times beside those of another race, day or machine: such a difference has "
            "no interval, and proves nothing. Compare two versions in one race: attnlab gate.",
            yellow=True,
        )
    width = max(map(len, harness.settings.contenders))
    for workload, race in harness.races.items():
        terminalreporter.write_line(workload.label)
        medians = {one.contender: one.latency.median for one in race.results.values() if one.latency}
        for name in sorted(medians, key=lambda one: medians[one]):
            said = race.line(name)
            terminalreporter.write_line(f"  {name:{width}}  {said}")


def _end(result: Result) -> NoReturn:
    """Skip or fail the test for an outcome other than measured, in one line."""
    line = " ".join(f"{result.contender} {str(result.outcome).replace('_', ' ')}: {result.reason}".split())
    if result.outcome in _SKIPPED:
        pytest.skip(line)
    pytest.fail(line, pytrace=False)


def _raise(failure: BaseException) -> NoReturn:
    raise failure


def _missed(row: Row) -> str:
    where = ", ".join(f"{name} {value}" for name, value in row.where.items())
    errors = abs(row.measured - row.predicted) / row.standard_error if row.standard_error else math.inf
    return (
        f"  {row.quantity} at {where}: predicted {row.predicted:.6g}, "
        f"measured {row.measured:.6g} ± {row.standard_error:.2g}, {errors:.1f} standard errors off"
    )


#: one call may take no more of a contender's part in a race than would be left to so many
_CALLS = 5


@dataclass(frozen=True, kw_only=True)
class _Limits(Limits):
    """As pytest-benchmark's option sets them, for so many `contenders`."""

    contenders: int

    def typed(self, seconds: float) -> str:
        return f"--benchmark-max-time {math.ceil(seconds / self.contenders)}"

    def allowing(self, call_seconds: float, contenders: int) -> str:
        return self.typed(self.contenders * call_seconds * _CALLS)


def _limits(config: pytest.Config, contenders: int) -> Limits:
    seconds = float(config.getoption("--benchmark-max-time"))
    race = seconds * contenders
    # on a busy machine, where most rounds are disturbed, it may take as long again, and not much more
    times: Any = {"workload_seconds": race, "extra_seconds": max(race, 5.0), "call_seconds": seconds / _CALLS}
    return _Limits(**times, contenders=contenders)


def _benchmarks_enabled(config: pytest.Config) -> bool:
    """Whether pytest-benchmark is to measure: not if it was told not to, nor beside other test processes."""
    if config.getoption("--benchmark-disable") and not config.getoption("--benchmark-enable"):
        return False
    return config.getoption("dist", "no") == "no" and "PYTEST_XDIST_WORKER" not in os.environ

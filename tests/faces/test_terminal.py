"""What a terminal shows: a live table that never disturbs a measurement, plain lines elsewhere, the verdict again."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console
from rich.live import Live
from synthetic import synthetic
from typed import status

from attnlab.cli import progress
from attnlab.cli.app import app
from attnlab.cli.progress import LiveTable, live_progress, seconds_left
from attnlab.cli.standings import row, so_far, table
from attnlab.problem.result import Result
from attnlab.race.limits import Limits
from attnlab.runs.execute import Progress, run
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run


def by_workload(found: Run) -> list[list[Result]]:
    """The results of each workload."""
    return [[one for one in found.results if one.workload == workload] for workload in found.plan.workloads]


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def shown(live: LiveTable, height: int = 40, width: int = 160) -> str:
    """What the table shows on a terminal of that size."""
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(live.shown(height))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def made(clock: Clock) -> tuple[LiveTable, list[str]]:
    """A table that is drawn to nowhere, and what was drawn each time."""
    drawn: list[str] = []
    console = Console(file=io.StringIO(), force_terminal=True, width=160, height=40)
    live = Live(console=console, auto_refresh=False)
    found = LiveTable(live, clock)
    update = live.update

    def noting(renderable: Any, *, refresh: bool = False) -> None:
        assert refresh
        drawn.append(shown(found))
        update(renderable, refresh=refresh)

    live.update = noting  # type: ignore[method-assign]
    return found, drawn


def test_every_workload_has_its_leader_its_open_verdicts_and_the_time_left(tmp_path: Path) -> None:
    found = synthetic(tmp_path, lengths=(64, 128, 256, 512), heads=(4,))
    finished, clock = by_workload(found), Clock()
    found.results.clear()
    live, _ = made(clock)
    live.begins(found)
    live.stage("starting the contenders", done=0, total=4)
    assert "0 of 4 workloads, 0 s so far" in shown(live) and "left" not in shown(live)
    for done, results in enumerate(finished[:2]):
        clock.seconds += 60
        live.finished(results)
        live.stage(f"workload {done + 2}", done=done + 1, total=4)
    live.detail("b1 h4 n256 d64 float32 cpu: round 3, process 1")
    text = shown(live)
    assert "2 of 4 workloads" in text and "2 min 0 s so far, about 2 min 0 s left" in text
    rows = [line for line in text.splitlines() if "float32 cpu" in line and "│" in line]
    assert len(rows) == 2 and all("torch_sdpa" in row and "µs" in row and "KiB" in row for row in rows)
    assert "2 declined" in rows[0] and "round 3, process 1" in text


def test_the_leader_is_that_of_the_report(tmp_path: Path) -> None:
    """Where nothing is taken back by a ceiling or the self-test."""
    from attnlab.report.analysis import analyse

    found = synthetic(tmp_path, lengths=(64, 1024), heads=(4,))
    for cell, results in zip(analyse(found).cells, by_workload(found), strict=True):
        now = so_far(results, found.baseline, found.plan.limits.noise_margin)
        assert now.ranking is not None and cell.ranking is not None
        assert [one.contender for one in now.ranking.first] == [one.contender for one in cell.ranking.first]
        assert row(now) == row(cell)


def test_where_nobody_was_measured_it_says_so(tmp_path: Path) -> None:
    everybody = ("torch_eager", "torch_sdpa")
    found = synthetic(tmp_path, contenders=everybody, wrong=everybody, lengths=(64,), heads=(4,))
    told = row(so_far(found.results, found.baseline, 0.01))
    assert told[1] == "nobody" and told[-1] == "2 wrong"
    assert len(table([so_far(found.results, found.baseline, 0.01)]).columns) == 3


def test_a_small_terminal_shows_the_last_workloads(tmp_path: Path) -> None:
    """And how many came before."""
    found = synthetic(tmp_path, lengths=(64, 128, 256, 512, 1024, 2048), heads=(1, 4))
    live, _ = made(Clock())
    live.begins(found)
    text = shown(live, height=12)
    assert text.count("float32 cpu") == 4 and "so far (… 8 workloads before)" in text
    assert len(text.splitlines()) <= 12


def test_a_run_that_is_gone_on_with_counts_from_where_it_stopped(tmp_path: Path) -> None:
    """The time of what was done before is not known."""
    clock = Clock()
    live, _ = made(clock)
    live.begins(synthetic(tmp_path, lengths=(64, 128), heads=(4,)))
    live.stage("starting the contenders", done=2, total=4)
    clock.seconds = 30
    assert "left" not in shown(live)
    live.stage("b1 h4 n512", done=3, total=4)
    assert "30 s so far, about 30 s left" in shown(live)
    assert (
        seconds_left(10, 0, 0, 5) is None
        and seconds_left(10, 2, 4, 5) == 5
        and seconds_left(9, 0, 5, 5) is None
    )


def test_what_is_drawn_is_drawn_at_most_twice_a_second() -> None:
    """But for workloads: those are drawn at once."""
    clock = Clock()
    live, drawn = made(clock)
    live.stage("one", done=0, total=1)
    for _ in range(100):
        clock.seconds += 0.01
        live.detail("a round")
    assert 2 <= len(drawn) <= 4


def test_data_is_text_in_the_live_table() -> None:
    """No markup of its own, no escape sequence, in one line."""
    live, _ = made(Clock())
    live.stage("[red]x[/red]", done=0, total=1)
    live.detail("\x1b[31mred\x1b[0m [bold]\nsecond")
    text = shown(live)
    assert "red [bold] second" in text and "\x1b" not in text


def test_no_thread_draws_and_nothing_is_drawn_while_a_turn_is_on_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real run on what passes for a terminal: between a question to a timed process and its answer, nothing."""
    from attnlab.race.participant import Participant

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(progress, "_BETWEEN", 0.0)  # drawn as often as anything is told
    threads: set[str] = set()
    during: list[int] = []
    measure = Participant.measure

    def watched(self: Participant, *given: Any, **options: Any) -> Any:
        before = terminal.letters
        answer = measure(self, *given, **options)
        during.append(terminal.letters - before)
        threads.update(one.name for one in threading.enumerate())
        return answer

    monkeypatch.setattr(Participant, "measure", watched)
    quick = Limits(min_rounds=4, max_rounds=10, workload_seconds=0.2, extra_seconds=5.0, turn_seconds=1e-4)
    plan = Plan.grid(
        lengths=(8,),
        heads=(1,),
        head_dim=4,
        contenders=("numpy_vectorized", "numpy_blocked"),
        self_test=False,
        memory=False,
        ceilings=False,
        experiments=("none",),
        limits=quick,
    )
    before = {one.name for one in threading.enumerate()}
    with live_progress() as found:
        assert isinstance(found, LiveTable)
        run(plan, tmp_path / "run", progress=found)
    assert len(during) >= 4 and not any(during)
    assert terminal.letters > 0
    assert threads == before


class Terminal(io.StringIO):
    """Counts what is written to it."""

    letters = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.letters += len(text)
        return super().write(text)


@pytest.mark.parametrize("variables", [{}, {"CI": "true", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_in_a_pipe_or_ci_there_are_plain_lines(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ever: a line a stage, with the time left."""
    file: io.StringIO = Terminal() if variables else io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.delenv("CI", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with live_progress() as found:
        found.stage("starting", done=0, total=2)
        found.detail("round 1")
        found.finished([])
        found.stage("b1 h8 n512", done=1, total=2)
    lines = file.getvalue().splitlines()
    assert (
        len(lines) == 2
        and lines[0].startswith("[0/2] starting (0 s so far)")
        and "\x1b" not in file.getvalue()
    )
    assert lines[1].startswith("[1/2] b1 h8 n512 (0 s so far, about 0 s left)")


def test_quiet_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with live_progress(quiet=True) as found:
        found.stage("starting", done=0, total=2)
    assert type(found) is Progress and file.getvalue() == ""


@pytest.mark.parametrize("name", ["run", "compare", "check", "numerics", "selftest"])
def test_every_long_command_can_be_quiet(name: str) -> None:
    """By the same two options with the same words."""
    (option,) = [one for one in app.commands[name].params if one.name == "quiet"]
    assert isinstance(option, click.Option)
    assert (
        option.opts == ["-q", "--quiet"] and option.help == "Show no progress, and print the verdict alone."
    )


def test_a_quiet_check_prints_what_is_wrong_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mean.py").write_text(
        'LIBRARY = "numpy"\ndef attend(q, k, v): return v.mean(2, keepdims=True).repeat(q.shape[2], 2)\n'
    )
    assert status("check", "-q", "mean", "--implementations", str(tmp_path)) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("mean: WRONG. ") and printed.out.count("\n") == 1 and printed.err == ""


def test_a_quiet_comparison_prints_its_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    status("compare", "numpy_blocked", "numpy_vectorized", "--length", "8", "--heads", "1", "--seconds", "0.1",
           "--processes", "1", "--quiet")  # fmt: skip
    printed = capsys.readouterr()
    assert printed.out and "Repeat this" not in printed.out and "┃" not in printed.out and printed.err == ""


def test_a_stored_run_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its table, then its verdict in the words of the report; nothing in its folder changes."""
    from attnlab.report import verdict_text

    found = synthetic(tmp_path, lengths=(64, 1024), heads=(4,))
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert status("show", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(verdict_text(found) + "\n") and "b1 h4 n1024 d64 float32 cpu" in printed
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert status("show", str(tmp_path / "nothing")) == 2
    assert "holds no run" in capsys.readouterr().err


def test_to_show_a_run_it_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes longest of all, of a large run."""
    judged: list[Run] = []
    judge = Run.judged

    def counted(run: Run) -> object:
        judged.append(run)
        return judge(run)

    monkeypatch.setattr(Run, "judged", counted)
    synthetic(tmp_path, lengths=(64, 128), heads=(4,))
    assert status("show", str(tmp_path)) == 0
    assert len(judged) == 1


@pytest.mark.parametrize("count", [0, 1, 7])
def test_of_an_interrupted_run_there_is_shown_what_there_is(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing, half a workload, or some."""
    found = synthetic(tmp_path, lengths=(64, 128), heads=(4,), complete=False)
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(lines[:count]), encoding="utf-8")
    assert status("show", str(tmp_path)) == 0
    assert not found.complete and capsys.readouterr().out.strip()


@pytest.mark.parametrize("forbidden", [True, False])
def test_no_color_is_respected(forbidden: bool, tmp_path: Path) -> None:
    """On a terminal that shows colours, by the live table and by every table that is printed."""
    synthetic(tmp_path, lengths=(64,), heads=(4,))
    program = (
        "from rich.table import Table; from rich.text import Text; from attnlab.cli.tables import show\n"
        "from attnlab.__main__ import main\n"
        "table = Table(); table.add_column('x', style='red'); table.add_row('y'); show(table)\n"
        f"main(['show', {str(tmp_path)!r}])"
    )
    variables = {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "200"}
    ours = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    ours |= {"NO_COLOR": "1"} if forbidden else {}
    found = subprocess.run(
        [sys.executable, "-c", program], env=ours, capture_output=True, text=True, check=True
    )
    assert "b1 h4 n64" in found.stdout
    assert ("\x1b[31m" in found.stdout) is not forbidden


# -- completion ----------------------------------------------------------------------------------------


def completed(*words: str) -> list[str]:
    """What a shell offers for the last of the words typed after ``attnlab``."""
    from click.shell_completion import ShellComplete

    return [
        one.value
        for one in ShellComplete(app, {}, "attnlab", "_X").get_completions(list(words[:-1]), words[-1])
    ]


COMPLETED: dict[tuple[str, ...], list[str]] = {
    ("comp",): ["compare", "completion"],
    ("completion", ""): ["bash", "zsh", "fish"],
    ("compare", "torch_sdpa_f"): ["torch_sdpa_flash"],
    ("compare", "torch_sdpa", "torch_e"): ["torch_eager"],
    ("check", "numpy_b"): ["numpy_blocked"],
    ("run", "--backends", "torch_eager,torch_sdpa_f"): ["torch_eager,torch_sdpa_flash"],
    ("run", "--dtypes", "float32,b"): ["float32,bfloat16"],
    ("run", "--preset", "llama3-8b/d"): ["llama3-8b/decode"],
    ("run", "--baseline", "naive"): ["naive_loop"],
    ("run", "--experiments", "satur"): ["saturation"],
    ("compare", "--causal", "bottom"): ["bottom_right"],
    ("compare", "--direction", "tr"): ["training"],
    ("plans", "llama3-8b/p"): ["llama3-8b/prefill"],
    ("numerics", "satur"): ["saturation"],
    ("selftest", "--conditions", "idle,m"): ["idle,memory"],
    ("backends", "--device", "cu"): ["cuda"],
    ("run", "--quie"): ["--quiet"],
    ("run", "--length", ""): [],
}


@pytest.mark.parametrize("words", COMPLETED, ids=" ".join)
def test_a_shell_completes(words: tuple[str, ...]) -> None:
    """Commands, options, backends, presets, experiments and the names that options take."""
    assert completed(*words) == COMPLETED[words]


def test_backends_of_ones_own_are_completed(tmp_path: Path) -> None:
    (tmp_path / "my_attention.py").touch()
    assert completed("check", "--implementations", str(tmp_path), "my_") == ["my_attention"]
    assert completed("check", "--implementations", str(tmp_path / "nothing"), "numpy_b") == ["numpy_blocked"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It asks attnlab itself, by the variable that click reads."""
    assert status("completion", shell) == 0
    printed = capfd.readouterr().out
    assert f"_ATTNLAB_COMPLETE={shell}_complete" in printed and "attnlab" in printed


def test_another_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("completion", "csh") == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err


# -- units ---------------------------------------------------------------------------------------------

#: a unit that no other face has, or a time by a factor of its own
_OTHER = re.compile(r"\b[kKMGT]B\b|\} ?us\b|\* ?1e3:.*ms|\* ?1e6:.*s\b|>> ?20")


@pytest.mark.parametrize("folder", ["attnlab", "implementations", "suites"])
def test_every_face_says_sizes_and_times_alike(folder: str) -> None:
    """In MiB and ms, as `attnlab.units` writes them: no text is made with a factor of its own."""
    home = Path(__file__).parents[2] / folder
    found = {
        f"{file.relative_to(home)}:{number}: {line.strip()}"
        for file in home.rglob("*.py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if 'f"' in line and _OTHER.search(line)
    }
    assert not found

"""``attnlab report``: every format, another folder, and one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnlab.__main__ import main
from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as end:
        main(["report", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run of two contenders and one workload, on disk."""
    workload = Workload(heads=1, queries=8, keys=8, head_dim=4)
    columns = {"round": tuple(map(float, range(6))), "process": tuple(float(at // 2) for at in range(6))}
    folder = tmp_path / "run"
    folder.mkdir()
    run = Run(
        folder,
        Plan(workloads=(workload,), experiments=("none",)),
        {"cpu": "x"},
        ("a", "b"),
        "a",
        complete=True,
    )
    run.save()
    times = {"a": (2.0, 2.01, 2.02, 2.0, 1.99, 2.0), "b": (1.0, 1.01, 1.0, 0.99, 1.0, 1.0)}
    run.append(
        [
            Result(
                name, workload, Outcome.MEASURED, measurements=(Measurement("latency", "s", some, columns),)
            )
            for name, some in times.items()
        ]
    )
    return folder


def test_markdown_is_written_and_the_verdict_printed(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = command(capsys, stored)
    assert status == 0 and out.startswith("Use b: nothing is decidedly faster here.")
    assert (
        (stored / "report.md")
        .read_text(encoding="utf-8")
        .startswith("# Which attention to run here\n\n**Use `b`**")
    )
    assert out.rstrip().endswith(f"The report: {stored / 'report.md'}")


def test_html_goes_where_it_is_told(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, _ = command(capsys, stored, "--format", "html", "--out", tmp_path / "page")
    assert status == 0 and "<!doctype html>" in (tmp_path / "page" / "report.html").read_text(
        encoding="utf-8"
    )
    assert not (stored / "tables").exists()


@pytest.mark.parametrize("form", ["md", "html"])
def test_the_page_to_explore_is_that_of_its_own_command(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    status, out, _ = command(capsys, stored, "--page", "--format", form, "--out", tmp_path / "both")
    page = tmp_path / "both" / "explore.html"
    assert status == 0 and out.rstrip().endswith(f"The page: {page}")
    with pytest.raises(SystemExit):
        main(["explore", str(stored), "--no-open", "--out", str(tmp_path / "alone.html")])
    assert page.read_text(encoding="utf-8") == (tmp_path / "alone.html").read_text(encoding="utf-8")


def test_data_is_printed_and_nothing_is_written(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(stored.iterdir())
    assert json.loads(command(capsys, stored, "--format", "json")[1])["answer"].startswith("Use b")
    lines = command(capsys, stored, "--format", "csv")[1].splitlines()
    assert lines[0].startswith('"group","heads","n","contender",') and len(lines) == 3
    summary = command(capsys, stored, "--summary")[1]
    assert summary.count("\n") == 1 and summary.startswith("**Use `b`**")
    assert sorted(stored.iterdir()) == before


@pytest.mark.parametrize("given", [["--out", "elsewhere"], ["--page"]])
@pytest.mark.parametrize("arguments", [["--format", "csv"], ["--summary"]])
def test_what_is_printed_has_no_folder_and_no_page(
    stored: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], given: list[str]
) -> None:
    status, _, err = command(capsys, stored, *arguments, *given)
    assert status == 2 and err.count("\n") == 1 and f"{given[0]} is for md and html" in err


@pytest.mark.parametrize(
    ("given", "advice"),
    [([], "give another folder with --out"), (["--page"], "name another place with --out")],
)
def test_a_folder_that_cannot_be_written_to_is_one_line(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], advice: str
) -> None:
    (tmp_path / "taken").write_text("")
    status, _, err = command(capsys, stored, "--out", tmp_path / "taken", *given)
    assert status == 1 and err.count("\n") == 1
    assert "cannot be written" in err and advice in err


def test_another_format_version_is_one_line(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads((stored / "run.json").read_text())
    (stored / "run.json").write_text(json.dumps({**told, "format": 99}))
    status, _, err = command(capsys, stored)
    assert (
        status == 2 and err.count("\n") == 1 and "is not of format 1; measure again with this version" in err
    )


def test_a_run_cut_off_in_its_last_line_is_told_from_the_rest(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (stored / "results.jsonl").read_text().splitlines()
    (stored / "results.jsonl").write_text("\n".join([lines[0], lines[1][: len(lines[1]) // 2]]))
    status, out, _ = command(capsys, stored)
    assert status == 0 and out.startswith("Only a has a time: there is nothing to compare it with.")

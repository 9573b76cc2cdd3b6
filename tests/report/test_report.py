"""The report is whole for any run, the same when it is made again, and harmless whatever names and reasons hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import disturbed

from attnlab.errors import NotStored
from attnlab.lab import CHAPTER_FILE
from attnlab.report import Frames, fill, report_text, show, verdict_text, write
from attnlab.report.render import escaped, faster, speedup
from attnlab.runs.gate import Gate, Kinds, Line, Margins, Reason
from attnlab.runs.store import Run, read_run
from attnlab.workload.workload import Workload

Make = Callable[..., Run]
PAIR = ("torch_eager", "torch_sdpa")
#: `a` is the faster up to n = 632 at 1 head
CROSSING = {"a": lambda w: 1e-4 + 2e-9 * w.pairs, "b": lambda w: 5e-4 + 1e-9 * w.pairs}
NASTY = "<script>alert(1)</script> [y](javascript:z) | `x` \x1b[31m"


def checked(text: str) -> str:
    """The report, whose tables are rectangular, with no blank left unfilled."""
    assert not re.search(r"\bNone\b|\bnan\b|\{\{|\}\}|\{%|\n\n\n|(?<!pa)<NA>", text)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    return text


def test_a_whole_run_has_everything_and_the_same_when_made_again(made: Make) -> None:
    run = made(lengths=(64, 1024), heads=(16,))
    page = write(run)
    text = checked(page.read_text(encoding="utf-8"))
    assert "**Use `torch_sdpa`**" in text[:80] and "attnlab run --lengths 64,2048" in text
    assert "torch_eager#2" not in text, "entered twice, reported once"
    pictures = re.findall(r"!\[(.*?)\]\((figures/.*?)\)", text)
    assert [Path(file).stem for _, file in pictures[:4]] == ["latency", "winners", "memory", "roofline"]
    for says, file in pictures:
        assert (page.parent / file).read_bytes().startswith(b"\x89PNG") and len(says) > 20
    assert any("torch_sdpa" in says and re.search(r"\d (ms|µs)", says) for says, _ in pictures)
    assert len(text[: text.index("## Details")].splitlines()) < 60, "two screens"
    again = read_run(run.folder)
    shown = [{"says": says, "link": file} for says, file in pictures[:4]]
    assert report_text(Frames(again), shown) == report_text(Frames(run), shown)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"contenders": ("torch_sdpa",), "baseline": "torch_sdpa"}, "Only `torch_sdpa` was measured"),
        ({"memory": False, "ceiling_flops": 1e6}, "No verdict"),
        ({"wrong": PAIR, "contenders": PAIR}, "Use none of these here"),
        ({"lengths": (64,), "heads": (1,), "complete": False}, "The run was interrupted: 1 of 1"),
        ({"processes": 1, "contenders": PAIR}, "No verdict yet"),
        ({"variants": ({}, {"direction": "training"}), "contenders": PAIR}, "| use |"),
        ({"costs": CROSSING, "lengths": (64, 256, 1024, 4096)}, "`a` is faster below n ≈ "),
    ],
)
def test_a_run_that_lacks_something_is_reported_as_far_as_it_goes(
    made: Make, options: dict, said: str
) -> None:
    frames = Frames(made(**{"lengths": (64, 256), "heads": (1,), **options}))
    assert said in checked(report_text(frames))


def test_an_empty_run_says_so(made: Make, tmp_path: Path) -> None:
    run = replace(made(complete=False), results=[], ceilings=[])
    (run.folder / CHAPTER_FILE).unlink()
    text = checked(write(run, tmp_path).read_text(encoding="utf-8"))
    assert "**No verdict**: this run holds no results." in text and not list((tmp_path / "figures").iterdir())


def test_a_run_of_which_no_round_counts_tells_no_speed(made: Make) -> None:
    run = disturbed(made(contenders=(*PAIR, "torch_eager#2"), heads=(1,)), lambda *turn: True)
    text = checked(report_text(Frames(run)))
    assert not re.search(r"\d× faster|\d (ms|µs|ns)\b", text)


def test_a_fallback_is_told(made: Make) -> None:
    run = made(contenders=PAIR, heads=(1,))
    run.results = [
        replace(one, asked_kernel="_flash", kernel="_math") if one.contender == "torch_sdpa" else one
        for one in run.results
    ]
    assert "`torch_sdpa` asked for `_flash`, but `_math` ran" in report_text(Frames(run))


def test_a_hostile_run_has_harmless_markdown(made: Make) -> None:
    """Nothing in names, reasons, environment or command begins a tag, a link, a cell or a second code block."""
    run = made(contenders=PAIR, heads=(1,), wrong=("torch_eager",))
    run.environment = {**run.environment, "cpu": NASTY, "governor": f"```\n{NASTY}"}
    run.results = [
        replace(one, reason=NASTY) if one.reason else replace(one, kernel=NASTY) for one in run.results
    ]
    run.command, run.torn = f"attnlab ```\n# {NASTY}", {"results.jsonl": [NASTY]}
    text = checked(report_text(Frames(run)))
    tags = re.findall(r"<(/?\w+)", re.sub(r"```.*?```", "", text, flags=re.S))
    assert set(tags) <= {"details", "/details", "summary", "/summary"}
    assert "\x1b" not in text and "](javascript" not in text and text.count("```") == 2


def test_entries_of_the_environment_may_be_anything(made: Make) -> None:
    """A file may hold text where a mapping or a number belongs."""
    run = made(contenders=PAIR, heads=(1,))
    run.environment = {
        "cores": "many",
        "contenders": [1],
        "variables": None,
        "gpus": 3,
        "memory_bytes": "lots",
    }
    checked(report_text(Frames(run)))
    run.environment = {
        "contenders": {"torch_sdpa": {"pools": "x", "versions": 3}},
        "not_seen_here": ["steal time"],
    }
    checked(report_text(Frames(run)))


def test_a_folder_that_cannot_be_written_to_is_one_line(made: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotStored, match="--out FOLDER") as told:
        write(made(contenders=PAIR, lengths=(64,), heads=(1,)), tmp_path / "file" / "below")
    assert "\n" not in str(told.value)


@settings(max_examples=40)
@given(st.text(max_size=40))
def test_no_text_begins_a_tag_a_span_a_link_a_cell_or_a_second_line(text: str) -> None:
    assert not re.search(r"<[A-Za-z/!?]|`|!\[|\]\(|\]:|\n|(?<!\\)\|", escaped(text))


def test_a_gate_is_told_with_its_reasons_and_speedups() -> None:
    """A regression of a half in time and memory, as a table with a space after each sign."""
    why = Reason("memory", 2**20, 2**22), Reason("time", 0.0, 0.0)
    line = Line("mine", Workload(), Kinds.REGRESSION, why, ratio=2.0, low=1.6, high=2.5)
    text = fill("gate.md.j2", found=Gate("main", "HEAD", Margins(), (line,), {}, 12.0), quiet=False)
    assert "Regression: `HEAD` is worse than `main` in 1 of 1 race" in text
    assert "| 0.500 [0.400," in text and "1.00 MiB → 4.00 MiB; slower |" in text


def test_speedups_are_written_one_way() -> None:
    assert speedup(1.392, 1.281, 1.504).replace("\N{NO-BREAK SPACE}", " ") == "1.39 [1.28, 1.50]"
    assert speedup(1.392) == "1.39" and speedup(None) == speedup(float("nan")) == "–"
    assert faster(1.392, 1.281, 1.504).startswith("1.39× faster [1.28,") and faster(38.0) == "38.0× faster"


def test_a_terminal_shows_words_without_markup(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    show(verdict_text(made(contenders=PAIR, heads=(1,))))
    out = capsys.readouterr().out
    assert "Use torch_sdpa:" in out and "**" not in out and "`" not in out and "|" not in out

"""The report is complete for any run, the same if made again, and harmless whatever names and reasons contain."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from process_sets import compared
from synthetic import disturbed, synthetic
from typed import status

from attnlab.errors import NotStored
from attnlab.lab import CHAPTER_FILE
from attnlab.report import comparison_text, report_texts, write
from attnlab.report.figures import draw
from attnlab.report.frames import Frames
from attnlab.report.render import escaped, fill
from attnlab.runs.gate import Gate, Kinds, Line, Margins, Reason
from attnlab.runs.store import Run, read_run
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

Make = Callable[..., Run]
PAIR = ("torch_eager", "torch_sdpa")
#: `a` is faster up to n = 632 with 1 head
CROSSING = {"a": lambda w: 1e-4 + 2e-9 * w.pairs, "b": lambda w: 5e-4 + 1e-9 * w.pairs}
#: two contenders whose difference stays undecided
OPEN = {"contenders": PAIR, "costs": dict.fromkeys(PAIR, lambda w: 1e-4), "noise": 0.2}
OPEN |= {"dtypes": ("bfloat16",), "direction": "training"}
#: one kernel under two names; a backend for CUDA only; two contenders that each take too long at one size
FUSED, CUDA = ("torch_sdpa", "torch_sdpa_flash"), "torch_sdpa_cudnn"
TURNS = {"a": lambda w: 1e-4 if w.keys == 64 else 3.0, "b": lambda w: 3.0 if w.keys == 64 else 1e-4}
NASTY = "<script>alert(1)</script> [y](javascript:z) | `x` \x1b[31m"


def checked(text: str) -> str:
    """The text, after a check that its tables are rectangular and that no placeholder is left."""
    assert not re.search(r"\bNone\b|\bnan\b|\{\{|\}\}|\{%|\n\n\n|(?<!pa)<NA>", text)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    return text


def reported(run: Run) -> str:
    """The report and its details."""
    return checked("\n".join(report_texts(Frames(run)).values()))


def test_a_whole_run_has_everything_and_the_same_when_made_again(made: Make) -> None:
    run = made(lengths=(64, 1024), heads=(16,))
    page = write(run)
    text, details = (checked((page.parent / one).read_text("utf-8")) for one in ("report.md", "details.md"))
    assert "**Use `torch_sdpa`**" in text[:80] and "attnlab run --lengths 64,2048" in text
    assert "torch_eager#2" not in text + details, "entered twice, reported once"
    assert "[fastest matrix" in text and "[fastest matrix" not in reported(replace(run, ceilings=[]))
    assert len(text.splitlines()) < 60, "two screens"
    assert re.search(r"^\| the fastest \| [\d.]+ µs \| [\d.]+ ms \|$", details, re.M)
    assert re.search(r"^\| `torch_sdpa` \| 1\.00 · [\d.]+ KiB \| 1\.00 · [\d.]+ MiB \|$", details, re.M)
    assert re.search(r"^\| `naive_loop` \| [\d,]+ · [\d.]+ KiB \| – \|$", details, re.M), "over budget"
    headings = re.findall(r"^## (.*)", details, re.M)
    titles = {re.sub(r"[^a-z -]", "", one.lower()).replace(" ", "-") for one in headings}
    assert {*re.findall(r"\(details\.md#(.*?)\)", text)} == titles
    pictures = re.findall(r"!\[(.*?)\]\(figures/(.*?)\.png\)", text + details)
    assert [name for _, name in pictures] == ["latency", "memory", "roofline"]
    for says, name in pictures:
        assert (page.parent / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        # two names of one kernel need the same memory
        best = "several contenders." if name == "memory" else "torch_sdpa"
        assert best in says and len(says.partition(". ")[0].split()) <= 10, "the title has the answer"
        assert "naive_loop" not in says or "naive_loop (" in says.partition("not drawn in the figures:")[2]
        assert "torch_sdpa_flash (runs the same kernel as torch_sdpa)" in says
    assert report_texts(Frames(read_run(run.folder))) == report_texts(Frames(run))


@pytest.mark.parametrize(("apart", "best"), [(1.009, "several contenders"), (1.011, "a")])
def test_a_figure_names_none_as_best_where_another_is_within_the_margin(made: Make, apart, best) -> None:
    costs = {"a": lambda w: 1e-9 * w.pairs, "b": lambda w: apart * 1e-9 * w.pairs}
    run = made(costs=costs, lengths=(64, 256), heads=(1,), noise=0.0, wander=0.0)
    says = draw(Frames(run))["latency"].says
    assert says.startswith(f"Fastest by median at n = 256: {best}. 1 head, n = 256: ")
    assert ("to b" in says) == (best == "a"), "what is equal is told once"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"contenders": ("torch_sdpa",), "baseline": "torch_sdpa"}, "Only `torch_sdpa` was measured"),
        ({"contenders": ("a", "b"), "costs": TURNS}, "at no size do two contenders that run different"),
        (
            {"contenders": (*PAIR[1:], CUDA), "baseline": PAIR[1]},
            f"Only `torch_sdpa` can be ranked**: the others have no time here (`{CUDA}` declined: ",
        ),
        ({"contenders": (CUDA,), "baseline": CUDA}, f"nothing could be measured (`{CUDA}` declined: cudnn"),
        ({"memory": False, "ceiling_flops": 1e6}, "no time can be believed. The warning"),
        ({"wrong": PAIR, "contenders": PAIR}, "Use none of these here"),
        ({"lengths": (64,), "heads": (1,), "complete": False}, "still goes on. All workloads"),
        ({"visits": 1, "rounds": 2, "contenders": PAIR}, "No verdict yet"),
        ({"variants": ({}, {"direction": "training"}), "contenders": PAIR}, "## The fastest of each kind"),
        (OPEN, " --length 64 --heads 1 --dtype bfloat16 --direction training`"),
        ({"costs": CROSSING, "lengths": (64, 256, 1024, 4096)}, "`a` is faster below n ≈ 6"),
        ({"costs": dict.fromkeys("ab", lambda w: 1e-4), "noise": 0.1}, "it is undecided whether"),
        (
            {"costs": dict.fromkeys("ab", lambda w: 1e-4 * w.keys**2)},
            "At 1 of 2 sizes no contender has a time",
        ),
    ],
)
def test_a_run_that_lacks_something_is_reported_as_far_as_it_goes(made, options, said) -> None:
    assert said in reported(made(**{"lengths": (64, 256), "heads": (1,), **options}))


def test_an_empty_run_says_so(made: Make, tmp_path: Path) -> None:
    run = replace(made(complete=False), results=[], ceilings=[])
    (run.folder / CHAPTER_FILE).unlink()
    (tmp_path / "figures").mkdir()
    for name in ("latency.png", "of-somebody-else.png"):
        (tmp_path / "figures" / name).touch()
    text = checked(write(run, tmp_path).read_text(encoding="utf-8"))
    assert "**No verdict**: this run holds no results." in text
    assert [one.name for one in (tmp_path / "figures").iterdir()] == ["of-somebody-else.png"]


def test_a_run_of_which_no_round_counts_tells_no_speed(made: Make) -> None:
    run = disturbed(made(contenders=(*PAIR, "torch_eager#2"), heads=(1,)), lambda *turn: True)
    text = reported(run)
    assert not re.search(r"\d× faster|\d (ms|µs|ns)\b", text)


def test_what_left_early_is_named_with_its_reason_and_has_no_interval(made: Make) -> None:
    """At one size: a rival, and another name of the fastest kernel, with a "?" before its ratio of medians."""
    run = made(contenders=(*FUSED, "torch_eager"), baseline=FUSED[0], lengths=(64, 256), heads=(1,))

    def early(one: Result) -> Result:
        assert one.latency is not None
        columns = {name: column[:2] for name, column in one.latency.columns.items()}
        first = replace(one.latency, samples=(1e-5, 1e-5), columns=columns)
        return replace(one, left="a call takes 9 s", measurements=(first, *one.measurements[1:]))

    run.results = [
        replace(one, reason="a note") if one.contender == FUSED[0] or one.workload.keys == 64 else early(one)
        for one in run.results
    ]
    text = reported(run)
    assert "which has no interval: it left after 1 visit (a call takes 9 s)" in text
    assert "| left some visits | 1 of 2 sizes: n = 256, 1 head | a call takes 9 s |" in text
    assert "a note" not in text, "which is no exit"
    assert re.search(r"^\| `torch_sdpa_flash` \| [\d.]+ · [^|]*\| \? \d", text, re.M)
    costs = {"a": lambda w: 1e-4, "b": lambda w: 1e-5 if w.keys == 256 else 2e-4, "c": lambda w: 3e-4}
    run = made(costs=costs, lengths=(64, 128, 256), heads=(1,))
    at = next(n for n, one in enumerate(run.results) if (one.contender, one.workload.keys) == ("a", 256))
    run.results[at] = early(run.results[at])
    assert (Frames(run).choice() or {})["behind"] == 0, "what has no interval is not behind"


def test_a_fallback_is_told(made: Make) -> None:
    run = made(contenders=PAIR, heads=(1,))
    run.results = [replace(one, asked_kernel="_flash", kernel="_math") for one in run.results]
    assert "`torch_sdpa` asked for `_flash`, but `_math` ran" in reported(run)


def test_a_hostile_run_has_harmless_markdown(made: Make) -> None:
    """Nothing in names, reasons, environment or command begins a tag, a link, a cell or a second code block."""
    run = made(contenders=PAIR, heads=(1,), wrong=("torch_eager",))
    run.environment = {**run.environment, "cpu": NASTY, "governor": f"```\n{NASTY}"}
    run.results = [replace(one, **{"reason" if one.reason else "kernel": NASTY}) for one in run.results]
    run.command, run.torn = f"attnlab ```\n# {NASTY}", {"results.jsonl": [NASTY]}
    text = reported(run)
    tags = re.findall(r"<(/?\w+)", re.sub(r"```.*?```", "", text, flags=re.S))
    assert not tags and "\x1b" not in text and "](javascript" not in text


def test_entries_of_the_environment_may_be_anything(made: Make) -> None:
    """A file may contain text in place of a mapping or a number."""
    run = made(contenders=PAIR, heads=(1,))
    odd = {"contenders": {"torch_sdpa": {"pools": "x", "versions": 3}}, "not_seen_here": ["steal time"]}
    for one in (
        {"cores": "many", "contenders": [1], "variables": None, "gpus": 3, "memory_bytes": "lots"},
        odd,
    ):
        run.environment = one
        reported(run)


def test_a_folder_that_cannot_be_written_to_is_one_line(made: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotStored, match="--out FOLDER") as told:
        write(made(contenders=PAIR, lengths=(64,), heads=(1,)), tmp_path / "file" / "below")
    assert "\n" not in str(told.value)


@settings(max_examples=40)
@given(st.text(max_size=40))
def test_no_text_begins_a_tag_a_span_a_link_a_cell_or_a_second_line(text: str) -> None:
    assert not re.search(r"<[A-Za-z/!?]|`|!\[|\]\(|\]:|\n|(?<!\\)\|", escaped(text))


def test_what_cannot_run_here_is_one_sentence_and_a_shared_setting_no_warning(made: Make) -> None:
    """A contender with settings of its own keeps its reason."""
    run = made(contenders=PAIR, lengths=(64,), heads=(1,))
    for name in ("jax_xla", "keras", "torch_sdpa[python=gone]"):
        run.results.append(Result(name, run.plan.workloads[0], Outcome.UNAVAILABLE, f"no {name} here"))
    run.environment = {**run.environment, "variables": {"OMP_NUM_THREADS": "1"}}
    text = reported(run)
    assert "2 backends cannot run here: `jax_xla`, `keras`." in text and "no jax_xla" not in text
    assert "no torch_sdpa(python=gone) here" in text.replace("[", "(").replace("]", ")")
    assert "Warning" not in text and "| variables | OMP_NUM_THREADS 1 |" in text


@pytest.mark.parametrize("kind", [Kinds.REGRESSION, Kinds.NO_VERDICT])
def test_a_gate_is_told_with_its_reasons_and_speedups(kind: Kinds) -> None:
    """A row has size, speedup, interval and what was found. Without a verdict the table is always shown."""
    why = Reason("memory", 2**20, 2**22), Reason("unseen", head=2.5)
    line = Line("mine", Workload(), kind, why, ratio=2.0, low=1.6, high=2.5)
    found, unclear = Gate("main", "HEAD", Margins(), (line,), {}, 12.0), kind is Kinds.NO_VERDICT
    text, brief = (checked(fill("gate.md.j2", found=found, quiet=quiet)) for quiet in (False, True))
    row = "| 0.500 [0.400, 0.625] | peak memory 1.00 MiB → 4.00 MiB; a slowdown of up to 150 % could not"
    said = "No verdict on `HEAD` against `main`" if unclear else "`HEAD` is worse than `main` in 1 of 1"
    assert row in text and (row in brief) == unclear and said in brief


def test_a_stored_run_is_shown_as_data_and_reported(tmp_path, capsys) -> None:
    """Showing writes nothing. The report here is of a run without results, in a folder whose name is not UTF-8."""
    stored = tmp_path / os.fsdecode(b"run\xff" if sys.platform == "linux" else b"run")
    out = stored / "other"
    stored.mkdir()
    synthetic(stored, lengths=(64, 1024), heads=(4,))
    before = {file: file.read_bytes() for file in stored.iterdir()}
    assert status("show", str(stored), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["use"] == "torch_sdpa" and [one["n"] for one in told["winners"]] == [64, 1024]
    assert status("show", str(stored), "--format", "bmf") == 0
    assert "latency" in json.loads(capsys.readouterr().out)["b1 h4 n64 d64 float32 cpu torch_sdpa"]
    assert {file: file.read_bytes() for file in stored.iterdir()} == before
    (stored / "results.jsonl").write_text("")
    (stored / "numerics.json").unlink()
    assert status("report", str(stored), "--out", str(out)) == 0
    shown = str(out / "report.md").encode(errors="backslashreplace").decode()
    assert f"The report: {shown}" in capsys.readouterr().out
    assert {one.name for one in out.iterdir()} == {"report.md", "details.md", "explore.html", "figures"}
    pages = "".join(one.read_text("utf-8") for one in out.glob("*.md"))
    assert all((out / one).exists() for one in re.findall(r"\]\((?!https)([^)#]+)", pages))


COSTS = {"a": lambda w: 2e-4, "b": lambda w: 1e-4, "c": lambda w: 8e-4, "d": lambda w: 2e-4}
ONE: dict[str, Any] = {"lengths": (256,), "heads": (1,), "rounds": 30, "noise": 1e-3, "ceiling_flops": 1e18}


def told(pattern: str, text: str) -> float:
    """The number that the pattern finds."""
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_a_race_says_which_is_faster_and_by_how_much(made: Make) -> None:
    run = made(costs=COSTS, **ONE)
    missing = Result("e", run.results[0].workload, Outcome.UNAVAILABLE, "no library")
    raced = compared(*run.results, missing)
    text = comparison_text(raced, chosen="of lengths the middle one")
    assert told(r"\*\*`b` is ([\d.]+)× faster \[.*\] than `a`", text) == pytest.approx(2, rel=0.02)
    assert told(r"\*\*`a` is ([\d.]+)× faster \[.*\] than `c`", text) == pytest.approx(4, rel=0.02)
    assert "`d` and `a` are equally fast" in text
    assert "- `e`: unavailable. no library\n" in text and "- of lengths the middle one\n" in text
    assert told(r"\| `b` \| [\d.]+ µs \| ([\d.]+) \[", text) == pytest.approx(2, rel=0.02)
    brief = comparison_text(raced, quiet=True)
    assert "|" not in brief and "faster" in brief


def test_the_numbers_of_the_table_are_explained_by_one_of_its_cells(made: Make) -> None:
    """The cell has an interval and the most frequent rival. A cell with another rival names it."""
    costs = {"a": lambda w: 1e-2, "b": lambda w: 2e-2 if w.keys == 64 else 4e-2}
    costs["c"] = lambda w: 6e-2 - costs["b"](w)
    text = reported(made(costs=costs, kernels={}, lengths=(64, 256, 1024), heads=(8,)))
    told = re.search(
        r"^(`a` [\d.]+ \[[\d.]+, [\d.]+\]) means that a call of `a` is .* than one of `c`", text, re.M
    )
    assert told and f"| 256 | ● {told[1]} |" in text
    assert re.search(r"\| 64 \| ● `a` [\d.]+ \[[\d.]+, [\d.]+\] over `b` \|", text)
    few = reported(made(costs=costs, kernels={}, lengths=(64, 256), heads=(8,), visits=1, rounds=2))
    assert "from –" not in few

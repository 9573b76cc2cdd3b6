"""The page is whole for any run, and the same when it is made again from the folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from synthetic import synthetic

from attnlab.experiments.catalogue import experiment
from attnlab.experiments.finding import Finding, Row
from attnlab.figures import settled
from attnlab.problem.result import Measurement, Outcome
from attnlab.report import formats, verdict_figures, verdict_text, write
from attnlab.report.analysis import analyse
from attnlab.report.experiments import conditions, left_out
from attnlab.report.experiments_page import overview
from attnlab.report.formats import Writing, content_of, draw, render
from attnlab.runs.store import read_run

SMALL = {"lengths": (64, 256, 1024, 2048), "heads": (1, 4)}
CHAPTERS = (
    "Verdict",
    "Time",
    "Memory",
    "Accuracy",
    "Distance from the machine's limit",
    "Who ran, and who did not",
    "Numerical experiments",
    "How sure this is, and how to repeat it",
)


def unpainted(run):
    """The page without its figures, which are most of the work."""
    return check_text(render(content_of(run), {}))


def check(page):
    """`check_text`, and every file linked exists; a figure is small, there as SVG, and says what it shows."""
    text = check_text(page.read_text(encoding="utf-8"))
    for says, link in re.findall(r"!\[(.*?)\]\((.*?)\)", text):
        assert (page.parent / link).read_bytes().startswith(b"\x89PNG")
        assert (page.parent / link).stat().st_size < 150_000
        assert b"<svg" in (page.parent / link).with_suffix(".svg").read_bytes()[:1000]
        assert len(says) > 40 and re.search(r"\d", says), says
    for link in re.findall(r"(?<!!)\[[^\]]*\]\((tables/.*?)\)", text):
        assert (page.parent / link).read_text(encoding="utf-8").count("\n") > 1
    return text


def check_text(text):
    """Every chapter is there in order, ten at most, no blank was left unfilled, tables are rectangular, no HTML."""
    found = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [one for one in CHAPTERS if one in found] == found and len(found) <= 10
    assert not re.search(r"\bNone\b|\{\{|\}\}|\{%|\bnan\b", text)
    assert "\n\n\n" not in text
    assert len(text.encode()) < 40_000
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1
    return text


def test_a_full_run_has_every_chapter_figure_and_table(made):
    page = write(made(lengths=(64, 256, 1024, 2048), heads=(1, 16)))
    text = check(page)
    for name in (
        "winners",
        "speedups",
        "trailing",
        "latency",
        "memory",
        "ceiling",
        "finding-variance_scaling",
    ):
        assert f"(figures/{name}.png)" in text
    for name in (
        "winners",
        "results",
        "measurements",
        "growth",
        "contenders",
        "environment",
        "finding-variance_scaling",
    ):
        assert f"(tables/{name}.csv)" in text
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == CHAPTERS
    assert "attnlab run --lengths 64,2048" in text
    assert "a call is predicted to take" in text
    assert "40 of 40 comparisons passed" in text
    # entered twice, reported once
    assert "torch_eager#2" not in text
    assert text.index("**Use `torch_sdpa`**") < 60


def test_a_report_made_again_from_the_folder_is_the_same(made):
    run = made(lengths=(64, 256), heads=(1,))
    first = write(run).read_bytes()

    def files():
        folders = (run.folder / "figures", run.folder / "tables")
        return {file.name: file.read_bytes() for folder in folders for file in folder.iterdir()}

    before = files()
    assert {name.rpartition(".")[2] for name in before} >= {"png", "svg", "csv"}
    again = read_run(run.folder)
    assert write(again).read_bytes() == first
    assert files() == before
    assert verdict_text(again) == verdict_text(run)


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": (128,), "heads": (1,)},
        {"lengths": (128,), "heads": (1, 4)},
        {"lengths": (64, 128), "heads": (4,), "memory": False},
        {"lengths": (64, 128), "heads": (1,), "contenders": ("torch_eager",)},
        {"lengths": (64, 128), "heads": (1,), "contenders": ("torch_eager", "torch_eager#2")},
        {"lengths": (64, 128), "heads": (1,), "contenders": ("torch_sdpa_cudnn", "torch_sdpa_efficient")},
        {"lengths": (64, 128), "heads": (1,), "rounds": 1},
        {"lengths": (64, 128), "heads": (1,), "wrong": ("torch_eager", "torch_sdpa")},
        {"lengths": (64, 128), "heads": (1,), "dtypes": ("float32", "bfloat16")},
        {"lengths": (64, 128), "heads": (1,), "baseline": "torch_sdpa_cudnn"},
    ],
    ids=lambda options: ", ".join(f"{k}={v}" for k, v in options.items()),
)
def test_a_degenerate_run_still_makes_a_whole_page(made, options, tmp_path):
    run = made(**options)
    unpainted(run)
    Writing(draw(analyse(run)), tmp_path)
    json.loads(formats.json_text(run))
    assert formats.summary(run).count("\n") == 0


def test_any_further_instrument_has_its_table(made):
    run = made(lengths=(64, 128), heads=(4,))

    def with_faults(one):
        faults = Measurement("page_faults", "1", (7.0, 9.0, 8.0))
        measured = one.outcome is Outcome.MEASURED
        return replace(one, measurements=(*one.measurements, faults)) if measured else one

    run.results = [with_faults(one) for one in run.results]
    text = unpainted(run)
    table = text[text.index("**page faults** (median; all in [measurements](tables/measurements.csv))") :]
    assert re.search(r"\| `torch_sdpa` +\| +8.00 \|", table)


def test_a_run_with_nothing_in_it_says_so(made):
    run = made(lengths=(64,), heads=(1,))
    run.results, run.findings, run.ceilings, run.account, run.environment = [], [], [], {}, {}
    run.complete, run.command, run.started = False, "", ""
    text = check(write(run))
    assert (
        "**No verdict**: this run holds no results. Go on with it (`attnlab run --resume`) or repeat it."
        in text
    )
    assert "This run was interrupted: 0 of 1 workload" in text
    assert not list((run.folder / "figures").iterdir())
    assert not list((run.folder / "tables").iterdir())


def test_an_interrupted_run_says_so_at_the_top(made):
    run = made(**SMALL, complete=False)
    run.results = [one for one in run.results if one.workload.queries < 1024]
    text = unpainted(run)
    assert text.index("This run was interrupted: 4 of 8 workloads") < text.index("## Verdict")


def test_a_broken_self_test_is_the_first_thing_said(made):
    text = unpainted(made(**SMALL, second_entry=1.3))
    assert text.index("The self-test failed on 8 of 8 workloads") < text.index("## Verdict")


def test_a_contender_with_two_speeds_is_told_with_both_and_with_what_to_try(made):
    quiet = {**SMALL, "noise": 0.002, "wander": 0.001, "rounds": 60}
    text = unpainted(made(**quiet, speeds={"torch_eager": 1.3}))
    chapter = text[text.index("Contenders with two speeds:") : text.index("**A length that was not")]
    assert chapter.count("\n- ") == 1
    assert "`torch_eager` takes" in chapter
    assert "by where its memory lies (3 and 7 of 10 placements)" in chapter
    assert "race `torch_eager[pages=huge]`" in chapter
    assert "two speeds" not in unpainted(made(**quiet))


def test_what_a_system_hides_is_told_with_the_self_test(made):
    run = made(**SMALL)
    assert "goes unseen" not in unpainted(run)
    run.environment = {**run.environment, "not_seen_here": ["run delay of threads (no schedstat)"]}
    assert "does not tell the run delay of threads (no schedstat)" in unpainted(run)


def test_a_wrong_contender_never_appears_with_a_speed(made):
    run = made(**SMALL, wrong=("torch_sdpa",))
    text = unpainted(run)
    assert {one.outcome for one in run.results if one.contender == "torch_sdpa"} == {Outcome.WRONG}
    times = text[text.index("## Time") : text.index("## Accuracy")]
    assert "`torch_sdpa`" not in times
    assert "**Do not use `torch_sdpa`**" in text
    rows = [row for row in dict(content_of(run).tables())["results"] if row["contender"] == "torch_sdpa"]
    assert rows and all(row["median_s"] is row["peak_bytes"] is row["flops_per_s"] is None for row in rows)


def test_a_pipe_in_a_reason_does_not_break_a_table(made):
    run = made(lengths=(64, 128), heads=(1,))
    run.environment = {"cpu": "one | two", "note": "three\nlines | here"}
    assert "three lines \\| here" in unpainted(run)


def test_figures_of_an_earlier_report_are_removed(made):
    run = made(lengths=(64, 128), heads=(1,))
    run.findings = []
    earlier = run.folder / "figures" / "finding-variance_scaling.png"
    earlier.parent.mkdir()
    earlier.touch()
    write(run)
    assert not earlier.exists()


def test_labels_are_moved_apart_and_no_further():
    places = settled([10, 11, 12, 100], [10, 10, 10, 10], [(0, 5)] * 4)
    assert places == [1, 11, 21, 100]
    assert settled([10, 11], [10, 10], [(0, 5), (6, 9)]) == [10, 11]


def test_labels_stay_within_their_panel():
    """Those of many curves at one height stand below its upper end, and never among the words of the axis."""
    places = settled([98, 99, 3], [10, 10, 10], [(0, 5)] * 3, (0, 100))
    assert places == [85, 95, 5]
    assert settled([50] * 12, [10] * 12, [(0, 5)] * 12, (0, 100))[-1] == 5


@pytest.mark.parametrize("contenders", [("torch_eager", "torch_sdpa"), ()])
def test_the_legend_of_a_trailing_figure_covers_no_words(contenders, tmp_path):
    """However few rows there are, and however many head counts."""
    run = synthetic(tmp_path, contenders=contenders, lengths=(64, 256), heads=(1, 2, 4, 8))
    drawn = verdict_figures.trailing(analyse(run))
    assert drawn is not None
    figure = drawn.figure
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend, words = axes.get_legend().get_window_extent(), axes.xaxis.label.get_window_extent()
        assert not legend.overlaps(words)
        assert legend.y0 >= 0 and 0 <= words.y0 - legend.y1 < 20


def test_the_verdict_loads_no_plotting_library():
    code = "import attnlab.report, sys; sys.exit(any(m in sys.modules for m in ('matplotlib', 'pandas', 'torch')))"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
    plotting = code.replace("import attnlab.report", "import attnlab.report, matplotlib")
    assert subprocess.run([sys.executable, "-P", "-c", plotting], check=False).returncode == 1


def test_the_report_shows_of_an_experiment_what_failed_and_links_the_rest(made):
    run = made(lengths=(64, 128), heads=(1,))
    finding = run.findings[0]
    wrong = Row(
        "variance", {"backend": "numpy_blocked", "scaling": "μP", "head_dim": 3}, 1.0, 2.0, 0.1, False
    )
    run.findings = [replace(finding, rows=(*finding.rows, wrong))]
    text = unpainted(run)
    chapter = text[text.index("## Numerical experiments") : text.index("## How sure")]
    assert "**FAIL**" in chapter and "numpy_blocked" in chapter
    assert chapter.count("\n|") == 3, "the failed row alone"
    assert experiment("variance_scaling").lesson in chapter
    assert len(dict(content_of(run).tables())["finding-variance_scaling"]) == len(finding.rows) + 1


def test_backends_that_were_left_out_are_gathered_by_reason():
    facts: dict[str, str | float] = {
        "seed": 0,
        "dtype": "float64",
        "without a in float16": "a declines b1 h1 scale=1: no kernel",
        "without b in float16": "b declines b1 h1 scale=1: no kernel",
        "without a in float32": "a declines b1 h1 scale=1: no kernel",
        "without c in bfloat16": "not installed",
        "backends": "d, e",
    }
    assert conditions(facts) == "Ran with seed 0, in float64, through 2 backends."
    assert conditions({}) == ""
    finding = Finding("x", "", "", "", (), facts)
    assert left_out([finding, finding]) == ["`a` and `b`: no kernel", "`c` in bfloat16: not installed"]


@pytest.mark.parametrize(
    ("conclusion", "shown"),
    [
        ("It holds. All 3 comparisons pass.", "It holds."),
        (f"It is 1 (a, b; c), and so on {'d' * 200}. More.", "It is 1 (a, b; c) …"),
        (f"It is 1 (a, b {'c' * 200}).", "It is 1 …"),
    ],
)
def test_the_table_of_all_experiments_says_what_was_found(conclusion, shown):
    """Whole clauses of the first sentence, none cut within brackets."""
    rows = (Row.compare("variance", {}, 1.0, 1.0), Row.compare("told", {}, None, 1.0))
    found = Finding("variance_scaling", "The variance", "Does it?", conclusion, rows)
    assert overview([found]).splitlines()[-1] == f"|The variance|{shown}|1 of 1|"

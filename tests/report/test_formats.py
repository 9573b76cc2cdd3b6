"""Every form of a report is whole for any run, the same when it is made again, and harmless whatever stands in it."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import variance, write_chapter

from attnlab.errors import NotStored
from attnlab.lab import experiment
from attnlab.lab.finding import Row
from attnlab.report import data_tables, formats, verdict_text, write
from attnlab.report.analysis import analyse, neutral_text
from attnlab.report.formats import content_of, draw, render
from attnlab.report.layout import Writing
from attnlab.runs.store import read_run
from attnlab.stats import growth
from attnlab.workload.result import Outcome

NASTY = "<script>alert(1)</script> [y](javascript:z) \x1b[31m"
SMALL = {"lengths": (64, 256), "heads": (1,), "contenders": ("torch_eager", "torch_sdpa")}
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
    return check(render(content_of(run), {}))


def check(text, folder=None):
    """Every chapter in order, no blank left unfilled, tables rectangular; linked files are there, figures are small."""
    found = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [one for one in CHAPTERS if one in found] == found and len(found) <= 10
    assert not re.search(r"\bNone\b|\{\{|\}\}|\{%|\bnan\b|\n\n\n", text) and len(text.encode()) < 40_000
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    for says, link in re.findall(r"!\[(.*?)\]\((.*?)\)", text):
        drawn = (folder / link).read_bytes()
        assert drawn.startswith(b"\x89PNG") and len(drawn) < 150_000
        assert b"<svg" in (folder / link).with_suffix(".svg").read_bytes()[:1000]
        assert len(says) > 40 and re.search(r"\d", says), says
    for link in re.findall(r"(?<!!)\[[^\]]*\]\((tables/.*?)\)", text) if folder else ():
        assert (folder / link).read_text(encoding="utf-8").count("\n") > 1
    return text


def files(folder):
    """Everything in a report, by name."""
    every = (one for name in ("figures", "tables") for one in (folder / name).iterdir())
    return {one.name: one.read_bytes() for one in every if one.suffix != ".parquet"}


def test_a_full_run_has_every_chapter_figure_and_table_and_the_same_when_made_again(made, tmp_path: Path):
    run = made(lengths=(64, 256, 1024), heads=(1, 16))
    page = write(run)
    text = check(page.read_text(encoding="utf-8"), page.parent)
    for name in ("winners", "speedups", "latency", "memory", "ceiling", "finding-variance_scaling"):
        assert f"(figures/{name}.png)" in text
    for name in ("winners", "results", "measurements", "contenders", "environment"):
        assert f"(tables/{name}.csv)" in text
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == CHAPTERS
    assert "attnlab run --lengths 64,2048" in text and "588 of 588 comparisons passed" in text
    assert "torch_eager#2" not in text, "entered twice, reported once"
    assert text.index("**Use `torch_sdpa`**") < 60
    again = write(read_run(run.folder), tmp_path / "elsewhere")
    assert again.read_text(encoding="utf-8") == text and files(again.parent) == files(page.parent)
    assert verdict_text(read_run(run.folder)) == verdict_text(run)


def test_the_report_of_a_large_run_is_that_of_a_small_one(made, tmp_path: Path, monkeypatch):
    """Its fits and figures come from processes of their own, of which none is left; earlier figures are gone."""
    run = made(lengths=(64, 128, 256, 512), heads=(1,))
    (tmp_path / "aside" / "figures").mkdir(parents=True)
    (tmp_path / "aside" / "figures" / "earlier.png").touch()
    here = write(run, tmp_path / "here")
    monkeypatch.setattr(growth, "MANY", 1)
    monkeypatch.setattr(formats, "LARGE", 1)
    for module in (growth, formats):
        monkeypatch.setattr(module, "cores", lambda: 2)
    aside = write(run, tmp_path / "aside")
    assert psutil.Process().children() == []
    assert aside.read_text(encoding="utf-8") == here.read_text(encoding="utf-8")
    assert files(aside.parent) == files(here.parent)


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": (128,)},
        {"memory": False},
        {"contenders": ("torch_eager",)},
        {"contenders": ("torch_sdpa_cudnn", "torch_sdpa_efficient")},
        {"rounds": 1},
        {"dtypes": ("float32", "bfloat16")},
        {"baseline": "torch_sdpa_cudnn"},
    ],
    ids=str,
)
def test_a_degenerate_run_still_makes_a_whole_report(made, options, tmp_path):
    run = made(**{"lengths": (64, 128), "heads": (1,), **options})
    unpainted(run)
    Writing(draw(analyse(run)), tmp_path).finish()
    json.loads(formats.json_text(run))
    assert formats.summary(run).count("\n") == 0


def test_a_run_with_nothing_in_it_says_so(made):
    run = made(lengths=(64,), heads=(1,))
    run.results, run.ceilings, run.account, run.environment = [], [], {}, {}
    write_chapter(run, [])
    run.complete, run.command, run.started = False, "", ""
    page = write(run)
    text = check(page.read_text(encoding="utf-8"), page.parent)
    assert "**No verdict**: this run holds no results." in text
    assert "This run was interrupted: 0 of 1 workload" in text
    assert files(run.folder) == {}


def test_a_wrong_contender_never_appears_with_a_speed(made):
    run = made(lengths=(64, 256), heads=(1, 4), wrong=("torch_sdpa",))
    text = unpainted(run)
    assert {one.outcome for one in run.results if one.contender == "torch_sdpa"} == {Outcome.WRONG}
    assert "`torch_sdpa`" not in text[text.index("## Time") : text.index("## Accuracy")]
    rows = [row for row in dict(content_of(run).tables())["results"] if row["contender"] == "torch_sdpa"]
    assert rows and all(row["median_s"] is row["peak_bytes"] is row["flops_per_s"] is None for row in rows)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile(run):
    """With a contender that is called by a tag, reasons that are, and an environment that is."""

    def renamed(one):
        name = NASTY if one.contender == "torch_sdpa" else one.contender
        return replace(one, contender=name, kernel=f"=cmd|{NASTY}", reason=NASTY, tail=NASTY)

    run.results = [renamed(one) for one in run.results]
    run.contenders = tuple(NASTY if one == "torch_sdpa" else one for one in run.contenders)
    run.environment = {"cpu": f"![x](http://x/{NASTY})", NASTY: f"=1+1 {NASTY}", "note": "a\nb | c"}
    run.command = f"attnlab run ```</code>{NASTY}"
    return run


def test_html_is_one_file_without_scripts_or_anything_from_elsewhere_whatever_names_hold(made):
    run = hostile(made(**SMALL))
    file = write(run, html=True)
    page = Page(file.read_text(encoding="utf-8"))
    names = {name for name, _ in page.tags}
    assert {"h1", "table", "img", "title"} <= names and not {"script", "link", "iframe", "b"} & names
    (policy,) = [one["content"] for _, one in page.tags if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    for name, attributes in page.tags:
        assert "style" not in attributes and not any(one.startswith("on") for one in attributes)
        if name == "img":
            assert attributes["src"].startswith("data:image/png;base64,") and attributes["alt"]
            assert int(attributes["width"]) > 0 and int(attributes["height"]) > 0
        if name == "a":
            assert attributes["href"].startswith("tables/") and (file.parent / attributes["href"]).is_file()
    assert "<script>alert(1)</script>" in page.text and not (file.parent / "figures").exists()
    assert "<script" not in formats.summary(run) + formats.csv_text(run)


def test_a_hostile_run_has_harmless_markdown(made):
    """In every place that a file can fill: names, reasons, kernels, facts, environment, findings, the command."""
    run = hostile(made(**SMALL))
    worse = f"<img src=x> {NASTY} [a][b] [b]: javascript:z\n\n[b]: javascript:z"
    facts = {"seconds": worse}
    write_chapter(run, [replace(variance(), title=worse, conclusion=worse, facts=facts)])
    run.plan = replace(run.plan, origins=(f"{NASTY}`/x",) * len(run.plan.workloads))
    text = render(content_of(run), {})
    unfenced = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"<(/?\w+)", unfenced)) <= {"details", "/details", "summary", "/summary"}
    assert "\x1b" not in text + verdict_text(run)
    assert "](http://x" not in unfenced and "](java" not in unfenced
    assert "[a][b]" not in text and "[b]:" not in text
    assert text.count("```") == 2 and "&lt;script" in text


def test_text_where_a_number_belongs_is_shown_and_breaks_nothing(made):
    """In the facts of a latency and of a finding, and in the rows that its figure is drawn of, which it then lacks."""
    run = made(**SMALL)
    odd = tuple(replace(row, where={**row.where, "head_dim": "x"}) for row in variance().rows)
    write_chapter(run, [replace(variance(), rows=odd, facts={"seconds": "soon", "seed": "x"})])
    for result in run.results:
        for one in result.measurements:
            object.__setattr__(one, "facts", {"others": "lots", "cut short": "x"})
            flags = (0.0, *(1.0,) * (len(one.samples) - 1))
            object.__setattr__(one, "columns", {**one.columns, "disturbed": flags})
    page = write(run).read_text(encoding="utf-8")
    assert "without a figure" in page and "others took up to lots" in page


@given(st.text(max_size=20))
def test_no_cell_begins_a_formula_and_texts_come_back(value):
    """A spreadsheet computes what begins so."""
    (row,) = list(csv.reader(io.StringIO(data_tables.csv_text([{"a": value}]), newline="")))[1:]
    cell = row[0] if row else ""
    assert not cell.startswith(("=", "+", "-", "@")) and cell in (value, f"'{value}")


@given(st.text(max_size=300))
def test_no_text_begins_a_tag_a_span_a_link_or_a_second_line(text):
    assert not re.search(r"<[A-Za-z/!?]|`|!\[|\]\(|\n|\$", neutral_text(text))


def test_json_and_csv_hold_the_answer_and_every_table(made):
    run = made(**{**SMALL, "contenders": ("torch_eager", "torch_sdpa", "torch_sdpa_cudnn")}, complete=False)
    told = json.loads(formats.json_text(run))
    assert told["answer"] == "Use torch_sdpa: nothing is decidedly faster at any of 2 sizes."
    assert told["complete"] is False and len(told["warnings"]) == 1 and len(told["tables"]["winners"]) == 2
    for row in told["tables"]["winners"]:
        assert (row["sure"], row["first"], row["next"]) == ("decided", "torch_sdpa", "torch_eager")
        assert 1 < row["over_next_low"] <= row["over_next"] <= row["over_next_high"]
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(run))))
    assert len(rows) == 6 and [row["median_s"] for row in rows if row["outcome"] == "declined"] == ["", ""]
    summary = formats.summary(run)
    assert "\n" not in summary and len(summary) < 600 and "2 of 2 workloads measured" in summary
    assert summary.startswith("**Use `torch_sdpa`**") and summary.endswith("1 warning: see the report.")


@pytest.mark.parametrize("html", [False, True])
def test_a_folder_that_cannot_be_written_to_is_one_line(made, tmp_path: Path, html):
    """A file stands in its place, which stops whoever may write anywhere, too."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(
        NotStored, match=r"^the report cannot be written into .*taken: .+give another folder"
    ) as told:
        write(made(**SMALL), tmp_path / "taken", html=html)
    assert "\n" not in str(told.value)


def test_the_report_shows_of_an_experiment_what_failed_and_links_the_rest(made):
    run = made(lengths=(64, 128), heads=(1,))
    finding = variance()
    wrong = Row(
        "variance", {"backend": "numpy_blocked", "scaling": "μP", "head_dim": 3}, 1.0, 2.0, 0.1, False
    )
    write_chapter(run, [replace(finding, rows=(*finding.rows, wrong))])
    text = render(content_of(run), {})
    chapter = text[text.index("## Numerical experiments") : text.index("## How sure")]
    assert "**FAIL**" in chapter and "numpy_blocked" in chapter
    assert chapter.count("\n|") == 3, "the failed row alone"
    assert experiment("variance_scaling").lesson in chapter
    assert len(dict(content_of(run).tables())["finding-variance_scaling"]) == len(finding.rows) + 1

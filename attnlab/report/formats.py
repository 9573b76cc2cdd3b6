"""A report of a run in its forms: Markdown or HTML with figures and tables beside it, JSON, CSV, one line for CI.

The HTML file needs nothing else: text and figures inside, readable on a phone, inert. It is made of the Markdown page
by markdown-it-py, with HTML in it left as text, and forbids itself scripts and all that comes from elsewhere (a content
security policy), so that whatever stands in a run can do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import NotStored
from attnlab.figures import Drawn
from attnlab.plain import finite
from attnlab.report import answer, data_tables, experiments_page, layout, run_figures, sentences, tables
from attnlab.report.analysis import Analysis, analyse, findings_of
from attnlab.report.layout import FIGURES, TABLES, Picture, Writing, linked, plain
from attnlab.runs.store import Run
from attnlab.stats import growth
from attnlab.stats.analysis import Group
from attnlab.stats.growth import Fitting
from attnlab.system import cores
from attnlab.text import percent

if TYPE_CHECKING:
    from markdown_it.token import Token

REPORT, HTML = "report.md", "report.html"
#: groups of workloads that have tables of their own on the page
MOST_GROUPS = 16
#: results whose tables take as long as figures do to be written
LARGE = 5000


@dataclass(frozen=True)
class Content:
    """A run as a report shows it, whatever the form: read and judged."""

    analysis: Analysis

    @cached_property
    def answer(self) -> answer.Answer:
        """Whom to use, in words."""
        return answer.answer_of(self.analysis)

    @cached_property
    def fitting(self) -> Fitting:
        """The fits of growth; many are begun when this is first asked for, and go on beside what follows."""
        return Fitting(self.analysis)

    def tables(self) -> Iterator[tuple[str, data_tables.Table]]:
        """Its tables of plain values with their names, one by one: of a large run all together fill the memory."""
        return data_tables.tables(self.analysis, self.fitting)


def content_of(run: Run) -> Content:
    """Everything that a report of `run` says."""
    return Content(analyse(run))


def draw(analysis: Analysis) -> dict[str, Drawn]:
    """The figures that there was something to draw for, by name."""
    drawn: dict[str, Drawn | None] = {
        **run_figures.heat_maps(analysis),
        "trailing": run_figures.trailing(analysis),
        "latency": run_figures.latency(analysis),
        "memory": run_figures.memory(analysis),
        "ceiling": run_figures.ceiling(analysis),
        **experiments_page.draw(findings_of(analysis.run)),
    }
    return {name: one for name, one in drawn.items() if one is not None}


# -- Markdown ---------------------------------------------------------------------------------------


def write(
    run: Run, folder: Path | None = None, content: Content | None = None, *, html: bool = False
) -> Path:
    """Write ``report.md``, ``figures/`` and ``tables/`` into `folder`, by default the run's own; return the page.

    content : that of the run, where it is known already.
    html : ``report.html`` instead, with its figures inside.
    Works on any run, be it interrupted or empty. Figures and tables of an earlier report there are replaced. Raises
    NotStored, in one line, where the folder cannot be written to.
    """
    place = run.folder if folder is None else folder
    content = content or content_of(run)
    large = len(run.results) >= LARGE and cores() > 1
    with ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            content.fitting  # noqa: B018  # begun, it goes on beside all that follows
            figures = Path(stack.enter_context(tempfile.TemporaryDirectory())) if html else place / FIGURES
            writing = Writing(draw(content.analysis), figures, aside=large)
            files = data_tables.write(content.tables(), place / TABLES)
            text = render(content, writing.pictures, files)
            pictures = writing.finish()
            page = place / (HTML if html else REPORT)
            page.write_text(html_page(text, pictures) if html else text, encoding="utf-8")
        except OSError as fault:
            raise NotStored(
                f"the report cannot be written into {place}: {fault.strerror}; nothing measured is lost: make room, or "
                f"give another folder: attnlab report {run.folder} --out FOLDER"
            ) from None
    return page


def render(content: Content, pictures: Mapping[str, Picture], files: Sequence[str] = ()) -> str:
    """The page as Markdown, with links to the figures and to the tables of those names."""
    analysis, run = content.analysis, content.analysis.run
    groups = [
        {
            "heading": f"**{group.name}**\n\n" if group.name else "",
            "name": group.name,
            "peaks": tables.peaks(analysis, group),
            "further": tables.further(analysis, group),
            "growth": sentences.growth(group, fits),
        }
        for group, fits in zip(analysis.groups, content.fitting.found, strict=True)
    ]
    return layout.fill(
        "report.md.j2",
        analysis=analysis,
        run=run,
        answer=content.answer,
        groups=groups,
        kinds=[(group.name, line) for group, line in content.answer.groups],
        pictures={name: one.link for name, one in pictures.items()},
        files=[linked(name, f"{TABLES}/{name}.csv") for name in files],
        most_groups=MOST_GROUPS,
        linked=lambda name: linked(name, f"{TABLES}/{name}.csv"),
        growth=growth,
        lower_precision=answer.lower_precision,
        sentences=sentences,
        tables=tables,
        percent=percent,
        markdown=layout.markdown,
        findings=[experiments_page.content(one, pictures) for one in findings_of(run)],
        parquet=data_tables.with_parquet(),
    )


# -- HTML -------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --pale: #8881; --link: light-dark(#1f5fbf, #8db8ff); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.2; margin: 1.6em 0 .5em; }
h1 { margin-top: .2em; }
h1 + p { font-size: 1.25rem; margin: .5em 0; }
a { color: var(--link); }
code { background: var(--pale); padding: .1em .25em; border-radius: 3px; font-size: .92em; }
pre { background: var(--pale); padding: .7em; overflow-x: auto; }
blockquote { margin: 1em 0; padding: .1em 1em; border-left: 4px solid #c24e00; background: var(--pale); }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25em .6em; }
.right { text-align: right; white-space: nowrap; }
.left { text-align: left; min-width: 3em; }
p:has(> img) { display: flex; flex-wrap: wrap; gap: 1rem; overflow-x: auto; }
p > img + img, p:has(> img + img) > img { flex: 1 1 20rem; min-width: 0; }
img { display: block; background: white; max-width: 100%; height: auto; }
img.broad { min-width: 46rem; max-width: none; width: 100%; }
.whole { white-space: nowrap; }
@media (max-width: 40rem) {
  body { padding: .75rem; }
  h1 { font-size: 1.5rem; }
  h1 + p { font-size: 1.1rem; }
  ul { padding-left: 1.2em; }
  table { font-size: .8rem; }
  td code { padding: 0; background: none; }
  th, td { padding: .25em .35em; }
  .left { min-width: 0; }
  p:has(> img:only-child) > img:not(.broad) { min-width: 34rem; max-width: none; }
}
""".strip()
#: figures wider than this are scrolled on a phone, not shrunk until nobody can read them
_BROAD = 1400
#: letters of a cell that is not broken into lines
_WHOLE = 20
#: what no line ends within
_INTERVAL = re.compile(r"\[([\d.∞-]+), ([\d.∞-]+)\]")


def html_page(markdown: str, pictures: Mapping[str, Picture]) -> str:
    """The page `markdown` as HTML, with those of `pictures` inside that it links."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    _calm(tokens, {one.file.name: one for one in pictures.values()})
    body = parser.renderer.render(tokens, parser.options, {})
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    title = next((one.content for one in tokens if one.type == "inline"), "Report")
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _calm(tokens: Sequence[Token], pictures: Mapping[str, Picture]) -> None:
    """Put the pictures into the page, and classes in the place of styles, which the policy forbids."""
    for token, follower in itertools.zip_longest(tokens, tokens[1:]):
        style = token.attrs.pop("style", None)
        if style is not None:
            side = "right" if "right" in str(style) else "left"
            whole = follower is not None and len(follower.content) <= _WHOLE
            token.attrs["class"] = f"{side} whole" if whole else side
        if token.type == "text":
            token.content = _INTERVAL.sub("[\\1,\N{NO-BREAK SPACE}\\2]", token.content)
        if token.type == "image":
            shown = pictures.get(str(token.attrs.get("src", "")).rpartition("/")[2])
            token.attrs |= _inside(shown) if shown is not None else {"src": ""}
        _calm(token.children or (), pictures)


def _inside(picture: Picture) -> dict[str, Any]:
    """The attributes of an image that holds the figure itself; with its size, so that nothing moves as it appears."""
    from PIL import Image

    with Image.open(picture.file) as image:
        width, height = image.size
    data = base64.b64encode(picture.file.read_bytes()).decode()
    broad = {"class": "broad"} if width > _BROAD else {}
    return {"src": f"data:image/png;base64,{data}", "width": width, "height": height, **broad}


# -- plain data, and one line ------------------------------------------------------------------------


def json_text(run: Run, *, brief: bool = False) -> str:
    """What the report says as one JSON object: ``answer``, ``sentences``, ``warnings``, and every table by its name.

    brief : of the tables ``winners`` alone. Numbers are in base units; infinities and nan are null.
    """
    content = content_of(run)
    told = {
        "answer": plain(content.answer.line),
        "groups": [{"name": group.name, "answer": plain(line)} for group, line in content.answer.groups],
        "sentences": [plain(one) for one in content.answer.sentences],
        "warnings": [plain(one) for one in sentences.warnings(content.analysis)],
        "complete": run.complete,
        "baseline": content.analysis.baseline,
        "margin": content.analysis.margin,
        "command": run.command,
        "tables": {"winners": list(data_tables.winners(content.analysis))}
        if brief
        else dict(content.tables()),
    }
    return json.dumps(finite(told, named=False), indent=1, ensure_ascii=False, allow_nan=False)


def csv_text(run: Run) -> str:
    """The table ``results``: a row a contender and workload, whatever became of it."""
    return data_tables.csv_text(list(data_tables.results(analyse(run))))


def summary(run: Run) -> str:
    """One line of Markdown: the answer, how much was measured, how sure, and what to worry about."""
    content = content_of(run)
    analysis, found = content.analysis, content.answer
    measured = sum(bool(cell.measured) for cell in analysis.cells)
    told = [found.line, *found.sentences[:1]]
    told.append(
        f"{measured} of {len(analysis.cells)} workloads measured, margin ±{percent(analysis.margin)}."
    )
    if warned := len(sentences.warnings(analysis)):
        told.append(f"{warned} warning{'s' if warned > 1 else ''}: see the report.")
    return " ".join(told)


def told(content: Content) -> Iterator[str | Group]:
    """The verdict, each group of workloads where its table belongs, and sentences, as plain text for a terminal."""
    found = content.answer
    warned = (f"Warning: {one}" for one in sentences.warnings(content.analysis))
    yield "\n".join(map(plain, (found.line, *warned)))
    for group, line in found.groups:
        if group.name:
            yield plain(f"{group.name}: {line}")
        yield group
    after = [tables.legend(content.analysis.won)] if found.groups else []
    yield "\n".join(map(plain, [*after, *(f"- {one}" for one in found.sentences)]))


def in_words(content: Content) -> str:
    """The verdict, its tables, the warnings and its sentences as plain text, for a terminal."""
    shown = (
        one if isinstance(one, str) else plain(tables.winners(one, for_terminal=True))
        for one in told(content)
    )
    return "\n\n".join(filter(None, shown))

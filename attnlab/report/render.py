"""Fills templates with values, and prints Markdown in a terminal.

The sentences for readers are in `templates/`. Every value that a template shows is escaped: Markdown and HTML in a name
or a reason stay text, whatever their source. Only `Markup` is not escaped.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from markupsafe import Markup

from attnlab.text import bytes_text, flops_text, number_text, one_line, percent, seconds_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console, ConsoleOptions, RenderResult

#: shown in place of a missing value
NONE = "–"
#: the start of an HTML tag or comment
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: signs that end a code span or a table cell, or begin an image or a link, with what replaces them
_SIGNS = {"`": "'", "![": "! [", "](": "] (", "]:": "] :", "|": "\\|"}
#: most characters of a value; the conclusions of experiments are the longest values
_MOST = 4000
#: columns if standard output is not a terminal: wide enough not to break sentences
_PIPED = 400


def fill(template: str, **values: Any) -> str:
    """The text of a file in `templates/`, filled with `values`. Raises jinja2.UndefinedError if a value is missing."""
    text = _templates(html=template.endswith(".html.j2")).get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _templates(*, html: bool) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("attnlab.report", "templates"),
        undefined=StrictUndefined,
        autoescape=html,
        finalize=None if html else _shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts: dict[str, Any] = {"seconds": seconds_text, "bytes": bytes_text, "flops": flops_text}
    texts |= {"percent": percent, "number": number_text, "known": str}
    made.filters |= {name: _known(text) for name, text in texts.items()}
    made.filters |= {
        "flop": lambda count: flops_text(count).removesuffix("/s"),
        "shortened": shortened,
        "code": code,
        "plural": plural,
        "speedup": speedup,
        "faster": faster,
    }
    return made


def escaped(text: str) -> str:
    """`text` in one line, without signs that Markdown or HTML would interpret; a space at its end is kept."""
    text = _TAG.sub("&lt;", one_line(text, _MOST)) + " " * text[-1:].isspace()
    for sign, instead in _SIGNS.items():
        text = text.replace(sign, instead)
    return text


def _shown(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return NONE if _missing(value) else escaped(str(value))


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _known(text: Any) -> Any:
    """A filter like `text` that shows a missing value as `NONE`."""
    return lambda value, *more: NONE if _missing(value) else text(value, *more)


def code(names: str | Iterable[str], most: int = 4) -> Markup:
    """Names as code: the first `most`, and the number of the others if there are more."""
    every = [names] if isinstance(names, str) else list(names)
    shown = [f"`{escaped(one)}`" for one in every[:most]]
    return Markup(", ".join([*shown, f"{len(every) - most} more"] if len(every) > most else shown))


def shortened(text: str | None, most: int) -> str | None:
    """`text`, cut after at most `most` characters."""
    return text if text is None or len(text) <= most else f"{text[:most].rstrip()}…"


def plural(count: int, noun: str) -> str:
    """``1 head``, ``4 heads``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def speedup(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """``1.39 [1.28, 1.50]``, without brackets if there is no interval."""
    if value is None or _missing(value):
        return NONE
    if low is None or high is None or _missing(low) or not (low > 0 and math.isfinite(high)):
        return number_text(value)
    return f"{number_text(value)} [{number_text(low)},\N{NO-BREAK SPACE}{number_text(high)}]"


def faster(value: float, low: float | None = None, high: float | None = None) -> str:
    """``1.39× faster [1.28, 1.50]``."""
    number, _, interval = speedup(value, low, high).partition(" ")
    return f"{number}× faster {interval}".rstrip()


# -- a terminal --------------------------------------------------------------------------------------


def print_markdown(markdown: str) -> None:
    """Print Markdown on standard output: in a terminal at its width and with colours, elsewhere without colours.

    Long names in tables are continued on the next line, not cut.
    """
    from rich.console import Console
    from rich.markdown import Markdown, TableElement
    from rich.table import Table

    class Folding(TableElement):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for one in super().__rich_console__(console, options):
                for column in one.columns if isinstance(one, Table) else ():
                    column.overflow = "fold"
                yield one

    class Folded(Markdown):
        elements: ClassVar = {**Markdown.elements, "table_open": Folding}

    here = sys.stdout.isatty()
    console = Console(width=None if here else _PIPED, force_terminal=here)
    with console.capture() as capture:
        console.print(Folded(markdown, inline_code_theme="ansi_dark", hyperlinks=False))
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))

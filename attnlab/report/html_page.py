"""The report as one HTML file that needs nothing else: text and figures inside, readable on a phone, inert.

Made of the Markdown page by markdown-it-py, with HTML in it left as text. The page forbids itself scripts and all that
comes from elsewhere (a content security policy), so that whatever stands in a run can do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it.token import Token

    from attnlab.report.formats import Picture

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
    """The page `markdown` as HTML, its pictures inside; `pictures` are those that it links."""
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

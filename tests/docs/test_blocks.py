"""Every code block of the README and of the documentation does what its page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import ROOT, Block, blocks, pages
from running import Reader

PAGES = [page for page in pages() if blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Typed from its top by one reader."""
    reader = Reader(tmp_path)
    for block in blocks(page):
        try:
            reader.does(block)
        except BaseException as fault:
            fault.add_note(f"in the block at {block.place}")
            raise


def test_every_block_names_its_language() -> None:
    """What has none would be tested by nobody."""
    assert [block.place for page in PAGES for block in blocks(page) if not block.language] == []


def test_what_is_not_run_says_why() -> None:
    """A reason in words, of each."""
    for page in PAGES:
        for block in blocks(page):
            assert block.mark != "parsed" or len(block.said.split()) > 1, block.place


def page_of(text: str, folder: Path) -> list[Block]:
    """A page that holds this."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return blocks(page)


PARSED = "<!-- test: parsed: takes minutes -->\n"
#: what stands on a page, and what is said of it
FAULTS = {
    "python": ("```python\nraise KeyError('wrong')\n```\n", "wrong"),
    "another output": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "the page shows\n2"),
    "unknown option": (f"{PARSED}```bash\nattnlab run --no-such-option\n```\n", "No such option"),
    "unknown command": (f"{PARSED}```bash\nattnlab no-such-command\n```\n", "No such command"),
    "unknown extra": (f"{PARSED}```bash\npip install 'attnlab[none]'\n```\n", "no extra none"),
    "exit status": ("```bash\nattnlab doctor no-such-run\n```\n", "ended with 1"),
    "foreign program": ("```bash\ntrue\n```\n", "run by nobody here"),
    "broken shell": (f"{PARSED}```bash\nif attnlab\n```\n", "bash"),
    "broken plan": ("```toml\nlength = 3\n```\n", "length"),
    "in a CI file": ("```yaml\nrun: |\n  attnlab check --no-such-option\n```\n", "No such option"),
    "unknown language": ("```cobol\n```\n", "knows the language"),
}


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_a_fault_on_a_page_is_found(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each kind one."""
    monkeypatch.setattr("blocks.ROOT", tmp_path)
    reader = Reader(tmp_path)
    found = page_of(text, tmp_path)
    with pytest.raises(Exception) as fault:
        for block in found:
            reader.does(block)
    assert said in str(fault.value) or said in getattr(fault.value, "message", "")


def test_a_mark_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not known"):
        page_of("<!-- test: skipped -->\n```bash\ntrue\n```\n", tmp_path)


def test_output_may_leave_out_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By three dots."""
    monkeypatch.setattr("blocks.ROOT", tmp_path)
    reader = Reader(tmp_path)
    for block in page_of(
        "```python\nprint('1.25 ms, right')\n```\n\n```text\n... ms, right\n```\n", tmp_path
    ):
        reader.does(block)

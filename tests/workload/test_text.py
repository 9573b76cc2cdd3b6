"""Foreign text is shown in one line that changes nothing around it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.text import MOST, one_line, without_home


@given(st.text(max_size=2000))
def test_any_text_becomes_one_bounded_printable_line(text: str) -> None:
    """No control characters, no marks of writing direction, no line breaks. A second call changes nothing."""
    shown = one_line(text)
    assert len(shown) < MOST + 40
    assert all(unicodedata.category(one)[0] != "C" for one in shown)
    assert shown == shown.strip() and "  " not in shown
    assert one_line(shown)[:MOST] == shown[:MOST]
    assert one_line("x" * 5000) == "x" * MOST + f"… ({5000 - MOST} more letters)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("left \u202eright", "left right"),
        ("\x9b31mc1", "31mc1"),
    ],
)
def test_what_a_terminal_would_act_on_goes(text: str, shown: str) -> None:
    """Colours, links, a reversed direction of writing, and control characters of one byte."""
    assert one_line(text) == shown


def test_the_home_folder_is_hidden_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    text = "/root/x, file:///root, /mnt/root/x and /rooted"
    assert without_home(text) == "~/x, file://~, /mnt/root/x and /rooted"

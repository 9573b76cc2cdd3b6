"""The worked example of three tokens prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "three-tokens.md"
STEP = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_every_step_prints_what_the_page_shows() -> None:
    """One after the other, as a reader types them."""
    np = pytest.importorskip("numpy")
    steps = STEP.findall(PAGE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    with np.printoptions():
        for code, shown in steps:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(PAGE), "exec"), names)
            assert printed.getvalue() == shown
    assert len(steps) == 5 and "False" not in "".join(shown for _, shown in steps)
    # the third token is the sum of the others, and its key has most of every query's weight
    np.testing.assert_allclose(names["K"][2], names["K"][0] + names["K"][1])
    assert (names["weights"].argmax(axis=1) == 2).all()

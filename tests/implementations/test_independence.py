"""No implementation imports another one, and tests leave out only backends whose library is not installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from every import lacking

import attnlab.implementations
from attnlab.backends.discovery import backends, load
from attnlab.errors import Unavailable

HOME = Path(attnlab.implementations.__path__[0])


@pytest.mark.parametrize("name", backends())
def test_no_implementation_imports_another(name: str) -> None:
    """Neither by its full name, nor relatively, nor from the top of the checkout."""
    source = (HOME / f"{name}.py").read_text(encoding="utf-8")
    assert not re.search(
        r"^\s*(from|import) (\.|(attnlab\.)?implementations|attnlab import .*implementations)", source, re.M
    )


def test_a_backend_that_tests_leave_out_is_not_installed() -> None:
    """Tests with all backends leave some out: each of these must fail to load, and name the missing module."""
    left_out = {name: module for name in backends() if (module := lacking(name)) is not None}
    for name, module in left_out.items():
        with pytest.raises(Unavailable, match=module):
            load(name)

"""Attentions as users write them: whatever they round, they are right, and so are their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnlab.program.check import check

FOLDER = Path(__file__).with_name("written")


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_what_users_write_passes(name: str) -> None:
    """In every dtype, or the dtype is one that it does not have."""
    found = check(name, [str(FOLDER)])
    assert found.reason is None
    assert found.passed is True and found.no_gradients is None
    lacking = {"float64"} if name in ("float32_inside", "last_key_first") else set()
    assert set(found.no_dtypes) == lacking
    assert (
        set(found.precision)
        == set(found.gradients)
        == {"float32", "float16", "bfloat16", "float64"} - lacking
    )

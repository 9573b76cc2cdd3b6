"""A stored run whose bytes were changed gives no traceback; what is whole is read, and nothing changed is shown."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from damage import Stored


@pytest.mark.parametrize("sealed", [True, False])
def test_changed_bytes_are_told_and_hide_nothing_whole(tmp_path: Path, sealed: bool) -> None:
    """Runs of before checksums too, of which a changed digit cannot be told: they are shown, or refused in one line."""
    stored = Stored(tmp_path / "run", sealed=sealed)
    told = {stored.damage(random.Random(seed)) for seed in range(300)}
    assert told == {"read", "refused"}

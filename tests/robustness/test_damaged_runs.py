"""A stored run whose bytes were changed gives no traceback; what is whole is read, and nothing changed is shown."""

from __future__ import annotations

import random
from pathlib import Path

from damage import Stored


def test_changed_bytes_are_told_and_hide_nothing_whole(tmp_path: Path) -> None:
    """A changed digit cannot be told: it is shown, or the file is refused in one line."""
    stored = Stored(tmp_path / "run")
    told = {stored.damage(random.Random(seed)) for seed in range(40)}
    assert told == {"read", "refused"}

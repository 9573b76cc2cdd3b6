"""Backends that are wrong, which experiments and claims must notice."""

from __future__ import annotations

from pathlib import Path

import pytest

#: its scale is a tenth too large
WRONG_SCALE = """
import numpy as np

LIBRARY = "numpy"


def attend(query, key, value, *, causal, scale):
    s = 1.1 * scale * (query @ key.swapaxes(-1, -2))
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return ((p / p.sum(axis=-1, keepdims=True)) @ value).astype(query.dtype)
"""


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of backends that are wrong."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "wrong_scale.py").write_text(WRONG_SCALE)
    (folder / "raises.py").write_text(
        'LIBRARY = "numpy"\ndef attend(query, key, value, *, causal, scale):\n    raise RuntimeError("no such thing")\n'
    )
    right = WRONG_SCALE.replace("1.1 * ", "")
    (folder / "not_causal.py").write_text(right.replace("causal, ", "").replace("if causal", "if False"))
    return folder

"""Wrong backends, which experiments and claims must detect."""

from __future__ import annotations

from pathlib import Path

import pytest

#: a backend whose scale is 10 % too large
WRONG_SCALE = """
from attnlab.implementations.numpy_vectorized import attend_with_log_sum as right
LIBRARY = "numpy"
def attend(query, key, value, *, causal, scale):
    return right(query, key, value, causal=causal, scale=1.1 * scale)[0]
"""


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wrong backends."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "wrong_scale.py").write_text(WRONG_SCALE)
    (folder / "raises.py").write_text(
        'LIBRARY = "numpy"\ndef attend(query, key, value, *, causal, scale):\n    raise RuntimeError("no such thing")\n'
    )
    right = WRONG_SCALE.replace("1.1 * ", "") + "print()\n"
    (folder / "not_causal.py").write_text(right.replace("*, causal", "*").replace("=causal", "=False"))
    return folder

"""The support matrix: how faults and bad settings are shown."""

from __future__ import annotations

import json
from pathlib import Path

from scripted import RIGHT

from attnlab.correctness.support import FAULT, PLAIN, YES, listed, support
from attnlab.report import support_text

WRONG = f"""{RIGHT}
import os
def attend(query, key, value, *, causal, scale):
    if query.dtype == np.float64:
        os._exit(3)
    return right(query, key, value, causal=causal, scale=scale)
"""


def test_what_is_not_declined_and_not_done_is_a_fault(tmp_path: Path) -> None:
    """The backend ignores `causal`, and ends its process in float64. After both it is still asked the rest."""
    (tmp_path / "forgets.py").write_text(WRONG)
    causal = "causal, as many queries as keys"
    found = support("forgets", folders=[str(tmp_path)], only=(PLAIN, causal, "sinks"))
    plain, masked = found.answers[PLAIN]["forward"], found.answers[causal]["forward"]
    assert plain["float32"] == YES and masked["float32"].startswith(FAULT)
    assert plain["float64"].startswith(f"{FAULT}its process exited with status 3")
    assert found.answers["sinks"]["forward"]["float64"] == "its attend() takes no sinks"
    assert found.answers[PLAIN]["forward"]["bfloat16"] == "NumPy has no bfloat16"
    assert "no automatic differentiation" in found.answers[PLAIN]["training"]["float32"]
    assert found.faults == json.dumps(found.answers).count(FAULT)
    text = support_text([found])
    assert "**fault** " in text and "exited with status 3" in text


def test_bad_settings_of_one_backend_stop_no_list(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text('LIBRARY = "numpy"\nSETTINGS = {"a": 3}\n')
    bad, good = listed("cpu", [str(tmp_path)], ["bad", "numpy_vectorized"])
    assert "SETTINGS must be written out" in (bad.reason or "") and good.reason is None

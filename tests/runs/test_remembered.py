"""The machine's ceilings are remembered, marked as remembered, and measured again if something has changed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from attnlab.environment import recalled, remember
from attnlab.workload.result import Ceiling

FOUND = Ceiling("cpu", "float32", 1.0, "numpy", 1.0, "torch")
ASKED = {"asked": "ceiling"}


def test_it_is_remembered_until_something_is_another(tmp_path, monkeypatch, cache: Path) -> None:
    """It is forgotten if a setting or a package changes, and after a month. A damaged file is ignored."""
    assert recalled(ASKED, Ceiling) is None
    remember(ASKED, FOUND)
    known = recalled(ASKED, Ceiling)
    assert known is not None and known.remembered and known == replace(FOUND, remembered=known.remembered)
    assert recalled({"asked": "another"}, Ceiling) is None
    (tmp_path / "x-2.dist-info").mkdir()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert recalled(ASKED, Ceiling) is None
    with monkeypatch.context() as patch:
        patch.setenv("OPENBLAS_CORETYPE", "another than here")
        assert recalled(ASKED, Ceiling) is None
    (file,) = (cache / "remembered").iterdir()
    good = file.read_text()
    for damaged in ("[" * 100_000, good.replace("matmul_flops", "x"), good[:-1]):
        file.write_text(damaged)
        assert recalled(ASKED, Ceiling) is None
    file.write_text(good)
    assert recalled(ASKED, Ceiling)
    os.utime(file, (time.time() - 32 * 86400,) * 2)
    assert recalled(ASKED, Ceiling) is None

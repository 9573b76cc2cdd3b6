"""What the machine can do at most is remembered, said to be, and asked again where that matters."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attnlab.environment import Remembered
from attnlab.workload.result import Ceiling

FOUND = Ceiling("cpu", "float32", 1.0, "numpy", 1.0, "torch")


def recalled(*, afresh: bool = False, asked: str = "ceiling") -> list[Ceiling] | None:
    return Remembered(afresh=afresh).recall({"asked": asked}, Ceiling)


def test_it_is_remembered_until_something_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting, a package, the month; a damaged file is no trouble."""
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    assert recalled() is None
    Remembered(afresh=True).keep({"asked": "ceiling"}, [FOUND])
    (known,) = recalled() or ()
    assert known.remembered and known == replace(FOUND, remembered=known.remembered)
    assert recalled(afresh=True) is None and recalled(asked="another") is None
    (tmp_path / "x-2.dist-info").mkdir()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert recalled() is None
    with monkeypatch.context() as patch:
        patch.setenv("OPENBLAS_CORETYPE", "another than here")
        assert recalled() is None
    file = tmp_path / "cache" / "remembered.json"
    good, year = file.read_text(), f"{datetime.now(UTC):%Y}-"
    for old, new in ((year, "1999-"), ("{", "[" * 100_000), ("matmul_flops", "x"), ("}", "")):
        file.write_text(good.replace(old, new))
        assert recalled() is None
    file.write_text(good)
    assert recalled() == [known]

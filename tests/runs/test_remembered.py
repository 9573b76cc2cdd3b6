"""What the machine can do at most, and the same bits, are remembered, said to be, and asked again where it matters."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attnlab import remembered
from attnlab.problem.result import Ceiling
from attnlab.race.disturbance import Others, Watch
from attnlab.race.limits import Limits
from attnlab.race.worker_process import Hung
from attnlab.remembered import FOLDER, Remembered
from attnlab.report import write
from attnlab.runs import execute
from attnlab.runs.plan import Plan

QUICK = Limits(processes=1, most_processes=1, min_rounds=4, max_rounds=4, turn_seconds=1e-4)


class Worker:
    """Measures nothing: every answer is a rate of its own, or none."""

    asked: ClassVar[int] = 0
    hangs: ClassVar[bool] = False

    def __init__(self, contender: Any) -> None:
        Worker.asked += 1

    def start(self, op: str, **arguments: str) -> None: ...

    def finish_start(self) -> dict[str, float]:
        if self.hangs:
            raise Hung("no answer")
        return {"matmul_flops": 1e9 * self.asked, "copy_bytes": 1e9}

    def end(self) -> None: ...


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of answers, with one in it; measuring takes no time, and nobody else is on the machine."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(execute, "products", lambda: {"numpy": operator.matmul, "torch": operator.matmul})
    monkeypatch.setattr(execute, "WorkerProcess", Worker)
    monkeypatch.setattr(Watch, "others", lambda self, ours: Others(0.0))
    assert ceiling().remembered is None
    return tmp_path / "cache" / "remembered.json"


def ceiling(*, afresh: bool = False) -> Ceiling:
    found = execute.measure_ceiling("cpu", "float32", Remembered(afresh=afresh))
    assert found is not None
    return found


def test_what_is_remembered_says_since_when_and_another_answer_takes_its_place(cache: Path) -> None:
    before = ceiling()
    assert before == ceiling() and str(before.remembered).endswith(" UTC")
    now = ceiling(afresh=True)
    assert now.remembered is None and now.matmul_flops > before.matmul_flops == ceiling().matmul_flops - 2e9


def other_version(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "torch-9.9.dist-info").mkdir()
    patch.syspath_prepend(folder)


def other_boot(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "boot").write_text("another")
    patch.setattr(remembered, "_BOOT", folder / "boot")


@pytest.mark.parametrize(
    "change",
    [
        other_version,
        other_boot,
        lambda folder, patch: patch.setenv("OPENBLAS_CORETYPE", "Haswell"),
        lambda folder, patch: patch.setattr(remembered, "_LONGEST", remembered.timedelta(0)),
    ],
    ids=["version", "boot", "setting", "a month"],
)
def test_where_something_is_another_it_is_asked_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    change(tmp_path, monkeypatch)
    assert ceiling().remembered is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-9],
        lambda text: "[" * 100_000,
        lambda text: "[3]",
        lambda text: text.replace("matmul_flops", "x"),
        lambda text: text.replace("T", " at "),
        lambda text: "\udcff",
    ],
)
def test_a_damaged_file_is_asked_again_and_mended(cache: Path, damage: Callable[[str], str]) -> None:
    cache.write_text(damage(cache.read_text()), errors="surrogateescape")
    assert ceiling().remembered is None and ceiling().remembered


@pytest.mark.parametrize(("cores", "hangs"), [(1.0, False), (0.0, True)])
def test_what_a_neighbour_or_a_fault_may_have_lowered_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, cores: float, hangs: bool
) -> None:
    cache.unlink()
    monkeypatch.setattr(Watch, "others", lambda self, ours: Others(cores))
    monkeypatch.setattr(Worker, "hangs", hangs)
    execute.measure_ceiling("cpu", "float32", Remembered(afresh=False))
    assert not cache.exists()


def test_a_report_names_the_day_unless_all_was_asked_afresh(cache: Path, tmp_path: Path) -> None:
    """Of ceilings and of the same bits; another run's figures are no figures of this one."""

    def text(**further: Any) -> str:
        asked = Plan.grid(
            lengths=(8,),
            heads=(1,),
            contenders=("numpy_vectorized",),
            self_test=False,
            **{"memory": False, "experiments": ("none",), "limits": QUICK, **further},
        )
        return write(execute.run(asked, tmp_path / f"run{len(list(tmp_path.iterdir()))}")).read_text()

    day = datetime.now(UTC).strftime("%Y-")
    assert "remembered" not in text(afresh=True)
    second = text()
    for name in ("Ceilings", "The same bits"):
        assert f"{name}, remembered from an earlier run: all, found on {day}" in second

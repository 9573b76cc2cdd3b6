"""The self-test tells right from wrong where the answer is known, and what it starts it ends."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from process_sets import TINY, measured

from attnlab.cli import app
from attnlab.race import selftest as module
from attnlab.race.limits import Limits
from attnlab.race.selftest import IDLE, LOADS, background_load


@pytest.mark.parametrize(
    ("found", "condition", "percent", "passed"),
    [
        (1.03, IDLE, 3.0, True),
        (0.9, "cpu", 3.0, False),  # the wrong sign is an error also beside background load
        (1.0, IDLE, 2.0, None),  # too small to be found for certain
        (1.0, IDLE, 10.0, False),
        (1.0, "cpu", 10.0, None),
    ],
)
def test_a_slow_down_must_be_found_where_it_can_and_never_have_the_wrong_sign(
    monkeypatch: pytest.MonkeyPatch, found: float, condition: str, percent: float, passed: bool | None
) -> None:
    """Five per cent and more, on an idle machine."""
    results = [measured("a", 1.0), measured("slowed", found)]
    monkeypatch.setattr(module._Bench, "race", lambda self, texts, condition, **rest: results)
    trial = module._Bench(TINY, Limits(), lambda text: None).slowed("a", percent, condition)
    assert trial.passed is passed and trial.truth == pytest.approx(1 + percent / 100)


@pytest.mark.parametrize("kind", LOADS)
def test_background_load_ends_with_its_block(kind: str) -> None:
    """Whatever happens in it."""
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="enough"), background_load(kind, 60.0):
        (mine,) = set(psutil.Process().children()) - before
        raise RuntimeError("enough")
    assert not mine.is_running()


def test_the_command_writes_its_page_and_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, as short as it can be."""
    monkeypatch.setattr(module, "SLOWED", (10.0,))
    monkeypatch.setattr(module, "TWINS", 1)
    monkeypatch.setattr(module, "_REPEATS", 1)
    few = {"processes": 2, "most_processes": 2}
    monkeypatch.setattr(module, "Limits", lambda **given: Limits(**given | few))
    where = tmp_path / "deep" / "er"
    words = ["selftest", "--backends", "numpy_vectorized", "--conditions", "idle", "--seconds", "0.01"]
    done = CliRunner().invoke(app, [*words, "--out", str(where), "--json"], standalone_mode=False)
    assert done.exception is None, done.output
    told = json.loads(done.output)
    assert {one["question"] for one in told["trials"]} == {"fidelity", "A/A", "slowed"}
    assert json.loads((where / "selftest.json").read_text())["trials"] == told["trials"]
    assert "# The instrument put to the test" in (where / "selftest.md").read_text()

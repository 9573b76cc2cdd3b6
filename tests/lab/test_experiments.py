"""Every experiment passes with right backends, fails with wrong ones, is drawn, and gives its claims their verdicts.

Sizes here are those for a slow backend; `suites/test_experiments.py` runs every backend at the real sizes.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typed import status
from verdicts import VERDICTS

from attnlab.backends.contender import in_this_process
from attnlab.errors import NotStored
from attnlab.figure_style import save
from attnlab.lab import EXPERIMENTS, Finding, load_experiment, read_chapter, run_chapter, run_experiment
from attnlab.lab.claims import claims
from attnlab.lab.experiments import Row, Subject, pick
from attnlab.lab.observables import black_box
from attnlab.report.numerics import draw, write_numerics

#: experiments that are cheap at their real sizes
WHOLE = ("formula", "precision", "thermodynamics")


@cache
def rows_of(name: str, backend: str, folder: Path) -> list[Row]:
    """The rows of an experiment with one backend at small sizes."""
    one, opened = load_experiment(name), in_this_process(backend, [folder])
    rows: list[Row] = []
    for dtype in one.dtypes:
        if backend == "torch_eager" or dtype != "bfloat16":  # NumPy has no bfloat16
            subject = Subject(
                backend, opened, black_box(opened, dtype=dtype), dtype, 4711, slow=True, lead=False
            )
            rows += one.measure(subject)
    return rows


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_right_backend_passes_and_a_wrong_one_fails(name: str, faulty: Path) -> None:
    right = rows_of(name, "torch_eager", faulty)
    assert all(row.passed for row in right), [row for row in right if not row.passed]
    sees = not all(row.passed for row in rows_of(name, "wrong_scale", faulty))
    said = "it sees no scale that is wrong by a tenth: give it a row that does, or declare sees_scale=False"
    assert sees == load_experiment(name).sees_scale, said


@cache
def whole(name: str, folder: Path) -> Finding:
    """An experiment with two right backends, a wrong one and one that raises."""
    return run_experiment(name, ["torch_eager", "torch_sdpa", "wrong_scale", "raises"], 4711, [folder])


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_experiment(name: str, faulty: Path) -> None:
    """Only the wrong backends fail. Without them it gives its claims their verdicts. It is plain data."""
    found = whole(name, faulty)
    failed = [row for row in found.rows if not row.passed]
    assert {row.where["backend"] for row in failed} == {"raises", "wrong_scale"}
    reasons = {row.where["reason"] for row in failed if row.where["backend"] == "raises"}
    assert reasons == {"RuntimeError: no such thing"}
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(found))), Finding) == found
    right = Finding(
        experiment=name, title="", question="", conclusion="",
        rows=tuple(row for row in found.rows if row.where.get("backend") not in ("raises", "wrong_scale")),
    )  # fmt: skip
    for claim in claims().values():
        if claim.experiment == name:
            judged = claim.judged(right)
            assert judged.verdict is VERDICTS[claim.id], (claim.id, judged.note, judged.checks)


def test_every_chart_has_a_short_title_and_is_drawn_with_its_failures(faulty: Path, tmp_path: Path) -> None:
    """The title follows from the measured rows. A row that failed is a red cross with the name of its backend."""
    for name in EXPERIMENTS:
        assert all(len(chart.title.split()) <= 10 for chart in load_experiment(name).charts)
    for name in WHOLE:
        one, found = load_experiment(name), whole(name, faulty)
        drawn = [draw(chart, found.rows) for chart in one.charts]
        assert all(drawn) and all(one.texts) and one.lesson and "nan" not in found.conclusion
    figure = drawn[2]
    assert figure is not None
    assert "wrong_scale" in {text.get_text() for text in figure.axes[0].texts}
    assert re.match(r"\d+ of \d+ rows failed", figure.axes[0].get_title(loc="left")), (
        "what holds is its title"
    )
    assert save(figure, tmp_path / "one.png").stat().st_size > 1000


def test_the_chapter_of_a_run_is_kept_and_not_measured_twice(tmp_path: Path) -> None:
    told: list[str] = []

    def begins(name: str, *, done: int, total: int) -> None:
        told.append(name)

    for _ in range(2):
        found = run_chapter(tmp_path, ["precision"], begins, backends=["numpy_blocked"])
    assert told == ["precision"] and read_chapter(tmp_path) == found and found[0].passed
    missing = ["torch_sdpa_cudnn"]
    for how in ({"backends": missing}, {"backends": missing, "seed": 1}, {"backends": missing, "seed": 1}):
        other = run_chapter(tmp_path, ["precision"], begins, **how)
    assert len(told) == 3 and len(other) == 1 and (other[0].facts["seed"], other[0].asked) == (1, (*missing,))
    assert "nan" not in found[0].conclusion, "a sentence about PyTorch, which was not measured"
    (tmp_path / "numerics.new").mkdir()  # like a full disk
    with pytest.raises(NotStored, match=r"numerics\.json cannot be written"):
        run_chapter(tmp_path, ["precision"], backends=missing)
    (tmp_path / "numerics.json").write_text('[{"experiment": 3}]')
    with pytest.raises(ValueError, match=r"numerics\.json holds no findings: .*; remove it"):
        read_chapter(tmp_path)


def test_two_at_a_time_find_what_one_after_the_other_do(tmp_path: Path) -> None:
    """The findings are also the same if the second process ends because a backend crashes in it."""
    (tmp_path / "at_home.py").write_text(
        "import os\nfrom attnlab.implementations.numpy_vectorized import attend_with_log_sum as right\n"
        f"LIBRARY = 'numpy'\nif os.getpid() != {os.getpid()}:\n    os._exit(3)\n"
        "def attend(query, key, value, *, causal, scale):\n"
        "    return right(query, key, value, causal=causal, scale=scale)[0]\n"
    )
    names = ["formula", "thermodynamics"]
    for place, backend in (("beside", "numpy_blocked"), ("crashed", "at_home")):
        how: dict[str, Any] = {"backends": [backend], "folders": [tmp_path]}
        (tmp_path / place).mkdir()
        found = run_chapter(tmp_path / place, names, **how)
        assert [one.experiment for one in found] == names and read_chapter(tmp_path / place) == found
        assert [one.rows for one in found] == [run_experiment(name, **how).rows for name in names]
        page = write_numerics(found, tmp_path / place, environment={}, command="").read_text("utf-8")
        assert f"measured on {found[0].facts['date']}" in page


def test_nothing_measured_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["numerics", "formula", "--backends", "torch_sdpa_cudnn", "--out", str(tmp_path / "out")]
    assert status(*words) == 1
    assert "nothing was measured: torch_sdpa_cudnn: " in capsys.readouterr().err


def test_ctrl_c_leaves_the_page_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_second(name: str, **how: object) -> Finding:
        if name == "saturation":
            raise KeyboardInterrupt
        rows = (Row.compare("x", {}, 1.0, math.nan),)
        return Finding(experiment=name, title="First", question="Is it?", conclusion="It is.", rows=rows)

    monkeypatch.setattr("attnlab.lab.chapter.run_experiment", interrupted_second)
    assert status("numerics", "precision", "saturation", "--out", str(tmp_path / "out")) == 130
    (one,) = read_chapter(tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "numerics.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert one.title == "First" and math.isnan(one.rows[0].measured) and stored[0]["title"] == "First"
    page = (tmp_path / "out" / "numerics.md").read_text("utf-8")
    assert "It is." in page and "| **FAIL** |" in page, "NaN meets no prediction"


def test_what_a_backend_declines_is_told_and_no_failure(faulty: Path, capsys) -> None:
    finding = run_experiment("formula", ["not_causal", "torch_sdpa_cudnn"], folders=[faulty])
    assert capsys.readouterr().out == "", "what the backend prints would stand before the JSON"
    assert finding.passed and {row.where.get("mask", "none") for row in finding.rows} == {"none"}
    assert "causal" in finding.missing["not_causal"] and "torch_sdpa_cudnn" in finding.missing
    assert run_experiment("saturation", ["torch_sdpa_cudnn"]).conclusion == "No backend could be measured."
    raised = run_experiment("formula", ["raises"], folders=[faulty])
    assert raised.rows and "No backend" not in raised.conclusion


@pytest.mark.parametrize(
    ("relation", "measured", "error", "passed"),
    [
        ("=", 1.6, 0.1, False),
        ("=", math.nan, 0.1, False),
        ("<", 0.6, 0.1, False),
        ("≤", 1.1, 0.0, False),
        ("≥", 0.9, 0.1, True),
    ],
)
def test_a_row_has_five_standard_errors(relation: str, measured: float, error: float, passed: bool) -> None:
    row = Row.compare("x", {"d": 1}, 1.0, measured, standard_error=error, relation=relation)
    assert row.passed is passed and (row.excess <= 0) is passed
    assert pick([row], "x", d=(1, 2)) == [row] and not pick([row], "x", d=2) and not pick([row], "y")

"""Claims are judged by measured figures only: each verdict changes with them, and none is fixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typed import status
from verdicts import CONDITIONAL, CONFIRMED, NOT_MEASURABLE, REFUTED, VERDICTS, found

from attnlab.lab import EXPERIMENTS, judge
from attnlab.lab.claims import PUBLISHED, Claim, Role, claims
from attnlab.lab.experiments import Finding

MEASURED = [claim for claim in claims().values() if claim.experiment]


def test_every_claim_is_whole_and_has_a_known_verdict() -> None:
    assert {*claims()} == {*VERDICTS}, (
        "tests/lab/verdicts.py lists each claim under its verdict: add it there"
    )
    for claim in claims().values():
        beyond = any(test.role is Role.BEYOND for test in claim.tests)
        assert claim.says.endswith(".") and claim.truth.endswith(".") and claim.reference, claim.id
        assert bool(claim.condition) == (VERDICTS[claim.id] is CONDITIONAL) == beyond, claim.id
        assert claim.experiment in ((*EXPERIMENTS, PUBLISHED) if claim.tests else ("",)), claim.id
        assert bool(claim.note) != bool(claim.tests), claim.id


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_the_verdict_turns_with_the_figures(claim: Claim) -> None:
    roles = {test.role for test in claim.tests}
    assert claim.judged(found(claim)).verdict is CONFIRMED
    assert claim.judged(found(claim, claim=False)).verdict is REFUTED
    if Role.BEYOND in roles:
        assert claim.judged(found(claim, beyond=False)).verdict is CONDITIONAL
    if Role.CONTROL in roles:
        assert claim.judged(found(claim, control=False)).verdict is NOT_MEASURABLE
    if Role.RIGHT in roles or any(
        test.expected is not None for test in claim.tests if test.role is Role.CLAIM
    ):
        for holds in (False, True):
            assert claim.judged(found(claim, claim=holds, right=False)).verdict is NOT_MEASURABLE
    empty = Finding(experiment=claim.experiment, title="", question="", conclusion="", rows=())
    assert claim.judged(empty).verdict is NOT_MEASURABLE


def test_the_ledger_by_hand_is_plain_data_and_turns_on_one_check() -> None:
    for claim in claims().values():
        holds = VERDICTS[claim.id] is not REFUTED
        entry = claim.judged(found(claim, claim=holds, beyond=False) if claim.experiment else None)
        assert json.loads(json.dumps(entry.to_dict(), allow_nan=False))["verdict"] == VERDICTS[claim.id]
        assert entry.deciding is None or entry.deciding.passed is (entry.verdict is CONFIRMED), entry.id
    assert all(one.verdict is VERDICTS[one.id] for one in judge(["typical-head-count", "bert-heads"]))


def test_wrong_and_raising_and_absent_backends(faulty: Path) -> None:
    def entry(*backends: str) -> Claim:
        return judge(["scaled-dot-product"], backends=backends, folders=[faulty])[0]

    wrong = entry("numpy_blocked", "wrong_scale")
    assert wrong.verdict is REFUTED and wrong.checks[0][1].where["backend"] == "wrong_scale"
    raising = entry("raises")
    assert raising.verdict is NOT_MEASURABLE and "raises: RuntimeError: no such thing" in raising.note
    assert entry("torch_sdpa_cudnn").note.endswith("no backend was asked for error / error budget")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["numerics", "--claims", "--backends", "numpy_blocked"]
    assert status(*words, "next-token", "heads-learn-syntax") == 0
    assert "1 refuted, 1 not measurable" in capsys.readouterr().out
    assert status(*words, "self-and-cross", "--json", "--seed", "5") == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "confirmed"
    assert {"id", "theme", "says", "verdict", "truth", "reference", "checks"} <= set(data)
    assert status("numerics", "--claims", "--list", "boltzmann", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["boltzmann"]


def test_ctrl_c_leaves_the_verdicts_that_were_reached(monkeypatch, capsys) -> None:
    def interrupted_second(name: str, **how: object) -> Finding:
        if name != "formula":
            raise KeyboardInterrupt
        return found(claims()["next-token"])

    monkeypatch.setattr("attnlab.lab.claims.run_experiment", interrupted_second)
    assert status("numerics", "--claims", "next-token", "boltzmann", "-q") == 130
    assert "1 confirmed, 1 not measurable" in capsys.readouterr().out

"""Claims are judged by figures alone: each verdict turns with them, and none is typed in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typed import status
from verdicts import VERDICTS, found

from attnlab.lab import EXPERIMENTS
from attnlab.lab.claims import (
    CLAIMS,
    PUBLISHED,
    Check,
    Claim,
    ClaimVerdict,
    Ledger,
    Role,
    judged,
    run_claims,
)
from attnlab.lab.finding import Finding, Row

CONFIRMED, CONDITIONAL, REFUTED, NOT_MEASURABLE = ClaimVerdict
MEASURED = [claim for claim in CLAIMS if claim.experiment]
REFERENCE = Path(__file__).parents[2] / "reports" / "reference" / "numerics"


def test_every_claim_is_whole_and_has_a_known_verdict() -> None:
    assert sorted(claim.id for claim in CLAIMS) == sorted(VERDICTS)
    for claim in CLAIMS:
        assert claim.says.endswith(".") and claim.truth.endswith(".") and claim.reference, claim.id
        assert bool(claim.condition) == (VERDICTS[claim.id] is CONDITIONAL) == bool(claim.beyond), claim.id
        home = (*EXPERIMENTS, PUBLISHED) if claim.claimed else ("",)
        assert claim.experiment in home, claim.id


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_the_verdict_turns_with_the_figures(claim: Claim) -> None:
    assert claim.judged(found(claim)).verdict is CONFIRMED
    assert claim.judged(found(claim, claimed=False)).verdict is REFUTED
    if claim.beyond:
        assert claim.judged(found(claim, beyond=False)).verdict is CONDITIONAL
    if claim.control:
        assert claim.judged(found(claim, control=False)).verdict is NOT_MEASURABLE
    if claim.right or any(test.expected is not None for test in claim.claimed):
        assert claim.judged(found(claim, claimed=False, right=False)).verdict is NOT_MEASURABLE
    assert claim.judged(replace(found(claim), rows=())).verdict is NOT_MEASURABLE


def test_the_ledger_by_hand_is_plain_data_and_turns_on_one_check() -> None:
    known = ((claim, VERDICTS[claim.id] is not REFUTED) for claim in CLAIMS)
    entries = [one.judged(found(one, holds, False) if one.experiment else None) for one, holds in known]
    data = json.loads(json.dumps(Ledger(tuple(entries), {}).to_dict(), allow_nan=False))
    assert {one["id"]: one["verdict"] for one in data["claims"]} == VERDICTS
    for entry in entries:
        assert entry.deciding is None or entry.deciding.holds is (entry.verdict is CONFIRMED), entry.id
    check = Check(Role.CLAIM, Row.compare("x", {}, float("inf"), float("nan"), relation="≤")).to_dict()
    assert (check["measured"], check["expected"], check["holds"]) == ("nan", "inf", False)


def test_the_stored_ledger_follows_from_the_stored_findings() -> None:
    findings = [
        Finding.from_dict(one) for one in json.loads((REFERENCE / "numerics.json").read_text("utf-8"))
    ]
    stored = json.loads((REFERENCE / "claims.json").read_text("utf-8"))["claims"]
    found = judged(CLAIMS, {one.experiment: one for one in findings}).to_dict()["claims"]
    assert json.loads(json.dumps(found)) == stored


def test_wrong_and_raising_and_absent_backends(faulty: Path) -> None:
    id = "scaled-dot-product"
    entry = run_claims([id], backends=["numpy_blocked", "wrong_scale"], folders=[faulty])[id]
    assert entry.verdict is REFUTED and "wrong_scale" in entry.checks[0].where
    entry = run_claims([id], backends=["raises"], folders=[faulty])[id]
    assert entry.verdict is NOT_MEASURABLE and "raises: RuntimeError: no such thing" in entry.note
    absent = run_claims([id], backends=["torch_sdpa_cudnn"])
    assert absent[id].note == "not measured here: no backend was asked for error / error budget"
    assert "without torch_sdpa_cudnn" in absent.facts


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        status(*["numerics", "--claims", "next-token", "heads-learn-syntax", "--backends", "numpy_blocked"])
        == 0
    )
    assert "1 refuted, 1 not measurable" in capsys.readouterr().out
    assert (
        status(*["numerics", "--claims", "boltzmann", "--json", "--seed", "5", "--backends", "numpy_blocked"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["facts"]["seed"] == 5 and data["claims"][0]["verdict"] == "confirmed"
    assert {"id", "theme", "says", "verdict", "truth", "reference", "checks"} <= set(data["claims"][0])
    assert status(*["numerics", "--claims", "--list", "--json", "boltzmann"]) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["boltzmann"]

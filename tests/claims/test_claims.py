"""Claims are judged by figures alone: each verdict turns with them, and none is typed in."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from verdicts import VERDICTS, found

from attnlab.__main__ import main
from attnlab.experiments import ledger
from attnlab.experiments.catalogue import EXPERIMENTS
from attnlab.experiments.claim import Check, Claim, Role, decide
from attnlab.experiments.claims_api import CLAIMS, ClaimVerdict, Ledger, run_claims
from attnlab.experiments.finding import Finding
from attnlab.experiments.ledger import judged
from attnlab.experiments.ledger_page import deciding, render
from attnlab.experiments.published import PUBLISHED, published

CONFIRMED, CONDITIONAL, REFUTED, NOT_MEASURABLE = ClaimVerdict
MEASURED = [claim for claim in CLAIMS if claim.experiment]
#: every claim as it is known to come out, on figures made by hand
BY_HAND = Ledger(
    tuple(
        judged([claim], {claim.experiment: found(claim, VERDICTS[claim.id] is not REFUTED, False)}).entries[0]
        if claim.experiment
        else judged([claim], {}).entries[0]
        for claim in CLAIMS
    ),
    {"seed": 0, "seconds": 1.0},
)


def verdict(claim: object, finding: Finding) -> ClaimVerdict:
    return judged([claim], {finding.experiment: finding}).entries[0].verdict  # type: ignore[list-item]


def test_every_claim_is_whole_and_has_a_known_verdict() -> None:
    assert sorted(claim.id for claim in CLAIMS) == sorted(VERDICTS)
    for claim in CLAIMS:
        assert claim.says.endswith(".") and claim.truth.endswith(".") and claim.reference, claim.id
        assert bool(claim.condition) == (VERDICTS[claim.id] is CONDITIONAL) == bool(claim.beyond), claim.id
        assert claim.experiment in (*EXPERIMENTS, PUBLISHED) if claim.claimed else not claim.experiment, (
            claim.id
        )


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim.id)
def test_the_verdict_turns_with_the_figures(claim: Claim) -> None:
    assert verdict(claim, found(claim)) is CONFIRMED
    assert verdict(claim, found(claim, claimed=False)) is REFUTED
    if claim.beyond:
        assert verdict(claim, found(claim, beyond=False)) is CONDITIONAL
    if claim.control:
        assert verdict(claim, found(claim, control=False)) is NOT_MEASURABLE
    if claim.right or any(test.expected is not None for test in claim.claimed):
        assert verdict(claim, found(claim, claimed=False, right=False)) is NOT_MEASURABLE
    assert verdict(claim, replace(found(claim), rows=())) is NOT_MEASURABLE


def test_of_many_rows_the_worst_for_the_claim_decides() -> None:
    claim = next(one for one in MEASURED if one.id == "scaled-dot-product")
    good, bad = found(claim), found(claim, claimed=False)
    entry = judged([claim], {"formula": replace(good, rows=(*good.rows, *bad.rows, *good.rows))}).entries[0]
    assert entry.verdict is REFUTED and "worst of 3" in entry.checks[0].where


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ("", CONFIRMED),
        ("right", CONFIRMED),
        ("beyond", CONDITIONAL),
        ("claim", REFUTED),
        ("claim beyond", REFUTED),
        ("beyond right", NOT_MEASURABLE),
        ("claim right", NOT_MEASURABLE),
        ("control", NOT_MEASURABLE),
    ],
)
def test_the_rule(failed: str, expected: ClaimVerdict) -> None:
    assert decide(Check(role, "x", float(role not in failed.split()), "=", 1.0) for role in Role) is expected
    assert (
        decide([Check(Role.RIGHT, "x", 1, "=", 1)]) is NOT_MEASURABLE
    )  # the claim itself was put to no test


def test_the_ledger_survives_json_and_a_verdict_in_a_file_is_not_believed() -> None:
    data = json.loads(json.dumps(BY_HAND.to_dict(), allow_nan=False))
    for claim in data["claims"]:
        claim["verdict"] = "confirmed"
    assert Ledger.from_dict(data) == BY_HAND
    assert Ledger.from_dict(data).counts == BY_HAND.counts
    check = Check(Role.CLAIM, "x", float("nan"), "≤", float("inf"))
    again = Check.from_dict(json.loads(json.dumps(check.to_dict(), allow_nan=False)))
    assert again.measured != again.measured and again.expected == float("inf") and not again.holds


def test_the_page_holds_every_claim_with_its_verdict_and_the_figure_that_decides() -> None:
    page = render(BY_HAND)
    for entry in BY_HAND.entries:
        assert entry.verdict is VERDICTS[entry.id]
        assert entry.says in page and entry.truth in page and entry.reference in page, entry.id
        check = deciding(entry)
        assert check is None or check.holds is (entry.verdict is CONFIRMED), entry.id
    assert f"{BY_HAND.counts[REFUTED]} refuted" in page
    assert page.startswith("## ") and page.count("\n## ") == 0
    for line in page.splitlines():
        if line.startswith("|"):  # a bar in a cell would break its row
            assert line.replace("\\|", "").count("|") in (7, 8), line


def test_what_was_looked_up_gets_a_verdict_and_each_figure_has_a_source() -> None:
    entries = run_claims(["typical-head-count", "bert-heads"], backends=[])
    assert [entry.verdict for entry in entries.entries] == [CONDITIONAL, CONDITIONAL]
    counts = [row.measured for row in published().rows]
    assert (min(counts), max(counts)) == (8, 128) and all(row.where["source"] for row in published().rows)
    check = deciding(entries["typical-head-count"])
    assert check is not None and check.measured == 128


def test_what_training_could_decide_is_not_called_undecidable() -> None:
    (entry,) = run_claims(["heads-learn-syntax"], backends=[]).entries
    assert entry.verdict is NOT_MEASURABLE and "trains one" in entry.note


def test_what_a_race_decides_names_a_plan_that_runs_it() -> None:
    (entry,) = run_claims(["separate-linears-slower"], backends=[]).entries
    assert entry.verdict is NOT_MEASURABLE and entry.plan in entry.note and entry.plan in render(BY_HAND)
    plan = tomllib.loads((Path(__file__).parents[2] / entry.plan).read_text("utf-8"))
    assert plan["d_model"] > 0
    for name in ("torch_sdpa", "numpy_vectorized"):  # a loop of small layers, raced against one matrix
        assert {name, f"{name}[projection=loop]"} <= set(plan["backends"])


def test_only_the_experiments_that_are_needed_run_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(names: list[str], *_: object, **__: object) -> list[Finding]:
        asked.extend(names)
        return [Finding(name, "", "", "", ()) for name in names]

    monkeypatch.setattr(ledger, "run_experiments", run)
    run_claims(["boltzmann", "weights-sum-to-one", "next-token", "heads-learn-syntax"], backends=[])
    assert asked == ["formula", "thermodynamics"]
    run_claims(["boltzmann", "next-token"], backends=[], findings=[Finding("formula", "", "", "", ())])
    assert asked[2:] == ["thermodynamics"]


def test_wrong_and_raising_and_absent_backends(tmp_path: Path) -> None:
    head = 'LIBRARY = "numpy"\nimport numpy as np\ndef attend(query, key, value, *, causal, scale):\n'
    (tmp_path / "tilted.py").write_text(
        f"{head}    s = 1.01 * scale * (query @ key.swapaxes(-1, -2))\n"
        "    if causal:\n        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)\n"
        "    p = np.exp(s - s.max(axis=-1, keepdims=True))\n"
        "    return ((p / p.sum(axis=-1, keepdims=True)) @ value).astype(query.dtype)\n"
    )
    (tmp_path / "raises.py").write_text(f'{head}    raise RuntimeError("no such thing")\n')
    id = "scaled-dot-product"
    entry = run_claims([id], backends=["numpy_blocked", "tilted"], folders=[tmp_path])[id]
    assert entry.verdict is REFUTED and "tilted" in entry.checks[0].where
    entry = run_claims([id], backends=["raises"], folders=[tmp_path])[id]
    assert entry.verdict is NOT_MEASURABLE and "raises: RuntimeError: no such thing" in entry.note
    absent = run_claims([id], backends=["torch_sdpa_cudnn"])
    assert absent[id].note == "not measured here: no backend was asked for error / error budget"
    assert "without torch_sdpa_cudnn" in absent.facts


def test_unknown_names_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="did you mean variance-sigma-squared"):
        run_claims(["varience-sigma-squared"])
    with pytest.raises(ValueError, match="numpy_vectorized"):
        run_claims(["boltzmann"], backends=["numpy_vectorised"])
    with pytest.raises(ValueError, match="seed must be a whole number"):
        run_claims(["boltzmann"], seed=-1)
    with pytest.raises(ValueError, match="relation must be one of"):
        _ = Check(Role.CLAIM, "x", 1, "==", 1).holds


def test_importing_the_claims_loads_nothing_heavy() -> None:
    code = (
        "import sys, attnlab.experiments.claims_api\n"
        "print(*sorted({'numpy', 'torch', 'scipy', 'matplotlib', 'pandas', 'rich'} & set(sys.modules)))"
    )
    for asked, loaded in (
        (code, []),
        (code.replace("claims\n", "claims; attnlab.experiments.claims_api.CLAIMS\n", 1), ["numpy"]),
    ):
        done = subprocess.run([sys.executable, "-P", "-c", asked], capture_output=True, text=True, check=True)
        assert done.stdout.split() == loaded


def _asked(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["claims", *arguments.split()])
    captured = capsys.readouterr()
    return int(str(end.value.code)), captured.out, captured.err


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _asked("next-token heads-learn-syntax --backends numpy_blocked", capsys)
    assert status == 0
    assert "refuted" in out and "1 refuted, 1 not measurable" in out
    status, out, _ = _asked("boltzmann --json --seed 5 --backends numpy_blocked", capsys)
    data = json.loads(out)
    assert data["facts"]["seed"] == 5 and Ledger.from_dict(data)["boltzmann"].verdict is CONFIRMED
    assert {"id", "theme", "says", "verdict", "truth", "reference", "condition", "checks", "note"} <= set(
        data["claims"][0]
    )
    assert "neither-peaked-nor-flat" in _asked("--list", capsys)[1]
    assert [one["id"] for one in json.loads(_asked("--list --json boltzmann", capsys)[1])] == ["boltzmann"]
    assert _asked("boltzman", capsys) == (
        2,
        "",
        "attnlab: no claim is called 'boltzman'; did you mean boltzmann?\n",
    )

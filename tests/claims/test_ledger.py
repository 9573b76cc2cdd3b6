"""Every row of the list is in the ledger with the verdict that its mark says, for any seed; and none is typed in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS
from rows import BEYOND, ROWS

from attnlab.claims import Ledger, Verdict, claims, run_claims
from attnlab.claims.check import Check, Role
from attnlab.claims.page import deciding, render
from attnlab.claims.verdict import decide

#: the specification, the fast one of each library, and the kernel that a user gets
BACKENDS = ("naive_loop", "numpy_blocked", "torch_eager", "torch_sdpa")
VERDICTS = {
    "✓": {Verdict.CONFIRMED},
    "~": {Verdict.CONDITIONAL},
    "✗": {Verdict.REFUTED},
    "·": {Verdict.NOT_MEASURABLE},
    # where the clock cannot decide on a busy machine, it must say so
    "⏱": set(Verdict),
}


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return run_claims(backends=BACKENDS)


def test_every_row_has_an_entry() -> None:
    assert len(ROWS) == 51
    found = {claim.id: claim for claim in claims()}
    assert sorted(found) == sorted([*(id for _, _, id in ROWS), *BEYOND])
    for places, _, id in ROWS:
        assert found[id].where == tuple(places.split()), id


def test_every_claim_says_what_is_so_and_where_to_read_more() -> None:
    for claim in claims():
        assert claim.says.endswith(".") and claim.truth.endswith(".") and claim.reference, claim.id


def test_what_has_a_condition_names_it() -> None:
    marks = {id: mark for _, mark, id in ROWS}
    for claim in claims():
        if marks.get(claim.id) == "~":
            assert claim.condition, claim.id


def _differing(found: Ledger) -> list[object]:
    marks = {id: mark for _, mark, id in ROWS} | dict.fromkeys(BEYOND, "·")
    return [
        (entry.id, str(entry.verdict), entry.note, [check for check in entry.checks if not check.holds])
        for entry in found.entries
        if entry.verdict not in VERDICTS[marks[entry.id]]
    ]


def test_verdicts_are_those_of_the_list(ledger: Ledger) -> None:
    assert _differing(ledger) == []


@pytest.mark.parametrize("seed", [1, 4711])
def test_verdicts_do_not_hang_on_the_seed(seed: int) -> None:
    assert _differing(run_claims(backends=BACKENDS, seed=seed)) == []


def test_every_measurable_claim_has_a_fault() -> None:
    assert sorted(FAULTS) == sorted(claim.id for claim in claims() if claim.measure)


@pytest.mark.parametrize("id", FAULTS)
def test_breaking_what_an_experiment_is_made_of_turns_its_verdict(id: str, ledger: Ledger) -> None:
    parts, expected = FAULTS[id]
    entry = run_claims([id], backends=("naive_loop", "torch_sdpa"), parts=parts)[id]
    assert entry.verdict is expected, (entry.note, entry.checks)
    assert entry.verdict is not ledger[id].verdict or id == "separate-linears-slower"


def test_a_backend_that_is_wrong_turns_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "tilted.py").write_text(
        'LIBRARY = "numpy"\nimport numpy as np\n'
        "def attend(query, key, value, *, causal, scale):\n"
        "    s = 1.01 * scale * (query @ key.swapaxes(-1, -2))\n"
        "    if causal:\n        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)\n"
        "    p = np.exp(s - s.max(axis=-1, keepdims=True))\n"
        "    return ((p / p.sum(axis=-1, keepdims=True)) @ value).astype(query.dtype)\n"
    )
    found = run_claims(["scaled-dot-product"], backends=["naive_loop", "tilted"], folders=[tmp_path])
    assert found["scaled-dot-product"].verdict is Verdict.REFUTED
    assert "tilted" in found["scaled-dot-product"].checks[0].where


def test_a_backend_that_raises_leaves_the_claim_unmeasured_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(
        'LIBRARY = "numpy"\ndef attend(query, key, value, *, causal, scale):\n    raise RuntimeError("no such thing")\n'
    )
    found = run_claims(
        ["scaled-dot-product", "variance-sigma-squared"], backends=["raises"], folders=[tmp_path]
    )
    assert found["scaled-dot-product"].verdict is Verdict.NOT_MEASURABLE
    assert "raises: RuntimeError: no such thing" in found["scaled-dot-product"].note
    assert found["variance-sigma-squared"].verdict is Verdict.REFUTED


def test_without_a_backend_the_ledger_says_so() -> None:
    found = run_claims(["scaled-dot-product"], backends=["torch_sdpa_cudnn"])
    assert found["scaled-dot-product"].note == "not measured here: no backend can be asked here"
    assert "without torch_sdpa_cudnn" in found.facts


def test_the_ledger_survives_json(ledger: Ledger) -> None:
    text = json.dumps(ledger.to_dict(), allow_nan=False)
    assert Ledger.from_dict(json.loads(text)) == ledger


def test_a_verdict_in_a_file_is_not_believed(ledger: Ledger) -> None:
    data = ledger.to_dict()
    for claim in data["claims"]:
        claim["verdict"] = "confirmed"
    assert Ledger.from_dict(data).counts == ledger.counts


def test_numbers_that_are_none_survive_json() -> None:
    check = Check(Role.CLAIM, "x", float("nan"), "≤", float("inf"))
    again = Check.from_dict(json.loads(json.dumps(check.to_dict(), allow_nan=False)))
    assert again.measured != again.measured and again.expected == float("inf")
    assert not again.holds


def test_the_same_seed_gives_the_same_figures() -> None:
    once, again = (
        run_claims(["variance-sigma-squared"], backends=(), seed=3).entries[0].checks for _ in "12"
    )
    other = run_claims(["variance-sigma-squared"], backends=(), seed=4).entries[0].checks
    assert once == again != other


@pytest.mark.parametrize(
    ("claim", "beyond", "right", "control", "expected"),
    [
        (True, True, True, True, Verdict.CONFIRMED),
        (True, True, False, True, Verdict.CONFIRMED),
        (True, False, True, True, Verdict.CONDITIONAL),
        (False, True, True, True, Verdict.REFUTED),
        (False, False, True, True, Verdict.REFUTED),
        (False, False, False, True, Verdict.NOT_MEASURABLE),
        (True, False, False, True, Verdict.NOT_MEASURABLE),
        (True, True, True, False, Verdict.NOT_MEASURABLE),
        (False, False, True, False, Verdict.NOT_MEASURABLE),
    ],
)
def test_the_rule(claim: bool, beyond: bool, right: bool, control: bool, expected: Verdict) -> None:
    roles = {Role.CLAIM: claim, Role.BEYOND: beyond, Role.RIGHT: right, Role.CONTROL: control}
    assert decide([Check(role, "x", float(holds), "=", 1.0) for role, holds in roles.items()]) is expected


def test_nothing_tested_is_not_measurable() -> None:
    assert decide([]) is Verdict.NOT_MEASURABLE
    assert decide([Check(Role.RIGHT, "x", 1, "=", 1)]) is Verdict.NOT_MEASURABLE


@pytest.mark.parametrize(
    ("relation", "measured", "error", "holds"),
    [
        ("=", 1.4, 0.1, True),
        ("=", 1.6, 0.1, False),
        (">", 1.4, 0.1, False),
        (">", 1.6, 0.1, True),
        ("<", 0.6, 0.1, False),
        ("<", 0.4, 0.1, True),
        ("≤", 1.0, 0.0, True),
        ("≤", 1.1, 0.0, False),
        ("≥", 0.9, 0.0, False),
        ("=", float("nan"), 0.1, False),
    ],
)
def test_a_check_has_five_standard_errors(relation: str, measured: float, error: float, holds: bool) -> None:
    assert Check(Role.CLAIM, "x", measured, relation, 1.0, error).holds is holds


def test_the_page_holds_every_claim_with_its_verdict(ledger: Ledger) -> None:
    page = render(ledger)
    for entry in ledger.entries:
        assert entry.says in page and entry.truth in page and f"| `{entry.id}` |" in page, entry.id
        assert entry.reference in page, entry.id
    assert f"{ledger.counts[Verdict.REFUTED]} refuted" in page
    assert page.count("\n## ") == 0 and page.startswith("## ")
    for line in page.splitlines():
        if line.startswith("|"):  # a bar in a cell would break its row
            assert line.replace("\\|", "").count("|") in (7, 8), line


def test_the_deciding_figure_is_one_that_the_claim_fails(ledger: Ledger) -> None:
    for entry in ledger.entries:
        check = deciding(entry)
        if entry.verdict in (Verdict.REFUTED, Verdict.CONDITIONAL):
            assert check is not None and not check.holds and check.role in (Role.CLAIM, Role.BEYOND)


def test_unknown_names_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="did you mean variance-sigma-squared"):
        run_claims(["varience-sigma-squared"])
    with pytest.raises(ValueError, match="numpy_vectorized"):
        run_claims(["boltzmann"], backends=["numpy_vectorised"])
    with pytest.raises(ValueError, match="seed must be a whole number"):
        run_claims(["boltzmann"], seed=-1)


def test_importing_the_ledger_loads_nothing_heavy() -> None:
    code = (
        "import sys, attnlab.claims\n"
        "print(*sorted({'numpy', 'torch', 'scipy', 'matplotlib', 'pandas', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    other = code.replace("import sys, attnlab.claims", "import sys, attnlab.claims; attnlab.claims.claims()")
    done = subprocess.run([sys.executable, "-P", "-c", other], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["numpy"]  # the check above can fail, and the list of claims needs no torch

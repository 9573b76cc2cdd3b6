"""``attnlab claims``."""

from __future__ import annotations

import json

import pytest

from attnlab.__main__ import main
from attnlab.claims import Ledger, Verdict


def asked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``attnlab claims``."""
    with pytest.raises(SystemExit) as end:
        main(["claims", *arguments])
    captured = capsys.readouterr()
    return int(str(end.value.code)), captured.out, captured.err


def test_the_table_shows_verdict_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = asked(
        ["variance-sigma-squared", "introduced-2017", "--backends", "numpy_blocked"], capsys
    )
    assert status == 0
    assert "refuted" in out and "σ²d_k" in out and "claimed = 256" in out
    assert "1 refuted, 1 not measurable" in out


def test_json_is_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["dot-products-grow", "--json", "--seed", "5", "--backends", "numpy_blocked"]
    status, out, _ = asked(arguments, capsys)
    found = Ledger.from_dict(json.loads(out))
    assert status == 0
    assert found.facts["seed"] == 5
    assert found["dot-products-grow"].verdict is Verdict.CONFIRMED


def test_a_list_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "separate-linears-slower" in asked(["--list"], capsys)[1]
    listed = json.loads(asked(["--list", "--json", "boltzmann"], capsys)[1])
    assert [one["id"] for one in listed] == ["boltzmann"]


def test_an_unknown_claim_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = asked(["boltzman"], capsys)
    assert (status, out) == (2, "")
    assert err == "attnlab: no claim is called 'boltzman'; did you mean boltzmann?\n"

"""The verdict that every claim is known to deserve, and findings made by hand."""

from __future__ import annotations

from attnlab.lab.claims import Claim, ClaimVerdict, Test
from attnlab.lab.finding import Finding, Row

_IDS = {
    ClaimVerdict.CONFIRMED: "scaled-dot-product weights-sum-to-one output-expectation self-and-cross one-query-key-dim "
    "boltzmann temperature-sharpens dot-products-grow variance-proportional-to-d variances-add heads-split-weights "
    "heads-independent output-mixes-heads",
    ClaimVerdict.CONDITIONAL: "same-row-count value-dimension every-token-sees-every match-means-high-score "
    "magnitude-manageable scale-prevents-vanishing small-values-vanish heads-cut-cost scale-for-later-steps "
    "memory-reasonable no-information-loss stable-learning typical-head-count bert-heads concatenation-is-output "
    "half-the-table",
    ClaimVerdict.REFUTED: "score-of-own-key unnormalised-sum next-token plain-exponentials variance-sigma-squared "
    "no-element-dominates neither-peaked-nor-flat "
    "dot-product-d-squared heads-see-chunks heads-after-sum",
    ClaimVerdict.NOT_MEASURABLE: "heads-learn-syntax separate-linears-slower",
}
VERDICTS = {id: verdict for verdict, ids in _IDS.items() for id in ids.split()}
#: how far a figure is from what is expected where it meets the test, and where it misses it
_MET = {"=": 0.0, "≤": -1.0, "<": -1.0, "≥": 1.0, ">": 1.0}
_MISSED = {"=": -0.7, "≤": 1.0, "<": 1.0, "≥": -1.0, ">": -1.0}


def row(test: Test, *, met: bool, predicted: bool = True) -> Row:
    """A row that `test` takes and that meets it or not; and meets theory's prediction where `predicted`."""
    chosen = {key: value[0] if isinstance(value, tuple) else value for key, value in test.where.items()}
    where = {"backend": "by hand", "head_dim": 64, "sigma": 2.0, "heads": 8, **chosen}
    if test.expected is None:
        return Row.compare(test.quantity, where, predicted=1.0, measured=1.0 if met else 2.0)
    expected = test.expected(where) if callable(test.expected) else test.expected
    measured = expected if expected == float("inf") and met else min(expected, 1e3)
    measured += (_MET if met else _MISSED)[test.relation]
    return Row.compare(test.quantity, where, predicted=measured + (not predicted), measured=measured)


def found(
    claim: Claim, claimed: bool = True, beyond: bool = True, control: bool = True, right: bool = True
) -> Finding:
    """A finding of the claim's experiment in which its tests come out as said."""
    rows = [row(test, met=claimed, predicted=right) for test in claim.claimed]
    rows += [row(test, met=beyond, predicted=right) for test in claim.beyond]
    rows += [row(test, met=right) for test in claim.right] + [
        row(test, met=control) for test in claim.control
    ]
    return Finding(claim.experiment, "title", "question?", "conclusion.", tuple(rows))

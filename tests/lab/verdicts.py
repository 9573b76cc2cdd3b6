"""The expected verdict of every claim, and handmade rows that meet or miss a test."""

from __future__ import annotations

from attnlab.lab.claims import Claim, ClaimVerdict, Role, Test
from attnlab.lab.experiments import Finding, Row

CONFIRMED, CONDITIONAL, REFUTED, NOT_MEASURABLE = ClaimVerdict
_BY_VERDICT = {
    CONFIRMED: "scaled-dot-product weights-sum-to-one output-expectation self-and-cross one-query-key-dim boltzmann "
    "temperature-sharpens heads-split-weights heads-independent output-mixes-heads",
    CONDITIONAL: "same-row-count value-dimension every-token-sees-every no-information-loss match-means-high-score "
    "magnitude-manageable scale-for-later-steps neither-peaked-nor-flat scale-prevents-vanishing small-values-vanish "
    "concatenation-is-output half-the-table heads-cut-cost memory-reasonable typical-head-count bert-heads "
    "dot-products-grow variance-proportional-to-d variances-add plain-exponentials variance-sigma-squared",
    REFUTED: "score-of-own-key next-token unnormalised-sum no-element-dominates heads-see-chunks heads-after-sum "
    "dot-product-d-squared",
    NOT_MEASURABLE: "stable-learning separate-linears-slower heads-learn-syntax",
}
VERDICTS = {id: verdict for verdict, ids in _BY_VERDICT.items() for id in ids.split()}
_MET = {"=": 0.0, "≤": 0.0, "≥": 0.0, "<": -1.0, ">": 1.0}
_MISSED = {"=": 1.0, "≤": 1.0, "≥": -1.0, "<": 1.0, ">": -1.0}


def row(test: Test, *, met: bool, predicted: bool = True) -> Row:
    """A row for `test` that meets it or not. If `predicted`, it also meets the prediction of theory."""
    where = {"backend": "by hand"} | {
        key: one[0] if isinstance(one, list) else one for key, one in test.where.items()
    }
    if test.expected is None:
        return Row.compare(test.quantity, where, 1.0, 1.0 if met else 2.0)
    infinite = test.expected == float("inf")
    measured = test.expected if infinite and met else min(test.expected, 1e3)
    measured += (_MET if met else _MISSED)[test.relation]
    return Row.compare(test.quantity, where, measured + (not predicted), measured)


def found(claim: Claim, /, **holds: bool) -> Finding:
    """A finding for the claim. `holds` says by role if a test is met, and as `right` if rows meet their prediction."""
    rows = []
    for test in claim.tests:
        met, said = holds.get(test.role, True), test.role in (Role.CLAIM, Role.BEYOND)
        rows.append(row(test, met=met, predicted=holds.get("right", True) if said else True))
    return Finding(experiment=claim.experiment, title="t", question="q", conclusion="c", rows=tuple(rows))

"""What is measured of a head, against figures worked out by hand and against the random energy model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnlab.lab.heads import heads_of
from attnlab.lab.theory import critical_beta, random_energy
from attnlab.workload.inputs import Inputs


def _of_logits(rows: list[list[float]]) -> Inputs:
    """One head with these logits."""
    logits = np.array(rows)[None, None]
    n = logits.shape[-1]
    return Inputs.of(logits * math.sqrt(n), np.eye(n)[None, None], np.ones((1, 1, n, 1)))


def test_two_rows_by_hand() -> None:
    """Logits 0 and ln 3: weights 1/4 and 3/4; logits ±1/2 ln 3 have the standard deviation ½ ln 3."""
    (head,) = heads_of(0, _of_logits([[0.0, math.log(3)], [math.log(3), 0.0]]), separators=[1])
    p = np.array([0.25, 0.75])
    assert head.beta == pytest.approx(math.log(3) / 2)
    assert head.critical == pytest.approx(math.sqrt(2 * math.log(2)))
    assert not head.beyond
    assert head.entropy == pytest.approx(float(-(p * np.log(p)).sum()))
    assert head.largest_weight == pytest.approx(0.75)
    assert head.participation == pytest.approx(0.625)
    assert head.jacobian_norm == pytest.approx(math.sqrt(4 * (0.25 * 0.75) ** 2))
    assert head.frozen_rows == 1.0
    assert head.lost_rows == 0.0
    assert head.first == pytest.approx(0.5)
    assert head.separators == pytest.approx(0.5)
    assert head.largest_logit == pytest.approx(math.log(3))
    assert head.largest_product == pytest.approx(math.log(3) * math.sqrt(2))
    assert head.sink == 0.0


def test_a_learned_sink_takes_its_share() -> None:
    """A sink with the logit of all keys takes as much as one of them, and counts as one more in H and n."""
    q = np.zeros((1, 1, 3, 4))
    (head,) = heads_of(0, Inputs.of(q, q, q, sinks=np.zeros(1)))
    assert head.sink == pytest.approx(0.25)
    assert head.entropy == pytest.approx(math.log(4))
    assert head.critical == pytest.approx(critical_beta(4))
    (head,) = heads_of(0, _of_logits([[0.0, -17.0, -18.0]] * 3))
    # e^-18 is below half of float16's least number, e^-17 above
    assert head.underflow == pytest.approx(1 / 3)


@pytest.mark.parametrize("beta", [0.5, 2.0, 4.0, 9.0])
def test_independent_logits_do_not_depart_from_the_null(beta: float) -> None:
    """Rows of independent normal logits: their means lie within five standard errors of the random energy model."""
    rng = np.random.default_rng(3)
    rows, n = 400, 64
    logits = beta * rng.standard_normal((rows, n))
    logits *= beta / logits.std(axis=-1, keepdims=True)  # the null is told the rows' own β
    (head,) = heads_of(0, _of_logits(logits.tolist()))
    exact = random_energy(n, beta)
    assert head.beta == pytest.approx(beta)
    assert head.expected_entropy == pytest.approx(exact.entropy, rel=0.01)
    # at a spread that is measured, not given, n logits are a little less free: by about 1/n of themselves
    assert head.entropy == pytest.approx(head.expected_entropy, abs=5 * 0.6 / math.sqrt(rows) + 2 * beta / n)
    assert head.beyond == (beta > critical_beta(n))

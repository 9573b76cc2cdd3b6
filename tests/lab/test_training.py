"""Training runs: the task, the model and both optimisers against torch's own, and what is concluded."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from attnlab.lab import figure, training
from attnlab.lab.finding import Finding, pick
from attnlab.lab.survey import Survey, one_thread
from attnlab.report.experiments_page import passed

SMALL = training.Grid((16, 64), (1e-2,), (0.1,), seeds=2, steps=60)


@pytest.fixture(scope="module")
def finding() -> Finding:
    survey = Survey((), seed=3)
    with one_thread():
        training.measure(survey, SMALL)
    said = training.conclusion(survey.rows)
    return Finding("training", "title", "question?", said, tuple(survey.rows), survey.facts)


@pytest.mark.parametrize("optimiser", [training.ADAM, training.MOMENTUM])
def test_the_runs_of_one_program_are_those_of_torch_one_by_one(optimiser: str) -> None:
    attention, rates, seeds = training.Attention("scaled", 8, 8**-0.5), (1e-3, 1e-2), (3, 4)
    with one_thread():
        runs = training.train(attention, rates, seeds, 6, optimiser)
    for i, rate in enumerate(rates):
        for j, seed in enumerate(seeds):
            parameters = {name: one.requires_grad_() for name, one in training.start(attention, seed).items()}
            chosen = (
                torch.optim.Adam(parameters.values(), lr=rate)
                if optimiser == training.ADAM
                else torch.optim.SGD(parameters.values(), lr=rate, momentum=0.9)
            )
            source, losses = torch.Generator().manual_seed(seed + 2**32), []
            for _ in range(6):
                chosen.zero_grad()
                cost, _ = training.loss(parameters, attention, training.sequences(source))
                cost.backward()
                chosen.step()
                losses.append(cost.item())
            assert runs.loss[:, i, j] == pytest.approx(losses, rel=1e-3)
    assert runs.gradient.min() > 0 and (runs.query_key_gradient < runs.gradient).all()


def test_a_learning_rate_is_chosen_on_other_seeds_than_it_is_judged_on() -> None:
    # the first rate is good for even seeds alone, the second for odd ones: chosen on the others, each is wrong
    cost = np.array([[0.1, 9.0, 0.1, 9.0], [9.0, 0.1, 9.0, 0.1]])
    attention, rates = training.Attention("any", 16, 1.0), (1e-3, 1e-2)
    showed = (np.broadcast_to(one, (20, 2, 4)) for one in (cost, 1.0 * (cost < 1), cost, cost, cost))
    runs = training.Runs(attention, training.ADAM, rates, *showed)
    assert runs.learned_at_best.tolist() == [0, 0, 0, 0] and runs.learned.mean() == 0.5


def test_scores_start_as_large_as_theory_says_and_of_learning_nothing_is_predicted(finding: Finding) -> None:
    ways = {(one.head_dim, one.name): one for dim in SMALL.head_dims for one in training.ways(dim)}
    started = pick(finding.rows, training.START)
    for row in started:
        one = ways[row.where["head_dim"], row.where["scores"]]
        expected = one.head_dim * one.scale**2 * one.shrunk**4
        assert abs(row.measured - expected) < 5 * row.standard_error
    assert len(started) == 8 and passed(finding) == (0, 0)


def test_small_runs_differ_as_theory_says(finding: Finding) -> None:
    assert "percent" in finding.conclusion
    (alone,) = pick(finding.rows, training.SHARE, scores=training.UNIFORM)
    assert alone.measured == 0.0 and 0 < alone.standard_error < 0.5
    sizes = []
    for name in (training.NONE, training.SCALED, training.FULL):
        where = {"scores": name, "head_dim": 64, "step": 1, "optimiser": "Adam"}
        sizes += [row.measured for row in pick(finding.rows, training.CURVES["query_key_gradient"], **where)]
    assert sizes[0] > 2 * sizes[1] > 8 * sizes[2]
    again = Finding.from_dict(json.loads(json.dumps(finding.to_dict())))
    assert again == finding and sum(panel.get_visible() for panel in figure(again).axes) == 7

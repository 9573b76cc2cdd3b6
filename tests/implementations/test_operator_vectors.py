"""Every backend answers every published vector of the ONNX operator Attention that it does not decline, rightly.

What is right is our float64 reference, and what may be off follows from roundings (`attnlab.gate`): the package's
own tolerance is not used. That the reference means what the operator means is tested too: on the published outputs.
"""

from __future__ import annotations

from collections import Counter

import pytest
from every import every
from operator_vectors import Vector, vectors

from attnlab.backend.discovery import load
from attnlab.errors import Declined, Unavailable
from attnlab.gate.evidence import IMMATERIAL_ANYWHERE, weigh
from attnlab.gate.reference import refer
from attnlab.problem.vocabulary import OUTPUT
from attnlab.problem.workload import Workload
from attnlab.race.probe import Probe

pytest.importorskip(
    "onnx", reason="the vectors come with the package onnx; pip install 'attnlab[onnxruntime]'"
)


def fault(vector: Vector, answer: object) -> str | None:
    """What is wrong with an answer to the vector, if anything."""
    found = weigh(
        refer(vector.problem)[OUTPUT],
        answer,  # type: ignore[arg-type]
        directions=None,
        immaterial=IMMATERIAL_ANYWHERE,
    )
    return found.reason and f"{vector.name}: {found.reason}"


def test_the_reference_means_what_the_operator_means() -> None:
    """On every vector the published output is one that rounding allows."""
    assert len(vectors()) >= 80
    assert [told for vector in vectors() if (told := fault(vector, vector.output))] == []


@pytest.mark.parametrize("name", every())
def test_every_vector_is_answered_rightly_or_declined(name: str) -> None:
    """With nothing done to the inputs either."""
    try:
        probe = Probe(load(name))
        probe.backend.open("cpu")
    except Unavailable as missing:
        pytest.skip(str(missing))
    answered, reasons, wrong = 0, Counter[str](), []
    for vector in vectors():
        try:
            found = probe.answer(vector.problem, Workload.of_problem(vector.problem), vector.layout)[OUTPUT]
        except Declined as declined:
            reasons[str(declined).partition(": ")[2]] += 1
            continue
        answered += 1
        told = fault(vector, found)
        wrong += [told] if told else []
    assert wrong == []
    if not answered:
        pytest.skip(f"it declines all {len(vectors())} vectors: {reasons.most_common(1)[0][0]}")

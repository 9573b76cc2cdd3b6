"""A new mask, library or direction is one file: each example of `docs/architecture.md` is added here, and used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import attnlab.libraries
from attnlab.contract import library as libraries
from attnlab.contract.backend import Backend
from attnlab.contract.directions import DIRECTIONS
from attnlab.contract.discovery import load
from attnlab.contract.inputs import problem_of
from attnlab.contract.mask_part import Part
from attnlab.contract.workload import Workload
from attnlab.theory import exact_gradients

EXAMPLES = Path(__file__).parent / "examples"
DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"


def example(name: str) -> ModuleType:
    """The file of that name among the examples, imported."""
    spec = importlib.util.spec_from_file_location(f"attnlab_examples.{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_the_page_shows_the_examples_as_they_are(file: Path) -> None:
    """Word for word, so that what is read is what was run."""
    assert file.read_text(encoding="utf-8").strip() in DOCUMENT.read_text(encoding="utf-8")


@pytest.fixture
def dilated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new kind of mask, for one test."""
    monkeypatch.setattr(Part, "kinds", dict(Part.kinds))
    example("dilated_mask")


def test_a_new_mask_is_parsed_counted_drawn_and_answered(dilated: None) -> None:
    """By the class alone: text, pairs, every backend that takes a mask, the right gradients."""
    workload = Workload(
        heads=2, queries=7, keys=9, head_dim=4, mask="dilated(3) & window(5,0)", direction="training"
    )
    assert "dilated(3)" in workload.label and Workload.from_dict(workload.to_dict()) == workload
    seen = [[i >= j and (i - j) % 3 == 0 and i - j <= 5 for j in range(9)] for i in range(7)]
    assert workload.pairs == 2 * int(np.sum(seen))
    backend, problem = load("torch_eager"), problem_of(workload)
    answers = backend.named(workload, backend.bind(workload)())
    for gradient, exact in zip(
        ("query gradient", "key gradient", "value gradient"), exact_gradients(problem), strict=True
    ):
        np.testing.assert_allclose(answers[gradient], exact, atol=1e-5)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The new library beside those that come with attnlab, for one test."""
    pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    caches = (
        libraries.library_names,
        libraries.array_libraries,
        libraries.products,
        libraries.thread_variables,
        libraries.open_library,
    )
    monkeypatch.setattr(attnlab.libraries, "__path__", [*attnlab.libraries.__path__, str(EXAMPLES)])
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()
    sys.modules.pop("attnlab.libraries.strict_library", None)


def test_a_new_library_is_found_by_its_file(strict: None) -> None:
    """And a backend on it answers, or says what the library has not."""
    assert "strict" in libraries.library_names()
    backend = load("strict_attention", [EXAMPLES.parent / "backends"])
    workload = Workload(heads=2, queries=5, keys=7, head_dim=4, window=(2, 1))
    found = backend.named(workload, backend.bind(workload)())["output"]
    reference = load("naive_loop")
    np.testing.assert_allclose(found, reference.bind(workload)(), atol=1e-5)
    assert backend.declines(workload.with_(dtype="bfloat16")) == "the array API standard has no bfloat16"
    assert "no automatic differentiation" in (backend.declines(workload.with_(direction="training")) or "")


def test_a_new_direction_is_posed_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload takes it, knows what it costs, and a backend returns what it names."""
    direction = example("query_direction").OF_QUERY
    monkeypatch.setitem(DIRECTIONS, direction.name, direction)
    workload = Workload(heads=2, queries=5, keys=7, head_dim=4, direction="query_only")
    assert workload.flops == 1.5 * workload.with_(direction="forward").flops
    assert workload.output_bytes == 2 * 5 * 4 * 4
    backend: Backend = load("torch_eager")
    answers = backend.named(workload, backend.bind(workload)())
    exact, _, _ = exact_gradients(problem_of(workload))
    assert set(answers) == {"query gradient"}
    np.testing.assert_allclose(answers["query gradient"], exact, atol=1e-5)


def test_a_new_instrument_reads_a_call_and_says_in_what() -> None:
    """How its readings come into a result through a worker process, `tests/measuring/test_instruments.py` shows."""
    instrument = example("page_faults_instrument").PageFaults()
    call = load("naive_loop").bind(Workload(heads=1, queries=3, keys=3, head_dim=2))
    readings = instrument.measure(libraries.open_library("numpy"), call)
    measurement = instrument.measurement({"samples": readings.samples, "columns": {}, "facts": {}})
    assert (measurement.quantity, measurement.unit) == ("page_faults", "1")
    assert len(measurement.samples) == 1 and measurement.least >= 0

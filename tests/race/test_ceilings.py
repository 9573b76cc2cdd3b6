"""Ceilings: whose product counts, and until when it is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnlab.libraries.numpy_library import NumPy
from attnlab.problem.result import Ceiling
from attnlab.race import ceilings


class Late(NumPy):
    """A library whose products are computed when somebody waits for them."""

    name = "late"

    def __init__(self) -> None:
        self.waited = 0
        self.completed: Callable[[Any], Any] = self._complete

    def _complete(self, found: Any) -> Any:
        self.waited += 1
        return found

    def time_calls(self, call: Callable[[], Any], iterations: int) -> float:
        call()
        return 1.0


def test_a_product_is_timed_until_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that returns before that would set a ceiling that nothing reaches."""
    library, multiplied = Late(), []
    monkeypatch.setattr(ceilings, "products", lambda: {"late": lambda a, b: multiplied.append(a)})
    monkeypatch.setattr(ceilings, "_BUDGET_SECONDS", 1e-3)
    found = ceilings.measure(library, "float32")
    assert found == {"matmul_flops": 2.0 * 256**3}  # of one size: the next would take too long
    assert library.waited == len(multiplied) > 0


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_library_on_numpys_arrays_multiplies_by_its_own_means(name: str) -> None:
    """And has no copy of its own."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    product = ceilings.products()[name]
    one, other = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)
    np.testing.assert_allclose(product(one, other), one @ other, rtol=1e-5, atol=1e-5)


def test_the_best_product_and_the_best_copy_may_be_of_two_libraries() -> None:
    """One without a copy sets a ceiling of products alone."""
    found = ceilings.best(
        "cpu",
        "float32",
        {
            "a": {"matmul_flops": 3.0},
            "b": {"matmul_flops": 1.0, "copy_bytes": 1.0},
            "c": {"matmul_flops": 2.0, "copy_bytes": 2.0},
            "d": None,
        },
    )
    assert found == Ceiling("cpu", "float32", 3.0, "a", 2.0, "c")


def test_without_any_copy_there_is_no_ceiling() -> None:
    """Both figures or none."""
    assert ceilings.best("cpu", "float32", {"a": {"matmul_flops": 3.0}, "b": None}) is None

"""JAX as a library: arrays that are values, calls that wait, gradients that compile once, threads that are fixed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import pytest

from attnlab.backends.discovery import load
from attnlab.backends.library import open_library
from attnlab.errors import Declined, Unavailable
from attnlab.libraries import jax_library
from attnlab.problem.dtypes import DTYPES, round_to
from attnlab.problem.workload import Workload

SMALL = Workload(batch=2, heads=2, queries=9, keys=9, head_dim=8)


@pytest.fixture
def jax() -> Any:
    """The module, or the test is skipped."""
    try:
        return jax_library.opened()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_as_they_went(jax: Any, dtype: str) -> None:
    """All four formats, float64 too, and what is changed in NumPy afterwards is not changed in JAX."""
    library = open_library("jax")
    given = round_to(np.random.default_rng(0).standard_normal((3, 5)), dtype)
    held = library.from_numpy(given, dtype)
    expected = given.copy()
    given[:] = 0
    assert library.dtype_of(held) == dtype
    np.testing.assert_array_equal(library.to_numpy(held), expected)


def test_a_call_has_computed_when_it_returns(jax: Any) -> None:
    """JAX itself returns before: a result that is large is not there yet."""
    call = load("jax_xla").bind(SMALL.with_(queries=1024, keys=1024))
    call()
    assert call().is_ready()


@pytest.mark.parametrize("direction", ["backward", "training"])
def test_gradients_are_compiled_once_for_all_that_differ_in_numbers_alone(jax: Any, direction: str) -> None:
    """Arrays placed anew, another bias: the same compiled function."""
    backend = load("jax_xla")
    workload = SMALL.with_(direction=direction, bias="normal", kv_heads=1)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    backend.bind(workload)()
    assert compiled
    compiled.clear()
    backend.bind(workload.with_(seed=1))()
    assert not compiled


def test_a_backend_without_gradients_says_so(jax: Any) -> None:
    """JAX raises NotImplementedError where a primitive cannot be differentiated."""

    def refuses(query: Any, key: Any, value: Any) -> Any:
        raise NotImplementedError("no rule for this")

    library = open_library("jax")
    array = library.from_numpy(np.ones((1, 1, 2, 2), np.float32), "float32")
    with pytest.raises(Declined, match="JAX says: no rule for this"):
        library.training_call(refuses, (array,) * 3, array)()
    with pytest.raises(Declined, match="JAX says: no rule for this"):
        library.backward_call(partial(refuses), (array,) * 3, array)


def test_another_number_of_threads_needs_another_process(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA reads it when it starts; the variable is among those that a contender's process is started with."""
    library = open_library("jax")
    monkeypatch.setenv("NPROC", "2")
    library.set_threads(2)
    with pytest.raises(RuntimeError, match="start with NPROC=3"):
        library.set_threads(3)
    assert "NPROC" in jax_library.THREAD_VARIABLES


def test_device_memory_is_taken_as_it_is_needed(jax: Any) -> None:
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_one_that_has_no_cuda_says_so(jax: Any) -> None:
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("there is a CUDA device")
    with pytest.raises(Unavailable, match="no cuda device is usable by this JAX; use --device cpu"):
        open_library("jax", "cuda")
    assert load("jax_cudnn").declines(SMALL) == "cuDNN's attention runs on CUDA only"

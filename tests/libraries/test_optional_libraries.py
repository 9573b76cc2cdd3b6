"""Libraries that an extra installs: what is said where one is missing, and what each attests where it is there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text

from attnlab.commands.tables import backend_table
from attnlab.contract.discovery import load
from attnlab.contract.errors import Unavailable
from attnlab.contract.library import open_library
from attnlab.contract.workload import Workload
from attnlab.libraries.host import required

SMALL = Workload(batch=2, heads=2, queries=9, keys=9, head_dim=8)
BACKENDS = {
    "numba_fused": "numba",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "jax_xla": "jax",
    "jax_cudnn": "jax",
    "mlx": "mlx",
    "keras": "keras",
    "array_api": "array-api",
}
#: whose number of threads is that of a pool that is there once, when the process starts; or is none of its own
STARTED = ("jax_xla", "jax_cudnn")


def test_a_missing_library_is_told_with_the_line_that_installs_it() -> None:
    with pytest.raises(
        Unavailable, match=r"no_such_library is not installed; pip install 'attnlab\[extra\]'"
    ):
        required("no_such_library", extra="extra")
    with pytest.raises(Unavailable, match="no_such_library"):
        required("json", "no_such_library", extra="extra")


def test_a_library_that_fails_on_import_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("raise RuntimeError('built for\\nNumPy 1')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        Unavailable, match=r"half_installed fails on import \(RuntimeError: built for NumPy 1\)"
    ):
        required("half_installed", extra="extra")


@pytest.mark.parametrize(("name", "library"), BACKENDS.items())
def test_a_backend_whose_library_is_missing_says_so_in_one_line(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}", raising=False)
    with pytest.raises(Unavailable, match=rf"is not installed; pip install 'attnlab\[{library}\]'$"):
        load(name)


def test_tables_show_that_line_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in square brackets is text, not a style."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    for name in BACKENDS:
        monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}", raising=False)
    reasons = [Text.from_markup(str(one)).plain for one in backend_table("cpu", ()).columns[-1].cells]
    assert "openvino is not installed; pip install 'attnlab[openvino]'" in reasons


@pytest.mark.parametrize(
    ("name", "attested"),
    [
        ("numba_fused", "threads of Numba's"),
        ("onnxruntime", "CPUExecutionProvider: Attention"),
        ("openvino", "_f32, allowed f32"),
        ("jax_xla", "XLA cpu: "),
        ("mlx", "Matmul, Softmax"),
        ("keras", "_scaled_dot_product_flash_attention_for_cpu"),
    ],
)
def test_what_ran_is_attested(name: str, attested: str) -> None:
    """By the library's own record of a call; and the call returns what it did before."""
    try:
        backend = load(name)
    except Unavailable as missing:
        pytest.skip(str(missing))
    library, call = open_library(backend.library), backend.bind(SMALL)
    before = library.to_numpy(call())
    assert attested in library.attest(call)
    assert backend.library in library.versions()
    np.testing.assert_array_equal(library.to_numpy(call()), before)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name not in STARTED])
def test_another_number_of_threads_is_taken(name: str) -> None:
    try:
        backend = load(name)
    except Unavailable as missing:
        pytest.skip(str(missing))
    library, call = open_library(backend.library), backend.bind(SMALL)
    before = library.to_numpy(call())
    library.set_threads(1)
    np.testing.assert_allclose(library.to_numpy(call()), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"causal": "top_left"},
        {"causal": "bottom_right"},
        {"mask": "random(0.5)"},
        {"bias": "normal", "causal": "top_left"},
        {"layout": "bshd"},
        {"scale": -0.5},
    ],
    ids=str,
)
def test_what_is_prepared_is_what_is_called(name: str, asked: dict[str, object]) -> None:
    """No model is compiled on the clock: the first call finds the one that was made when it was bound."""
    try:
        backend = load(name)
    except Unavailable as missing:
        pytest.skip(str(missing))
    module = importlib.import_module(f"attnlab.libraries.{name}_library")
    made = module._session if name == "onnxruntime" else module._request
    call = backend.bind(SMALL.with_(**asked))
    before = made.cache_info().misses
    call()
    assert made.cache_info().misses == before


def test_numbas_loop_is_compiled_when_a_workload_is_bound() -> None:
    try:
        backend = load("numba_fused")
    except Unavailable as missing:
        pytest.skip(str(missing))
    call = backend.bind(SMALL)
    compiled = importlib.import_module("attnlab.implementations.numba_fused")._compiled
    before = compiled.cache_info().misses
    call()
    assert compiled.cache_info().misses == before

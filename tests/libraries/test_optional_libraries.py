"""Libraries that an extra installs: what is said where one is missing, and what each attests where it is there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every import here, installed
from rich.text import Text

from attnlab.backends.calling import laid_out
from attnlab.backends.discovery import load
from attnlab.backends.keywords import given
from attnlab.backends.library import open_library
from attnlab.cli.tables import backend_table
from attnlab.errors import Declined, Unavailable
from attnlab.libraries.host import LastMade, required
from attnlab.problem.inputs import problem_of
from attnlab.problem.workload import Workload
from attnlab.runs.listing import Listed

SMALL = Workload(batch=2, heads=2, queries=9, keys=9, head_dim=8)
BACKENDS = {
    "array_api": "array-api",
    "ggml_flash": "ggml",
    "jax_cudnn": "jax",
    "jax_xla": "jax",
    "keras": "keras",
    "mlx": "mlx",
    "numba_fused": "numba",
    "onnxruntime": "onnxruntime",
    "onnxruntime_contrib": "onnxruntime",
    "openvino": "openvino",
}
#: whose number of threads is that of a pool that is there once, when the process starts; or is none of its own
STARTED = ("jax_xla", "jax_cudnn")
#: the library of each whose models are made, and where it keeps them
MADE = {
    "ggml_flash": ("ggml", "_graph"),
    "onnxruntime": ("onnxruntime", "_session"),
    "onnxruntime_contrib": ("onnxruntime", "_session"),
    "openvino": ("openvino", "_request"),
}
ON_CUDA = {
    "flash_attn": "flash-attn",
    "flashinfer": "flashinfer",
    "sageattention": "sageattention",
    "xformers": "xformers",
}


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


@pytest.mark.parametrize(("name", "library"), (BACKENDS | ON_CUDA).items())
def test_a_backend_whose_library_is_missing_says_so_in_one_line(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}", raising=False)
    with pytest.raises(Unavailable, match=rf"is not installed; pip install 'attnlab\[{library}\]'$"):
        load(name)


def test_tables_show_that_line_in_full() -> None:
    """What stands in square brackets is text, not a style."""
    missing = "openvino is not installed; pip install 'attnlab[openvino]'"
    table = backend_table("cpu", [Listed("openvino", "", "", missing)])
    assert [Text.from_markup(str(one)).plain for one in table.columns[-1].cells] == [missing]


@pytest.mark.parametrize(
    ("name", "attested"),
    [
        ("ggml_flash", "FLASH_ATTN_EXT of f32 f32 f32, "),
        ("numba_fused", "threads of Numba's"),
        ("onnxruntime", "CPUExecutionProvider: Attention"),
        ("onnxruntime_contrib", "CPUExecutionProvider: MultiHeadAttention"),
        ("openvino", "_f32, allowed f32"),
        ("jax_xla", "XLA cpu: "),
        ("mlx", "Matmul, Softmax"),
        ("keras", "_scaled_dot_product_flash_attention_for_cpu"),
    ],
)
def test_what_ran_is_attested(name: str, attested: str) -> None:
    """By the library's own record of a call; and the call returns what it did before."""
    backend = here(name)
    library, call = open_library(backend.library), backend.bind(SMALL)
    before = library.to_numpy(call())
    assert attested in library.attest(call)
    assert backend.library in library.versions()
    np.testing.assert_array_equal(library.to_numpy(call()), before)


@pytest.mark.parametrize("name", [name for name in installed(*BACKENDS) if name not in STARTED])
def test_another_number_of_threads_is_taken(name: str) -> None:
    backend = here(name)
    library, call = open_library(backend.library), backend.bind(SMALL)
    before = library.to_numpy(call())
    library.set_threads(1)
    np.testing.assert_allclose(library.to_numpy(call()), before, rtol=1e-5, atol=1e-6)


ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"causal": "top_left"},
    {"causal": "bottom_right"},
    {"mask": "random(0.5)"},
    {"bias": "normal", "causal": "top_left"},
    {"layout": "bshd"},
    {"scale": -0.5},
    {"key_lengths": (5, 0)},
    {"key_lengths": (5, 9), "causal": "top_left"},
    {"key_lengths": (5, 9), "causal": "bottom_right", "keys": 12},
    {"key_lengths": (5, 9), "bias": "alibi"},
    {"bias": "alibi"},
    {"dtype": "float16", "bias": "normal", "mask": "random(0.5)"},
    {"sinks": True, "softcap": 5.0},
)


@pytest.mark.parametrize(
    ("name", "asked"), [(name, asked) for name in installed(*MADE) for asked in ASKED], ids=str
)
def test_what_is_prepared_is_what_is_called(name: str, asked: dict[str, Any]) -> None:
    """No model is compiled on the clock: the first call finds the one that was made when it was bound."""
    backend = here(name)
    library, kept = MADE[name]
    made = getattr(importlib.import_module(f"attnlab.libraries.{library}_library"), kept)
    workload = SMALL.with_(**asked)
    reason = backend.declines(workload)
    if reason:
        pytest.skip(reason)
    call = backend.bind(workload)
    before = made.cache_info().misses
    call()
    assert made.cache_info().misses == before


def test_numbas_loop_is_compiled_when_a_workload_is_bound() -> None:
    backend = here("numba_fused")
    call = backend.bind(SMALL)
    compiled = importlib.import_module("attnlab.implementations.numba_fused")._compiled
    before = compiled.cache_info().misses
    call()
    assert compiled.cache_info().misses == before


def test_what_is_made_of_an_array_is_kept_as_long_as_it_is_asked_for() -> None:
    """For the same array with the same rest alone, and no longer than the array lives."""
    asked: list[int] = []

    def make(array: np.ndarray, factor: int) -> np.ndarray:
        asked.append(factor)
        return array * factor

    last, one, other = LastMade(make), np.arange(3), np.arange(3)
    assert last.of(one, 2) is last.of(one, 2)
    np.testing.assert_array_equal(last.of(other, 2), [0, 2, 4])
    np.testing.assert_array_equal(last.of(other, 3), [0, 3, 6])
    assert asked == [2, 2, 3]
    del one
    assert last.of(other, 3) is last.of(other, 3), "what was asked for before takes nothing with it"
    made = weakref.ref(last.of(other, 3))
    del other
    assert made() is None


def test_alibi_slopes_that_ggml_does_not_have_are_declined() -> None:
    backend = here("ggml_flash")
    arrays = [np.ones((1, 2, 4, 8), np.float32)] * 3
    with pytest.raises(Declined, match="computes ALiBi's slopes itself"):
        backend.attend(*arrays, scale=1.0, alibi_slopes=(0.5, 0.25))
    for asked, reason in (
        ({"heads": 3, "bias": "alibi"}, "no power of two, got 3"),
        ({"keys": 4096, "bias": "alibi"}, "exact to 2048, got 4095"),
        ({"bias": "normal"}, "would round one in float32"),
        ({"dtype": "float64"}, "no attention in float64"),
    ):
        said = backend.declines(SMALL.with_(**asked, kv_heads=None))
        assert said is not None and reason in said


def test_onnxruntime_contrib_declines_what_its_operator_lacks() -> None:
    backend = here("onnxruntime_contrib")
    for asked, reason in (
        ({"dtype": "float16"}, "float32 only on the CPU"),
        ({"softcap": 5.0}, "takes no softcap"),
        ({"kv_heads": 1}, "takes no enable_gqa"),
        ({"sinks": True}, "takes no sinks"),
    ):
        said = backend.declines(SMALL.with_(**asked))
        assert said is not None and reason in said


@pytest.mark.parametrize(
    ("asked", "inputs"),
    [
        ({}, {}),
        ({"causal": "top_left"}, {}),
        ({"key_lengths": (5, 0)}, {"nonpad_kv_seqlen": [5, 0]}),
        ({"causal": "bottom_right"}, {"nonpad_kv_seqlen": [12, 12]}),
        ({"causal": "top_left", "key_lengths": (5, 0)}, {"attn_mask": (2, 1, 9, 12)}),
        (
            {"causal": "bottom_right", "key_lengths": (5, 0)},
            {"attn_mask": (2, 1, 9, 12), "nonpad_kv_seqlen": [12, 12]},
        ),
    ],
    ids=str,
)
def test_onnxruntime_is_told_lengths_and_alignment_by_numbers_where_it_can(
    asked: dict[str, Any], inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by an array of all pairs; and the answer is right."""
    backend = here("onnxruntime")
    sessions = importlib.import_module("attnlab.libraries.onnxruntime_library").SESSIONS
    given_to_it: dict[str, Any] = {}
    inner = sessions.run

    def watched(model: Any, arrays: dict[str, np.ndarray], output: np.ndarray) -> None:
        told = {name: one for name, one in arrays.items() if name not in ("query", "key", "value")}
        given_to_it.update(
            {name: one.shape if one.dtype == bool else one.tolist() for name, one in told.items()}
        )
        inner(model, arrays, output)

    monkeypatch.setattr(sessions, "run", watched)
    workload = SMALL.with_(keys=12, **asked)
    found = backend.bind(workload)()
    assert given_to_it == inputs
    np.testing.assert_allclose(found, load("numpy_blocked").bind(workload)(), atol=1e-6)


@pytest.mark.parametrize("name", ["ggml_flash", "numba_fused"])
def test_alibi_is_told_by_its_slopes(name: str) -> None:
    """Not by an array as large as the scores."""
    backend = here(name)
    workload = SMALL.with_(bias="alibi")
    told = given(problem_of(workload), backend.options, backend.open("cpu"), "float32")
    assert told["alibi_slopes"] == (1 / 16, 1 / 256)
    assert told.get("bias") is told.get("attn_mask") is None


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_ggml_reads_query_key_and_value_where_they_lie(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy of float32 arrays, in either layout."""
    backend = here("ggml_flash")
    library = importlib.import_module("attnlab.libraries.ggml_library")
    places: list[list[int]] = []
    inner = library.Graph.compute

    def watched(graph: object, inputs: list[np.ndarray], output: np.ndarray) -> None:
        places.append([one.ctypes.data for one in inputs])
        inner(graph, inputs, output)

    monkeypatch.setattr(library.Graph, "compute", watched)
    workload = SMALL.with_(layout=layout)
    problem, opened = problem_of(workload), backend.open("cpu")
    arrays = tuple(
        laid_out(opened, one, "float32", layout) for one in (problem.query, problem.key, problem.value)
    )
    backend.call(workload, problem, arrays)()
    assert places == [[one.ctypes.data for one in arrays]]


def test_openvino_reports_its_use_to_nobody(tmp_path: Path) -> None:
    """By itself it starts a process that does, over the network, and keeps an identifier in the home folder."""
    pytest.importorskip("openvino", reason="OpenVINO is not installed; pip install 'attnlab[openvino]'")
    code = """
        import sys, threading
        from attnlab.backends.discovery import load
        load("openvino").open("cpu")
        assert sys.modules["openvino_telemetry"] is None
        assert threading.active_count() == 1, threading.enumerate()
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())

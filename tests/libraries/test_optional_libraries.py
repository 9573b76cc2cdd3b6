"""Libraries that an extra installs: the message if one is missing, and what each attests, declines and answers."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

import numpy as np
import pytest
import torch
from every import here, judged

from attnlab.backends.discovery import load
from attnlab.errors import Unavailable
from attnlab.libraries.library import open_library
from attnlab.libraries.torch_library import ExecuTorch, Vllm
from attnlab.workload.workload import Workload

SMALL = Workload(batch=2, heads=4, queries=33, keys=33, head_dim=32)
#: backends on CUDA kernels; each has an extra of the same name
KERNELS = ("flash_attn", "flashinfer", "sageattention", "xformers")
#: what each backend attests for a plain call
ATTESTED = {
    "ggml_flash": "FLASH_ATTN_EXT of f32 f32 f32, ",
    "ggml_unfused": "MUL_MAT of f32 f32, SOFT_MAX of f32, MUL_MAT of f32 f32, ",
    "numba_fused": "threads of Numba's",
    "onnxruntime": "CPUExecutionProvider: Attention",
    "onnxruntime_contrib": "CPUExecutionProvider: MultiHeadAttention",
    "onnxruntime_unfused": "CPUExecutionProvider: FusedMatMul + MatMul + Softmax",
    "openvino": "_f32, allowed f32",
    "jax_xla": "XLA cpu: ",
    "mlx": "Matmul, Softmax",
    "keras": "_scaled_dot_product_flash_attention_for_cpu",
    "executorch": "llama::custom_sdpa",
    "vllm_cpu": "_C::cpu_attention_with_kv_cache",
}


@pytest.mark.parametrize("name", [*ATTESTED, "jax_cudnn", *KERNELS])
def test_a_backend_whose_library_is_missing_says_what_installs_it(name, monkeypatch) -> None:
    """The message names an existing extra, or one version of a package."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    monkeypatch.delitem(sys.modules, f"attnlab.implementations.{name}", raising=False)
    for library in (ExecuTorch, Vllm):
        library.opened.__func__.cache_clear()  # type: ignore[attr-defined]
    with pytest.raises(Unavailable) as missing:
        load(name)
    found = re.search(
        r"is not installed; pip install (?:'attnlab\[(.+)\]'|--no-deps .+==[\d.]+)$", str(missing.value)
    )
    assert found and found[1] in (None, *importlib.metadata.metadata("attnlab").get_all("Provides-Extra", []))


@pytest.mark.parametrize("name", ATTESTED)
def test_what_ran_is_attested_and_computes_the_same_with_other_threads(name: str) -> None:
    """What ran is read from the library's own record of a call. The call is compiled when it is bound."""
    backend = here(name)
    library, call = open_library(backend.library), backend.bind(SMALL)
    before = np.array(library.to_numpy(call()))
    assert ATTESTED[name] in library.attest(call)
    assert any(part in " ".join(library.versions()) for part in name.split("_"))
    np.testing.assert_array_equal(library.to_numpy(call()), before)
    if name != "jax_xla":  # its thread pool is made once, when the process starts
        threads = torch.get_num_threads()
        try:
            library.set_threads(2)
            np.testing.assert_allclose(library.to_numpy(call()), before, rtol=1e-5, atol=1e-6)
        finally:
            library.set_threads(threads)


@pytest.mark.parametrize(
    ("name", "asked", "reason"),
    [
        ("ggml_flash", {"heads": 3, "bias": "alibi"}, "no power of two, got 3"),
        ("ggml_flash", {"softcap": 2.0, "queries": 64, "keys": 100}, "got 100 keys"),
        ("onnxruntime_unfused", {"dtype": "float16"}, "it rounds the scale"),
        ("executorch", {"key_lengths": (3, 9)}, "one mask for all batch elements and heads"),
        ("vllm_cpu", {"window": (3, 1)}, "this one looks ahead"),
        ("jax_xla", {"dtype": "float64"}, "softmax in float32"),
        ("jax_xla", {"dtype": "bfloat16", "head_dim": 1, "value_dim": 1}, "aborts the process"),
    ],
)
def test_what_a_library_lacks_is_declined_with_the_reason(name, asked, reason) -> None:
    """It is declined before the library is called, because some libraries would end the process."""
    said = here(name).declines(SMALL.with_(**{"kv_heads": None, **asked}))
    assert said is not None and reason in said.reason


@pytest.mark.parametrize(("precision", "format"), [("f32", None), ("bf16", "bfloat16"), ("f16", "float16")])
def test_each_precision_of_openvino_is_attested_and_right_by_its_own_budget(precision, format) -> None:
    backend, workload = here("openvino", settings={"precision": precision}), SMALL.with_(causal="top_left")
    assert backend.computes_in == format
    found = judged(backend, workload)
    assert found.passed, found.reason
    assert f"allowed {precision}" in backend.open("cpu").attest(backend.bind(workload))


def test_openvino_reports_its_use_to_nobody() -> None:
    """By default it starts a process that reports over the network, and keeps an identifier in the home folder."""
    here("openvino").open("cpu")
    assert sys.modules["openvino_telemetry"] is None


def test_a_call_of_jax_has_computed_when_it_returns() -> None:
    """JAX itself returns earlier: a large result is not ready yet."""
    call = here("jax_xla").bind(SMALL.with_(queries=1024, keys=1024))
    call()
    assert call().is_ready()

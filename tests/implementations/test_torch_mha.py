"""PyTorch's own module: which path ran is attested, masks mean what they mean elsewhere, limits are declined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from every import judged

from attnlab.backends.discovery import load
from attnlab.workload.workload import Workload

torch = pytest.importorskip("torch")
SELF = Workload(batch=2, heads=4, queries=10, keys=10, d_model=32)


@pytest.fixture(autouse=True)
def set_back() -> Iterator[None]:
    """The fast path is a switch of PyTorch's own, for the whole process."""
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def attested(workload: Workload, fastpath: str = "on") -> str:
    """What ran."""
    backend = load("torch_mha", settings={"fastpath": fastpath})
    return backend.open("cpu").attest(backend.bind(workload))


def test_the_fast_path_is_attested_where_it_ran() -> None:
    """Self-attention with an even number of heads; another memory and the setting do without."""
    assert attested(SELF) == "_native_multi_head_attention"
    assert "_native" not in attested(SELF.with_(keys=12))
    assert "_native" not in attested(
        SELF.with_(heads=1, head_dim=None, kv_heads=None, value_dim=None, scale=None)
    )
    assert "_scaled_dot_product" in attested(SELF, fastpath="off")


@pytest.mark.parametrize("fastpath", ["on", "off"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"causal": "top_left"},
        {"mask": "prefix(4)"},
        {"window": (2, 1)},
        {"key_lengths": (13, 3), "keys": 13},
        {"bias": "alibi", "keys": 13},
    ],
    ids=str,
)
def test_it_is_right_with_every_mask_that_it_takes(asked: dict[str, Any], fastpath: str) -> None:
    """True hides in the module and shows everywhere else."""
    backend, workload = load("torch_mha", settings={"fastpath": fastpath}), SELF.with_(**asked)
    assert backend.declines(workload) is None
    found = judged(backend, workload)
    assert found.passed, found.reason

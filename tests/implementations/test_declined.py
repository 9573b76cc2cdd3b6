"""What a library gets wrong is declined, exactly that, and with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every import here

from attnlab.backend.backend import Backend
from attnlab.errors import Declined
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload

SMALL = Workload(batch=1, heads=2, queries=5, keys=7, head_dim=16)


@pytest.mark.parametrize(
    ("name", "asked", "beside", "reason"),
    [
        ("jax_xla", {"dtype": "float64"}, {}, "softmax in float32"),
        ("jax_xla", {"dtype": "float16"}, {"dtype": "bfloat16"}, "XLA has not on the CPU"),
        ("jax_xla", {"value_dim": 8}, {}, "needs value_dim = head_dim, got value_dim 8 and head_dim 16"),
        (
            "jax_xla",
            {"dtype": "bfloat16", "head_dim": 1, "value_dim": 1},
            {"head_dim": 1, "value_dim": 1},
            "aborts the process",
        ),
        ("jax_cudnn", {}, None, "CUDA only"),
        ("mlx", {"dtype": "float64"}, {}, "softmax in float32"),
        ("mlx", {"dtype": "bfloat16", "scale": 0.3}, {"dtype": "bfloat16"}, "0.3 becomes 0.300781"),
        ("mlx", {"dtype": "float16", "scale": 0.3}, {"scale": 0.3}, "0.3 becomes 0.300049"),
        ("keras", {"dtype": "float64"}, {"dtype": "float16"}, "float64 in float32"),
    ],
)
def test_it_declines_that_and_not_what_is_beside_it(
    name: str, asked: dict[str, Any], beside: dict[str, Any] | None, reason: str
) -> None:
    backend = here(name)
    assert reason in (backend.declines(SMALL.with_(**asked)) or "")
    if beside is not None:
        assert backend.declines(SMALL.with_(**beside)) is None


def test_gradients_of_a_row_that_an_array_hides_are_declined() -> None:
    """The workload knows nothing of an array of a caller's own: it is seen when the call is bound."""
    import torch

    def attend(query: Any, key: Any, value: Any, *, causal: bool, scale: float, mask: Any = None) -> Any:
        scores = (query @ key.mT * scale).masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) @ value

    backend = Backend("mine", "torch", attend, options=frozenset({"causal", "scale", "mask"}))
    rng = np.random.default_rng(0)
    q, k, v, upstream = (rng.standard_normal((1, 1, 3, 4)).astype(np.float32) for _ in range(4))
    for hidden, declined in ((slice(0, 0), False), (slice(1, 2), True)):
        seen = np.ones((3, 3), bool)
        seen[hidden] = False
        problem = Problem.of(q, k, v, mask=seen, output_gradient=upstream)
        workload = Workload.of_problem(problem, direction="training")
        if declined:
            with pytest.raises(Declined, match="a query sees no key"):
                backend.bind(workload, problem)
        else:
            assert all(
                np.isfinite(one).all()
                for one in backend.named(workload, backend.bind(workload, problem)()).values()
            )

"""The formula of torch_eager, compiled by torch.compile.

`attnlab.libraries.torch_attention.attend` through TorchDynamo and Inductor, as one graph (`fullgraph`). It is compiled
for the shapes of the call, or, if a head has fewer than 2^16 scores, once for many shapes (`dynamic=True`). Scale, soft
cap and the kind of mask are compiled in. The first call of a kind compiles, which takes seconds; PyTorch keeps the
result in its own folder on disk, from which the next process loads it.

Inductor recognises the plain formula, softmax(scale · Q Kᵀ) V, also with grouped heads and in training, and calls
PyTorch's fused kernel instead: this is then `torch_sdpa` under another name, and the attested kernel says so. With a
mask, a cap or sinks it is two matrix products with Inductor's loops between them.

A backward pass frees the memory of its forward pass, so that gradients alone cannot be timed. They are declined;
training is not.

Time: 4·b·h·n_q·n_k·d floating-point operations, with one or two passes over the scores if they are not fused.
Memory: O(n) if the fused kernel runs, else up to two arrays of the size of the score matrix, O(n_q·n_k).
"""

from functools import wraps
from typing import Any

from torch import Tensor

from attnlab.libraries import torch_attention
from attnlab.workload.workload import Workload

LIBRARY = "torch"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 2.1, "outputs": 4.1}
ON_REQUEST = "it compiles for seconds at every shape"


def declines(workload: Workload) -> tuple[str, str] | None:
    """Declines gradients alone."""
    if workload.direction == "backward":
        return (
            "direction",
            "its backward pass gives up the forward pass's memory, so that it cannot be timed alone; training can",
        )
    return None


@wraps(torch_attention.attend)
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    **numbers: Any,
) -> Tensor:
    given: dict[str, Any] = {"mask": mask, "bias": bias, "sinks": sinks}
    arrays = query, key, value
    asked = tuple(numbers), *numbers.values()
    output: Tensor = _compiled(asked, (*arrays, *given.values()), arrays, **given, **numbers)
    return output


_compiled = torch_attention.Compiled(torch_attention.attend)

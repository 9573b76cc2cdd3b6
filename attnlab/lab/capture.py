"""Query, key, value, mask, scale and soft cap of every attention that a model calls, as problems of the contract.

Two hooks, in place for one call of the model. transformers lets a model ask for an attention by name: under a name of
our own stands a function that notes what it is given and hands it on to what the model would have called. And PyTorch
lets a mode see every function of its own that is called, `scaled_dot_product_attention` among them. What neither of
them sees, a kernel of the model's own, cannot be captured.

The answer of the call is noted too: a problem that does not give it again is not what the model computed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attnlab.correctness.exact_attention import blocks, softmax_rows
from attnlab.lab.theory import unit_roundoff
from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import ALIGNMENTS, Causal, Given, KeyLengths, Shape, Window
from attnlab.workload.masks import EVERYTHING, Mask

#: the name of the attention that notes and hands on
_NAME = "attnlab_capture"
#: what is added to the score of a hidden pair is this much of the format's least number, or less
_HIDDEN = 0.25
_SDPA = functional.scaled_dot_product_attention


@dataclass(frozen=True, eq=False)
class Call:
    """One call of attention. module : its path in the model, empty where it is not known. problem : what it was given.
    answer : what it returned, (batch, heads, queries, value_dim), in the number format of the problem."""

    module: str
    problem: Inputs
    answer: NDArray[Any]


class Recorder(TorchFunctionMode):
    """The calls of attention that `model` made so far; as a mode it sees PyTorch's function wherever it is called."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._open: list[str] = []
        #: whether what is called now was noted already, one level above
        self.inside = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return (self.attend if func is _SDPA else func)(*args, **(kwargs or {}))

    def enter(self, module: torch.nn.Module, *_: Any) -> None:
        """`module` begins: what is called until it ends is its own."""
        self._open.append(self._paths[id(module)])

    def leave(self, *_: Any) -> None:
        """The innermost module ended."""
        self._open.pop()

    def note(self, arrays: tuple[Tensor, Tensor, Tensor], answer: Tensor, **asked: Any) -> None:
        """Keep one call; `asked` as for `problem_of_call`."""
        problem = problem_of_call(*arrays, **asked)
        self.calls.append(Call(self._open[-1] if self._open else "", problem, _array(answer)))

    def hand_on(self, function: Callable[..., Any], *args: Any, **rest: Any) -> Any:
        """What `function` returns; what it calls is not noted again."""
        before, self.inside = self.inside, True
        try:
            return function(*args, **rest)
        finally:
            self.inside = before

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **rest: Any,
    ) -> Tensor:
        """PyTorch's ``scaled_dot_product_attention``, noted unless that was done one level above."""
        noted = self.inside
        answer: Tensor = self.hand_on(
            _SDPA, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **rest
        )
        if not noted:
            whole = answer.unsqueeze(0) if answer.ndim == 3 else answer
            self.note((query, key, value), whole, mask=attn_mask, causal=is_causal, scale=scale)
        return answer


def captured(model: torch.nn.Module, inputs: Mapping[str, Any] | tuple[Any, ...]) -> list[Call]:
    """The attention calls of ``model(**inputs)``, or of ``model(*inputs)``, in evaluation mode, in their order.

    Afterwards the model is as it was.
    """
    recorder = Recorder(model)
    with evaluating(model), recording(model, recorder):
        forward(model, inputs)
    return recorder.calls


def forward(model: torch.nn.Module, inputs: Mapping[str, Any] | tuple[Any, ...]) -> None:
    """One pass of `model`."""
    model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without gradients, and without PyTorch's fast path for whole blocks."""
    with ExitStack() as stack:
        stack.callback(model.train, model.training)
        fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole block in one function
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        stack.enter_context(torch.no_grad())
        model.eval()
        yield


@contextmanager
def recording(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """What `model` calls meanwhile goes through `recorder`."""
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(recorder.enter).remove)
            stack.callback(module.register_forward_hook(recorder.leave).remove)
        # what PyTorch's own functions call is seen by no mode: they find the noting function in its place
        stack.callback(setattr, functional, "scaled_dot_product_attention", _SDPA)
        functional.scaled_dot_product_attention = recorder.attend  # type: ignore[assignment]
        stack.enter_context(_interface(model, recorder))
        stack.enter_context(recorder)
        yield


def problem_of_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> Inputs:
    """What a call asks. query (batch, heads, queries, head_dim); key, value (batch, kv_heads, keys, dim).

    mask : booleans, True keeps; or numbers that are added to the scores, those near the format's least hide their pair.
    bias : numbers that are added beside it. Both broadcastable to the scores. causal : top-left.
    A mask that has a name gets it: causal, window, key lengths. Raises ValueError as `Inputs.of` does, and for numbers
    that are not finite.
    """
    for name, tensor in {"query": query, "key": key, "value": value}.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"a {name} of the model is not finite: its own numbers overflow on these inputs")
    if query.ndim == 3:
        query, key, value = (one.unsqueeze(0) for one in (query, key, value))
    # a model may leave an axis of its mask or its keys to broadcasting
    batch = max(query.shape[0], key.shape[0])
    query, key, value = (one.expand(batch, *one.shape[1:]) for one in (query, key, value))
    if scale is not None and math.isclose(
        scale, query.shape[-1] ** -0.5, rel_tol=4 * unit_roundoff("float64")
    ):
        scale = None  # the usual one, a rounding apart by how it was computed
    seen = None if mask is None else _array(mask)
    summands = [] if bias is None else [_array(bias)]
    if mask is not None and mask.dtype != torch.bool:
        hidden = mask <= _HIDDEN * torch.finfo(mask.dtype).min
        seen, summands = _array(~hidden), [_array(mask.masked_fill(hidden, 0.0)), *summands]
    added = np.array(sum(summands), ndmin=4)
    return Inputs.of(
        _array(query),
        _array(key),
        _array(value),
        dtype=str(query.dtype).removeprefix("torch."),
        mask=_named(seen, causal, (batch, query.shape[1], query.shape[2], key.shape[2])),
        scale=None if scale is None else float(scale),
        softcap=softcap or None,
        sinks=None if sinks is None else _array(sinks.reshape(-1)),
        bias=added if added.any() else None,
    )


def disagreement(call: Call) -> float | None:
    """How far, relative to its size, the answer lies from what the problem says; None where that is rounding.

    Rounding is less than half of the digits of the number format: a forgotten factor or mask shows above that.
    """
    exact = exact_output(call.problem)
    found = float(np.linalg.norm(call.answer - exact) / (np.linalg.norm(exact) or 1.0))
    return found if found > math.sqrt(unit_roundoff(call.problem.dtype)) else None


def exact_output(problem: Inputs) -> NDArray[np.float64]:
    """What `problem` asks for, in float64: (batch, heads, queries, value_dim)."""
    found = np.empty(problem.output_shape)
    for part in blocks(problem):
        found[part.at] = softmax_rows(part).output
    return found


def _array(tensor: Tensor) -> NDArray[Any]:
    """As NumPy has it, bfloat16 in float32, which holds it exactly."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy().copy()


def _named(seen: NDArray[np.bool_] | None, causal: bool, shape: tuple[int, int, int, int]) -> Mask:
    """The mask as a value: by its name where it has one."""
    mask = Mask((Causal(),)) if causal else EVERYTHING
    if seen is None or seen.all():
        return mask
    seen = np.array(seen, ndmin=4)
    batch, _, queries, keys = shape
    whole = np.broadcast_to(seen, (seen.shape[0], seen.shape[1], queries, keys))
    if (whole == whole[:1, :1]).all():
        for candidate in _candidates(whole[0, 0]):
            visible = candidate.array(Shape(1, 1, queries, keys))
            if (whole[0, 0] == (True if visible is None else visible)).all():
                return mask & candidate
    lengths = np.broadcast_to(whole, (batch, *whole.shape[1:]))[:, 0, 0].sum(axis=-1)
    if (whole == (np.arange(keys) < lengths[: whole.shape[0], None, None, None])).all() and lengths.all():
        return mask & Mask((KeyLengths(tuple(map(int, lengths))),))
    return mask & Mask((Given(np.ascontiguousarray(whole)),))


def _candidates(seen: NDArray[np.bool_]) -> Iterator[Mask]:
    """Masks with a name that a table of queries and keys may be."""
    last = int(seen[-1].sum())
    for alignment in ALIGNMENTS:
        yield Mask((Causal(alignment),))
        if last > 0:
            yield Mask((Causal(alignment), Window.of((last - 1, 0), alignment)))


@contextmanager
def _interface(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Every part of `model` that asks transformers for its attention gets one that notes and hands on."""
    configs: list[Any] = []
    if "transformers" in sys.modules:  # otherwise it is none of its models
        from transformers import PreTrainedModel

        parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
        configs = list(
            {id(part.config): part.config for part in parts if part._can_set_attn_implementation()}.values()
        )
    if not configs:
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = {id(config): config._attn_implementation for config in configs}
    kinds = {name for name in before.values() if name in ("eager", "sdpa")}
    # one of another name would compute on a device or in a format of its own: it hands on to the written-out formula
    asked = "sdpa" if kinds == {"sdpa"} else "eager"

    def noting(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **rest: Any
    ) -> Any:
        attend = _eager_of(module) if asked == "eager" else ALL_ATTENTION_FUNCTIONS["sdpa"]
        found = recorder.hand_on(attend, module, query, key, value, attention_mask, **rest)
        answer = found[0].transpose(1, 2)
        told = rest.get("is_causal")
        flag = bool(getattr(module, "is_causal", True) if told is None else told)
        causal = asked == "sdpa" and attention_mask is None and query.shape[2] > 1 and flag
        if causal:  # keys of a cache that is yet to be filled
            key, value = (one[:, :, : query.shape[2]] for one in (key, value))
        recorder.note(
            (query, key, value),
            answer,
            mask=attention_mask,
            causal=causal,
            scale=rest.get("scaling"),
            softcap=rest.get("softcap"),
            sinks=rest.get("s_aux"),
            bias=rest.get("position_bias"),
        )
        return found

    ALL_ATTENTION_FUNCTIONS.register(_NAME, noting)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS[asked])
    try:
        for config in configs:
            config._attn_implementation_internal = _NAME
        yield
    finally:
        for config in configs:
            config._attn_implementation_internal = before[id(config)]
        for known in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            known._global_mapping.pop(_NAME, None)


def _eager_of(module: torch.nn.Module) -> Callable[..., Any]:
    """The formula as the model's own file has it. Raises ValueError where it has none."""
    home = vars(sys.modules[type(module).__module__])
    found: Callable[..., Any] | None = home.get("eager_attention_forward")
    if found is None:
        raise ValueError(
            f"{type(module).__name__} has no written-out attention: load the model with attn_implementation='sdpa'"
        )
    return found

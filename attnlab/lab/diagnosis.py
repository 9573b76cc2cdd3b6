"""What attention does in a model: the spread of each head's logits, and the weights that its softmax makes of them.

The model is called once, under a mode that sees every call of a PyTorch function. The logits are read from
``scaled_dot_product_attention``, and from each ``softmax`` whose result is the first matrix of a product, whichever
module calls them. A kernel of the model's own is not seen.

Let s_j be the logits of a head over the n keys that a query sees, and p = softmax(s) the weights. Then β² is the mean
over rows of the variance of s within a row, H = −Σ p ln p the entropy, and ‖J‖_F the norm of the softmax's Jacobian. n
independent normal logits freeze at β_c = √(2 ln n). To see what training changed, diagnose an untrained model too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.figure_style import BLUE, GREY, ORANGE, SIZE, entitle, new_figure
from attnlab.lab.theory import critical_beta, jacobian_norm_squared, random_energy
from attnlab.libraries.library import required
from attnlab.text import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: a row is frozen if one weight exceeds this, as at most one weight of a row can
FROZEN = 0.5
#: a row passes on almost no gradient if the norm of the softmax's Jacobian is below this, as in the experiments
LOST = 1e-3
#: hidden pairs have a number below all logits, with at least this gap between
_GAP = 1000.0
#: PyTorch functions whose first matrix may be weights; functions of weights whose result still counts as weights
_PRODUCTS = {"matmul", "bmm", "einsum", "baddbmm"}
_SAME = {
    *("dropout", "to", "type_as", "type", "float", "half", "bfloat16", "double", "contiguous", "clone"),
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "getitem", "detach"),
    *("masked_fill", "nan_to_num", "mul", "div", "sub"),
}
#: number of heads named in the figure; standard deviations of the figure's curve, in units of β_c
_NAMED, _CURVE = 6, (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0)


@dataclass(frozen=True)
class Head:
    """One head of one call: means over its rows, unless stated otherwise. Rows with fewer than two keys are skipped.

    call : number of the call in the model's pass, from 0. module : path of the module that made the call. beta : root
    mean square of the standard deviation of a row's logits. critical : β_c, its root mean square over rows. entropy :
    H / ln n. largest_weight : max p. frozen_rows : share of rows with a weight above ½. lost_rows : share of rows with
    ‖J‖_F < 1e-3. first : weight of the first key. log_sum : ln Z, Z = Σ e^s. largest_logit : max s over all rows, which
    QK-Clip bounds during training (Kimi K2, 2507.20534).
    """

    call: int
    head: int
    module: str
    beta: float
    critical: float
    entropy: float
    largest_weight: float
    frozen_rows: float
    lost_rows: float
    first: float
    log_sum: float
    largest_logit: float

    @property
    def frozen(self) -> bool:
        """Whether independent normal logits of the same number and spread would be frozen."""
        return self.beta > self.critical


@dataclass(frozen=True)
class Diagnosis:
    """All heads of a model on some inputs. keys : the largest number of keys in a call."""

    model: str
    keys: int
    heads: tuple[Head, ...] = field(repr=False)

    @property
    def frozen(self) -> list[Head]:
        """The heads beyond the freezing line, the furthest first."""
        return [one for one in self.most_spread() if one.frozen]

    def most_spread(self) -> list[Head]:
        """All heads, the one furthest beyond its freezing line first."""
        return sorted(self.heads, key=lambda one: -one.beta / one.critical)

    def figure(self) -> Figure:
        """A figure of entropy against spread: a point per head, and the exact curve of independent normal logits."""
        figure, (axes,) = new_figure(6.4, 4.4)
        critical, whole = critical_beta(self.keys), math.log(self.keys)
        x = np.geomspace(_CURVE[0], _CURVE[-1], 200)
        curve = [random_energy(self.keys, ratio * critical).entropy / whole for ratio in _CURVE]
        axes.plot(x, np.interp(np.log(x), np.log(_CURVE), curve), color=GREY, linewidth=1.6)
        axes.axvline(1.0, color=GREY, linestyle="--", linewidth=1.1)
        for one in self.heads:
            colour = ORANGE if one.frozen else BLUE
            axes.plot([one.beta / one.critical], [one.entropy], "o", color=colour, markersize=4.5)
        for one in self.most_spread()[:_NAMED]:
            name, at = f"{one.call}.{one.head}", (one.beta / one.critical, one.entropy)
            axes.annotate(name, at, (5, 3), textcoords="offset points", fontsize=SIZE - 2.5)
        axes.set_xscale("log")
        axes.set_ylim(-0.03, 1.05)
        told = f"line: independent logits, n = {self.keys}\nnumbers: call.head"
        axes.text(_CURVE[0], 0.05, told, fontsize=SIZE - 1.5, color=GREY)
        title = f"{len(self.frozen)} of {len(self.heads)} heads are spread beyond freezing"
        entitle(axes, title, "standard deviation of a row's logits / β_c", "entropy / ln n")
        return figure


def diagnose(module: Any, inputs: Any) -> Diagnosis:
    """What attention does in `module` when it is called on `inputs`.

    module : a torch module on the CPU; it is called in evaluation mode, and its state is restored. inputs : its
    arguments: a mapping of keywords, a tuple, or one tensor.

    Raises ValueError for a module that cannot be called, calls no attention that PyTorch sees, has logits that are NaN
    or +inf, or has no query that sees two keys.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    name, keys, heads = type(module).__name__, list[int](), list[Head]()

    def note(caller: str, logits: Any) -> None:
        # leading axes beyond (heads, queries, keys) are the batch
        whole = logits.reshape(-1, *(1, *logits.shape)[-3:]).detach().double().numpy()
        heads.extend(_heads(len(keys), caller, whole))
        keys.append(whole.shape[-1])

    try:
        with _watching(module, note):
            if isinstance(inputs, Mapping):
                module(**inputs)
            else:
                module(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    except _NotFinite:
        raise
    except Exception as fault:  # the model is other people's code
        reason = one_line(f"{type(fault).__name__}: {fault}", 200)
        raise ValueError(f"{name} cannot be called on these inputs: {reason}") from None
    if not keys:
        raise ValueError(
            f"{name} calls no attention: neither torch.nn.functional.scaled_dot_product_attention nor softmax of "
            "scores (heads, queries, keys) before a matrix product; a kernel of its own is not seen"
        )
    if not heads:
        raise ValueError("every query sees one key or none: nothing is chosen; give longer inputs")
    return Diagnosis(name, max(keys), tuple(heads))


class _NotFinite(ValueError):
    """Logits of a call are NaN or +∞."""


@contextmanager
def _watching(module: Any, note: Callable[[str, Any], None]) -> Iterator[None]:
    """In the context, calls `note` with the caller's path and the logits of each attention that `module` computes."""
    import torch
    from torch.nn import functional

    path = [""]
    mode, fused, written_out = _readers(path, note)

    def leave(*_: Any) -> None:
        path.pop()

    with ExitStack() as restoring:
        for name, one in module.named_modules():
            restoring.callback(setattr, one, "training", one.training)
            entering = one.register_forward_pre_hook(lambda *_, name=name: path.append(name))
            restoring.callback(entering.remove)
            restoring.callback(one.register_forward_hook(leave).remove)
        restoring.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole block in one function
        # a mode does not see the calls that PyTorch's own functions make: for these calls two functions are replaced
        ours = {"scaled_dot_product_attention": fused, "softmax": partial(written_out, functional.softmax)}
        for name, function in ours.items():
            restoring.callback(setattr, functional, name, getattr(functional, name))
            setattr(functional, name, function)
        module.eval()
        with torch.no_grad(), mode:
            yield


def _readers(path: list[str], note: Callable[[str, Any], None]) -> tuple[Any, ...]:
    """A mode that sees calls of PyTorch's functions, and the functions that note fused and unfused attention.

    path : names of the modules that are being called, the innermost last. note : is called as in `_watching`.
    """
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode
    from torch.utils.weak import WeakTensorKeyDictionary

    sdpa, block = functional.scaled_dot_product_attention, functional.multi_head_attention_forward
    # weights that no product has used yet, with the caller and the scores
    unused: Any = WeakTensorKeyDictionary()
    heads = [0]  # number of heads of the multi-head block that is being called, 0 outside one

    def fused(*args: Any, **rest: Any) -> Any:
        with torch._C.DisableTorchFunction():
            found = sdpa(*args, **rest)
            note(path[-1], _scores(*args, **rest))
        return found

    def written_out(function: Any, input: Any, dim: Any = None, *args: Any, **rest: Any) -> Any:
        with torch._C.DisableTorchFunction():
            found = function(input, dim, *args, **rest)
            if heads[0]:  # the product within PyTorch's own block is not seen
                note(path[-1], input.unflatten(0, (-1, heads[0])))
            elif input.ndim > 2 and dim in (-1, input.ndim - 1):
                unused[found] = [(path[-1], input)]
        return found

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is sdpa:
                return fused(*args, **kwargs)
            name = getattr(func, "__name__", "").strip("_")
            if name == "softmax":
                return written_out(func, *args, **kwargs)
            heads[0] = (kwargs.get("num_heads") or args[4]) if func is block else 0
            found = func(*args, **kwargs)
            heads[0] = 0
            first = [*args, *kwargs.values(), None, None][name in ("einsum", "baddbmm")]
            weights = unused.get(first) if isinstance(first, torch.Tensor) else None
            if weights is not None and name in _PRODUCTS:
                while weights:
                    note(*weights.pop())
            elif weights is not None and name in _SAME and isinstance(found, torch.Tensor):
                unused[found] = weights
            return found

    return Mode(), fused, written_out


def _scores(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The logits that ``scaled_dot_product_attention`` computes from its arguments, (..., queries, keys) in float64."""
    import torch

    query, key = query.double(), key.double()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is None:
        return logits
    if attn_mask.dtype == torch.bool:
        return logits.masked_fill(~attn_mask, -math.inf)
    return logits + attn_mask.double()


def _heads(number: int, caller: str, logits: NDArray[np.float64]) -> Iterator[Head]:
    """The heads of one call, averaged over the queries that see two keys or more, and over the batch.

    logits : (batch, heads, queries, keys). Raises _NotFinite.
    """
    if not (logits < math.inf).all():
        wrong = "has logits that are NaN or +inf; give it weights and inputs that keep them finite"
        raise _NotFinite(f"call {number}, of {caller or 'the module itself'}, {wrong}")
    for head in range(logits.shape[1]):
        s = _without_hidden(logits[:, head].reshape(-1, logits.shape[-1]))
        seen = np.isfinite(s)
        s, seen = s[seen.sum(axis=-1) > 1], seen[seen.sum(axis=-1) > 1]
        if not len(s):
            continue
        n = seen.sum(axis=-1)
        variance = s.var(axis=-1, where=seen)
        top = s.max(axis=-1)
        p = np.exp(s - top[:, None])
        total = p.sum(axis=-1)
        p /= total[:, None]
        entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)
        yield Head(
            call=number,
            head=head,
            module=caller,
            beta=math.sqrt(variance.mean()),
            critical=math.sqrt((2 * np.log(n)).mean()),
            entropy=float((entropy / np.log(n)).mean()),
            largest_weight=float(p.max(axis=-1).mean()),
            frozen_rows=float((p.max(axis=-1) > FROZEN).mean()),
            lost_rows=float((jacobian_norm_squared(p) < LOST**2).mean()),
            first=float(p[:, 0].mean()),
            log_sum=float((top + np.log(total)).mean()),
            largest_logit=float(top.max()),
        )


def _without_hidden(s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logits of one head, (rows, keys), with −∞ wherever a mask of any kind hides a pair.

    A mask sets or adds a number such as −1e4 or the lowest number of the format. Over all rows, the distances of hidden
    pairs from the largest logit of their row lie beyond a gap. In a row with hidden pairs only, the logits are as low
    as those of the hidden pairs elsewhere.
    """
    top = s.max(axis=-1, keepdims=True)
    below = np.where(np.isfinite(s), top - np.where(np.isfinite(s), s, 0.0), 0.0)
    if below.max(initial=0.0) <= _GAP:
        return s
    far = np.sort(below, axis=None)
    (gaps,) = np.nonzero(np.diff(far) > _GAP)
    return np.where(s <= s[below > far[gaps[0]]].max(), -math.inf, s) if len(gaps) else s


def read_model(
    folder: Path, text: str, length: int = 512, untrained: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """The transformers model in `folder`, and the first `length` tokens of `text` as its arguments.

    The folder holds config.json, weights in safetensors and a tokenizer. Nothing is downloaded, and only the code of
    transformers itself is run. untrained : a seed, with which transformers draws random weights for the model.

    Raises ValueError, in one line, for a folder that holds no such model and for a length that the model does not take;
    Unavailable if the extra `diagnose` is not installed.
    """
    import os

    import torch

    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"MODEL must be a folder with config.json, *.safetensors and a tokenizer, got {folder}"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"  # read on import of the hub's library: nothing is downloaded
    transformers = required("transformers", "safetensors", extra="diagnose")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    plain = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **plain)
        if untrained is None:
            model = transformers.AutoModel.from_pretrained(str(folder), use_safetensors=True, **plain)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(untrained)
                config = transformers.AutoConfig.from_pretrained(str(folder), **plain)
                model = transformers.AutoModel.from_config(config)
    except Exception as fault:  # damaged files make the libraries raise errors of any kind
        reason = " ".join(str(fault).split())[:200]
        raise ValueError(f"{folder} cannot be loaded: {type(fault).__name__}: {reason}") from None
    most = getattr(model.config, "max_position_embeddings", None) or length
    if not 2 <= length <= most:
        raise ValueError(f"--length must be from 2 to the {most} tokens that the model takes, got {length}")
    return model, dict(tokenizer(text, truncation=True, max_length=length, return_tensors="pt"))

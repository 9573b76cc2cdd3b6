"""What attention does in a model: how far each head's logits are spread, and what its softmax makes of them.

The model is called once. PyTorch lets a mode see every function of its own that is called: the logits are read from
``scaled_dot_product_attention`` and from ``softmax``, whoever calls them. A kernel of the model's own is not seen.

Of each head, with logits s_j over the n keys that a query sees and weights p = softmax(s): β² is the mean over rows of
the variance of s within a row, H = −Σ p ln p, and ‖J‖_F the norm of the softmax's Jacobian. As many independent normal
logits freeze at β_c = √(2 ln n). Whether training did that is a second question: the same call on an untrained model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.figure_style import BLUE, GREY, ORANGE, SIZE, entitle, new_figure, note
from attnlab.lab.theory import critical_beta, jacobian_norm_squared, random_energy
from attnlab.libraries.library import required

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: a key has a row to itself if it holds more than this: no other key can then
FROZEN = 0.5
#: a row passes on no gradient if the norm of the softmax's Jacobian is below this, as in the experiments
LOST = 1e-3
#: an added number this far below 0, in parts of the format's least, hides its pair
_HIDDEN = 0.25
#: heads named in the figure, and standard deviations of its curve in units of β_c
_NAMED, _CURVE = 6, (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.5, 7.0, 10.0)


@dataclass(frozen=True)
class Head:
    """One head of one call: means over its rows, unless said otherwise. Rows that see one key count nowhere.

    call : number of the call in the model's pass. module : path of the module that made it. beta : root mean square of
    the standard deviation of a row's logits. critical : β_c, its root mean square over rows. entropy : H / ln n.
    largest_weight : max p. frozen_rows : share of rows with a weight above ½. lost_rows : share with ‖J‖_F < 1e-3.
    first : weight of the first key. log_sum : ln Z, Z = Σ e^s. largest_logit : max s over all rows, which QK-Clip
    bounds during training (Kimi K2, 2507.20534).
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
        """Whether as many independent logits with this spread would be frozen."""
        return self.beta > self.critical


@dataclass(frozen=True)
class Diagnosis:
    """Every head of a model on some inputs. keys : the most that a query sees."""

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
        """Entropy against spread, a point a head, beside the exact curve of independent normal logits."""
        figure, (axes,) = new_figure(width=6.4, height=4.4)
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
        note(axes, _CURVE[0], 0.05, f"line: independent logits, n = {self.keys}\nnumbers: call.head", GREY)
        title = f"{len(self.frozen)} of {len(self.heads)} heads are spread beyond freezing"
        entitle(axes, title, "standard deviation of a row's logits / β_c", "entropy / ln n")
        return figure


def diagnose(module: Any, inputs: Any) -> Diagnosis:
    """What attention does in `module` when it is called on `inputs`.

    module : a torch module on the CPU; it is called in evaluation mode and left as it was. inputs : what it is called
    with: keywords, a tuple of arguments, or one tensor.

    Raises ValueError for a module that cannot be called, calls no attention that PyTorch sees, or whose queries see one
    key each.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    name, calls = type(module).__name__, list[_Call]()
    try:
        with _watching(module, calls):
            if isinstance(inputs, Mapping):
                module(**inputs)
            else:
                module(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    except Exception as fault:  # the model is other people's code
        reason = " ".join(str(fault).split())[:200]
        raise ValueError(
            f"{name} cannot be called on these inputs: {type(fault).__name__}: {reason}"
        ) from None
    if not calls:
        raise ValueError(
            f"{name} calls no attention: neither torch.nn.functional.scaled_dot_product_attention nor softmax of "
            "scores (heads, queries, keys); a kernel of its own is not seen"
        )
    heads = [head for number, call in enumerate(calls) for head in _heads(number, call)]
    if not heads:
        raise ValueError(
            "every query sees one key or none: the softmax has nothing to choose; give longer inputs"
        )
    return Diagnosis(name, max(call.logits.shape[-1] for call in calls), tuple(heads))


@dataclass(frozen=True, eq=False)
class _Call:
    """The logits of one call, (batch, heads, queries, keys) in float64, −∞ where a pair is hidden."""

    module: str
    logits: NDArray[np.float64]


@contextmanager
def _watching(module: Any, calls: list[_Call]) -> Iterator[None]:
    """Notes the logits of every attention that `module` computes meanwhile."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    path: list[str] = []
    sdpa, softmax = functional.scaled_dot_product_attention, functional.softmax
    softmaxes = {softmax, torch.softmax, torch.Tensor.softmax}

    def noting(logits_of: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose logits are noted and within which no other function is."""

        def call(*args: Any, **rest: Any) -> Any:
            with torch._C.DisableTorchFunction():
                logits = logits_of(*args, **rest)
                if logits is not None:
                    calls.append(_Call(path[-1] if path else "", logits.detach().double().numpy()))
                return function(*args, **rest)

        return call

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is sdpa:
                func = noting(_scores, sdpa)
            elif func in softmaxes:
                func = noting(_given_scores, func)
            return func(*args, **(kwargs or {}))

    training, fast = module.training, torch.backends.mha.get_fastpath_enabled()

    def leave(*_: Any) -> None:
        path.pop()

    hooks = []
    for name, one in module.named_modules():
        hooks.append(one.register_forward_pre_hook(lambda *_, name=name: path.append(name)))
        hooks.append(one.register_forward_hook(leave))
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole block in one function
        # what PyTorch's own functions call is seen by no mode: they find the noting function in its place
        functional.scaled_dot_product_attention = noting(_scores, sdpa)
        functional.softmax = noting(_given_scores, softmax)
        module.eval()
        with torch.no_grad(), Mode():
            yield
    finally:
        functional.scaled_dot_product_attention, functional.softmax = sdpa, softmax
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
        module.train(training)


def _scores(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **rest: Any,
) -> Any:
    """The logits that ``scaled_dot_product_attention`` makes of its arguments, (batch, heads, queries, keys)."""
    import torch

    query, key = (one.unsqueeze(0) if one.ndim == 3 else one for one in (query.double(), key.double()))
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query @ key.mT * (rest.get("scale") or query.shape[-1] ** -0.5)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is None:
        return logits
    if attn_mask.dtype == torch.bool:
        return logits.masked_fill(~attn_mask, -math.inf)
    hidden = attn_mask <= _HIDDEN * torch.finfo(attn_mask.dtype).min
    return (logits + attn_mask.double()).masked_fill(hidden, -math.inf)


def _given_scores(scores: Any, dim: Any = None, *_: Any, **rest: Any) -> Any:
    """Scores that a softmax is given, (batch, heads, queries, keys); None for what is no attention's.

    Of three dimensions the first counts as heads.
    """
    import torch

    if scores.ndim not in (3, 4) or dim not in (-1, scores.ndim - 1):
        return None
    whole = scores.double() if scores.ndim == 4 else scores.double().unsqueeze(0)
    # what is added to hide a pair swallows its score
    return whole.masked_fill(whole <= _HIDDEN * torch.finfo(scores.dtype).min, -math.inf)


def _heads(number: int, call: _Call) -> Iterator[Head]:
    """Every head of one call whose queries see two keys or more, averaged over the batch."""
    for head in range(call.logits.shape[1]):
        s = call.logits[:, head].reshape(-1, call.logits.shape[-1])
        seen = np.isfinite(s)
        s, seen = s[seen.sum(axis=-1) > 1], seen[seen.sum(axis=-1) > 1]
        if not len(s):
            continue
        n = seen.sum(axis=-1)
        finite = np.where(seen, s, 0.0)
        mean = finite.sum(axis=-1) / n
        variance = np.where(seen, (finite - mean[:, None]) ** 2, 0.0).sum(axis=-1) / n
        top = s.max(axis=-1)
        p = np.exp(s - top[:, None])
        total = p.sum(axis=-1)
        p /= total[:, None]
        entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=-1)
        yield Head(
            call=number,
            head=head,
            module=call.module,
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


def read_model(
    folder: Path, text: str, length: int = 512, untrained: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """The transformers model in `folder`, and the first `length` tokens of `text` as what it is called with.

    The folder holds config.json, weights in safetensors and a tokenizer; nothing is downloaded, and no code but
    transformers' own is run. untrained : a seed; the model then has the random weights that its library draws.

    Raises ValueError, in one line, for a folder that holds no such model and for a length that the model does not take;
    Unavailable without the extra `diagnose`.
    """
    import os

    import torch

    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"MODEL must be a folder with config.json, *.safetensors and a tokenizer, got {folder}"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when its library is imported: nothing is ever fetched
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
                model = transformers.AutoModel.from_config(
                    transformers.AutoConfig.from_pretrained(str(folder), **plain)
                )
    except Exception as fault:  # whatever its files made a library raise
        reason = " ".join(str(fault).split())[:200]
        raise ValueError(f"{folder} cannot be loaded: {type(fault).__name__}: {reason}") from None
    most = getattr(model.config, "max_position_embeddings", None) or length
    if not 2 <= length <= most:
        raise ValueError(f"--length must be from 2 to the {most} tokens that the model takes, got {length}")
    return model, dict(tokenizer(text, truncation=True, max_length=length, return_tensors="pt"))

"""One question, put to every backend alike: shape, mask, scale, number format, device, direction, inputs.

A workload is plain data: it compares by value, travels as a dictionary, and knows by arithmetic alone its pairs,
FLOPs, least bytes and the size of its score matrix. Every field is declared once, here; command line, plan files,
pytest options, labels, tables and the command that repeats a race are made from it (`attnlab.problem.fields`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from numpy.typing import NDArray

from attnlab.problem import block_sizes, costs
from attnlab.problem import workload_checks as checks
from attnlab.problem.captured import Captured, is_captured
from attnlab.problem.directions import DIRECTIONS, LOG_SUM, OF_QUERIES, OUTPUT
from attnlab.problem.dtypes import DTYPES, ITEM_BYTES
from attnlab.problem.fields import declaration, declared, number, numbers, option, whole, yes
from attnlab.problem.mask_part import Shape
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Alibi, Problem, masked_by
from attnlab.problem.storage import CONTIGUOUS, STORAGES
from attnlab.problem.workload_checks import GIVEN

_SIZES = ("batch", "heads", "kv_heads", "queries", "keys", "d_model", "head_dim", "value_dim", "splits")


def _causal(text: str) -> str | bool:
    if text.lower() in ("false", "none"):
        return False
    return "top_left" if text.lower() == "true" else text


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Attention of `queries` positions over `keys` positions, for `batch` x `heads` independent heads.

    query: (batch, heads, queries, head_dim), key: (batch, kv_heads, keys, head_dim),
    value: (batch, kv_heads, keys, value_dim), output: (batch, heads, queries, value_dim).

    With a `d_model` it is the multi-head block around that: x: (batch, queries, d_model) is projected to the query,
    x itself (as many keys as queries) or a memory (batch, keys, d_model) to key and value, and the heads together back
    to the output: (batch, queries, d_model). head_dim is then d_model/heads unless given. With `rotary`, query and key
    are turned by their positions (`attnlab.problem.block`).

    kv_heads, value_dim, scale : as many as heads, head_dim, and 1/sqrt(head_dim) (Vaswani et al. 2017, section 3.2.1)
    unless given.
    dtype, device : "float16", "bfloat16", "float32" or "float64"; "cpu" or "cuda".
    causal : False, "top_left" (query i sees keys 0 to i; True stands for it) or "bottom_right" (the last sees all).
    window : (left, right) keys around a query's own place on the causal diagonal, -1 for no limit.
    key_lengths : the keys that are there, one number a batch element.
    mask : any further mask, as text (`attnlab.problem.masks`).
    bias : "none", "normal" (an array of standard normal numbers) or "alibi".
    softcap, sinks : c in c tanh(s/c), before the bias; one more logit a head in the sum of the softmax.
    layout : how the arrays lie in memory, "bhsd" (batch, heads, length, dim) or "bshd" (batch, length, heads, dim);
    backends are given the first shape either way.
    storage : how keys and values lie between calls (`attnlab.problem.storage`): a call gathers them first, and where
    it is a cache adds those of its own tokens.
    splits : parts that the keys are cut into and merged from (`attnlab.problem.splitting`).
    direction : "forward", "forward_with_log_sum", "backward" (the gradients alone) or "training" (both).
    distribution, seed : how the inputs are drawn (`attnlab.problem.distributions`), and from which numbers; or a file
    of inputs that a model computed, of which the first so many of each axis are taken (`attnlab.problem.captured`).

    Raises ValueError, in one line, for what cannot be: an empty size, kv_heads that do not divide heads, a window or
    lengths beyond the keys, an unknown name.
    """

    batch: int = declared(1, "Batch size.", whole(1), brief="b{}".format)
    heads: int = declared(8, "Heads of the query.", whole(1), brief="h{}".format, several="heads")
    kv_heads: int = declared(
        None, "Heads of key and value, where fewer: grouped-query attention. [default: as many]", whole(1)
    )
    queries: int = declared(512, "Queries, where they differ from the length.", whole(1), several="lengths")
    keys: int = declared(512, "Keys, where they differ from the length.", whole(1), several="lengths")
    head_dim: int = declared(
        None, "Dimension of one head. [default: 64, of a block d_model / heads]", whole(1)
    )
    value_dim: int = declared(None, "Dimension of a value. [default: the head's]", whole(1))
    d_model: int | None = declared(
        None,
        "Width of the multi-head block around the core, with its four projections. [default: the core alone]",
        whole(1),
        brief=lambda value: "" if value is None else f"d_model={value}",
    )
    rotary: bool = declared(
        False,
        "Rotary positions of query and key, in a block.",
        yes,
        write=lambda value: "true" if value else "false",
        brief=lambda value: "rotary" if value else "",
    )
    dtype: str = declared("float32", f"Number format: {', '.join(DTYPES)}.", str, brief=str, several="dtypes")
    device: str = declared("cpu", "cpu or cuda.", str, brief=str)
    causal: str | bool = declared(
        False,
        "Hide later keys: top_left (query i sees keys 0 to i) or bottom_right (the last query sees all).",
        _causal,
        brief=lambda value: {False: "", "top_left": "causal"}.get(value, f"causal={value}"),
    )
    window: tuple[int, int] | None = declared(
        None,
        "LEFT,RIGHT keys around a query's own place, along the causal diagonal; -1 for no limit.",
        numbers,
        write=lambda value: ",".join(map(str, value)),
        brief=lambda value: "" if value is None else f"window={value[0]},{value[1]}",
    )
    key_lengths: tuple[int, ...] | None = declared(
        None,
        "Keys that are there, one number a batch element; the rest is padding.",
        numbers,
        write=lambda value: ",".join(map(str, value)),
        brief=lambda value: "" if value is None else "key_lengths=" + ",".join(map(str, value)),
    )
    mask: str = declared(
        "",
        "A further mask: prefix(N), random(SHARE), ..., joined by &.",
        str,
        brief=lambda text: text.replace(" ", ""),
    )
    bias: str = declared(
        "none",
        "What is added to the scores: none, normal (an array of standard normal numbers), alibi.",
        str,
        brief=lambda value: "" if value == "none" else f"bias={value}",
    )
    softcap: float | None = declared(
        None,
        "Cap c of the scores, c tanh(s/c), before the bias.",
        number,
        write=repr,
        brief=lambda value: "" if value is None else f"softcap={value:g}",
    )
    sinks: bool = declared(
        False,
        "One more logit a head in the denominator.",
        yes,
        write=lambda value: "true" if value else "false",
        brief=lambda value: "sinks" if value else "",
    )
    scale: float = declared(None, "Factor on the scores. [default: 1/sqrt(head_dim)]", number, write=repr)
    layout: str = declared(
        "bhsd",
        "How the arrays lie in memory: bhsd (heads outside) or bshd (as a projection leaves them).",
        str,
        brief=lambda value: "" if value == "bhsd" else value,
    )
    storage: str = declared(
        CONTIGUOUS,
        f"How keys and values lie between calls: {', '.join(STORAGES)}.",
        str,
        brief=lambda value: "" if value == CONTIGUOUS else f"storage={value}",
        several="storage",
    )
    splits: int = declared(
        1,
        "Parts that the keys are cut into, each computed with its ln Z, and merged.",
        whole(1),
        brief=lambda value: "" if value == 1 else f"splits={value}",
    )
    direction: str = declared(
        "forward",
        "What is measured: forward, forward_with_log_sum (ln Z too), backward (the gradients alone), training (both).",
        str,
        brief=lambda value: "" if value == "forward" else value,
    )
    distribution: str = declared(
        "normal",
        "How the inputs are drawn; or FILE.safetensors/LAYER, inputs that a model computed (attnlab diagnose).",
        str,
        brief=lambda value: (
            "" if value == "normal" else Captured.parse(value).brief if is_captured(value) else value
        ),
        also="inputs",
    )
    seed: int = declared(
        0, "Seed of the inputs.", whole(0), brief=lambda value: f"seed={value}" if value else ""
    )

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) is None:
                object.__setattr__(self, name, self._derived(name))
            size = getattr(self, name)
            if (name, size) == ("d_model", None):
                continue
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide the {self.heads} heads, got {self.kv_heads}")
        for check in (checks.numbers, checks.names, checks.sequences, checks.mask):
            for name, value in check(self).items():
                object.__setattr__(self, name, value)
        block_sizes.check(self)

    def _derived(self, name: str) -> int | None:
        """A size that was not given, from those before it in `_SIZES`; None for one that has to be."""
        if name == "head_dim":
            return block_sizes.head_dim_of(self.d_model, self.heads)
        return {"kv_heads": self.heads, "value_dim": self.head_dim}.get(name)

    # -- what is asked -----------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Of the score matrix: batch, heads, queries, keys."""
        return Shape(self.batch, self.heads, self.queries, self.keys)

    @property
    def captured(self) -> Captured | None:
        """The file that the inputs are read from, None where they are drawn.

        Raises ValueError where its digest is not told: `attnlab.problem.captured.named` finds it.
        """
        if not (isinstance(self.distribution, str) and is_captured(self.distribution)):
            return None
        found = Captured.parse(self.distribution)
        if not found.digest:
            raise ValueError(
                f"distribution must name the digest of {found.text}, got none: see captured.named"
            )
        return found

    @property
    def masked(self) -> Mask:
        """Which keys the queries see, but for an array of a caller's own."""
        further = Mask.parse("" if self.mask == GIVEN else self.mask)
        return masked_by(causal=self.causal, window=self.window, key_lengths=self.key_lengths) & further

    @classmethod
    def of_problem(
        cls, problem: Problem, *, device: str = "cpu", direction: str = "forward", layout: str = "bhsd"
    ) -> Workload:
        """The workload that a problem poses; of arrays beside query, key and value it says only that they are given."""
        shape = problem.shape
        return cls(
            **shape._asdict(),
            kv_heads=problem.kv_heads,
            head_dim=problem.query.shape[-1],
            value_dim=problem.value.shape[-1],
            d_model=None if problem.block is None else problem.block.d_model,
            rotary=problem.block is not None and problem.block.rotary,
            dtype=problem.dtype,
            device=device,
            bias="none" if problem.bias is None else "alibi" if isinstance(problem.bias, Alibi) else GIVEN,
            softcap=problem.softcap,
            sinks=problem.sinks is not None,
            scale=problem.scale,
            direction=direction,
            layout=layout,
            **checks.mask_fields(problem.mask),
        )

    @classmethod
    def of_arrays(
        cls,
        query: NDArray[Any],
        key: NDArray[Any],
        value: NDArray[Any],
        *,
        device: str = "cpu",
        **rest: Any,
    ) -> Workload:
        """The workload that these arrays pose, `rest` as for `Problem.of`. Raises ValueError where they do not fit."""
        return cls.of_problem(Problem.of(query, key, value, **rest), device=device)

    @property
    def backward(self) -> bool:
        """Whether gradients are asked for."""
        return DIRECTIONS[self.direction].gradients

    @property
    def results(self) -> tuple[str, ...]:
        """The names of what a call returns."""
        return DIRECTIONS[self.direction].results

    @property
    def core(self) -> Workload:
        """What is asked of the core: itself, or of a block the attention between its projections."""
        return self if self.d_model is None else self.with_(d_model=None, rotary=False, layout="bshd")

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a named result."""
        if self.d_model is not None:
            return self.batch, self.queries, self.d_model
        shapes: dict[str, tuple[int, ...]] = {
            OUTPUT: (self.batch, self.heads, self.queries, self.value_dim),
            LOG_SUM: (self.batch, self.heads, self.queries),
            "query gradient": (self.batch, self.heads, self.queries, self.head_dim),
            "key gradient": (self.batch, self.kv_heads, self.keys, self.head_dim),
            "value gradient": (self.batch, self.kv_heads, self.keys, self.value_dim),
        }
        return shapes[name]

    def dtype_of(self, name: str) -> str:
        """The number format of a named result: the workload's, but ln Z is in float32 at least."""
        return "float32" if name == LOG_SUM and self.dtype != "float64" else self.dtype

    def cut(self, name: str, result: NDArray[Any], rows: Sequence[int]) -> NDArray[Any]:
        """A named result at these query rows; whole where it has none, as gradients of key and value."""
        if name not in OF_QUERIES:
            return result
        return result[:, rows] if self.d_model is not None else result[:, :, rows]

    # -- what it costs at least (`attnlab.problem.costs`) -----------------------------------------

    @property
    def pairs(self) -> int:
        """Query-key pairs that the mask keeps, over all batches and heads."""
        return costs.pairs(self.masked, self.shape)

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products, over the pairs that the mask keeps, in its direction."""
        return costs.flops(self)

    @property
    def input_bytes(self) -> int:
        """Bytes of query, key and value together, of a bias, and of the output's gradient where gradients are asked.

        Of a block: of x, its memory and its parameters, and of a bias.
        """
        return costs.input_bytes(self)

    @property
    def output_bytes(self) -> int:
        """Bytes of what is returned: the least that any implementation must hold beside its inputs."""
        return costs.output_bytes(self)

    @property
    def least_bytes(self) -> int:
        """Least memory traffic: what the mask lets be seen read once, and every result written once."""
        return costs.least_bytes(self)

    @property
    def score_bytes(self) -> int:
        """Bytes of one full score matrix, batch x heads x queries x keys, whatever the mask."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    # -- how it is written -------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """A short name that tells workloads apart: ``b1 h8 n512 d64 float32 cpu``."""
        heads = f"h{self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        length = f"n{self.queries}" if self.queries == self.keys else f"n{self.queries}x{self.keys}"
        dim = f"d{self.head_dim}" if self.value_dim == self.head_dim else f"d{self.head_dim}v{self.value_dim}"
        scale = "" if self.scale == 1 / math.sqrt(self.head_dim) else f"scale={self.scale:g}"
        written = {"heads": heads, "queries": length, "head_dim": dim, "scale": scale}
        parts = (
            written.get(one.name, declaration(one).brief(getattr(self, one.name))) for one in fields(self)
        )
        return " ".join(filter(None, parts))

    def options(self) -> list[str]:
        """The command line's options that say it, ``["--length", "512", ...]``, but for what is at its default."""
        given: list[str] = ["--length", str(self.queries)]
        plain = {**asdict(Workload()), "queries": self.queries, "keys": self.queries}
        plain |= {"kv_heads": self.heads, "value_dim": self.head_dim, "scale": 1 / math.sqrt(self.head_dim)}
        if self.d_model is not None:
            plain["head_dim"] = self.d_model / self.heads  # where that is no whole number, it has to be said
        for one in fields(self):
            value = getattr(self, one.name)
            if value != plain[one.name]:
                given += [option(one.name), declaration(one).write(value)]
        return given

    def command(self, *contenders: str) -> str:
        """The command that races `contenders` on it."""
        return shlex.join(["attnlab", "compare", *contenders, *self.options()])

    def with_(self, **changes: Any) -> Workload:
        """A copy with these fields changed.

        `kv_heads`, `head_dim`, `value_dim` and `scale` stay as they are unless named: pass None to derive them anew.
        """
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        """The inverse of `to_dict`, former names of fields included. Raises ValueError for an unknown one."""
        given = {_FORMER.get(name, name): value for name, value in data.items()}
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"unknown workload field {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return cls(**given)


#: what fields were called in results that are stored
_FORMER = {"regime": "distribution"}

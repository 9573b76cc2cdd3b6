"""What every backend is asked to compute (`Workload`): shape, mask, scale, number format, device, direction, inputs.

A workload is plain data. It is compared by value, is stored as a dictionary, and computes its pairs, FLOPs, least bytes
and the size of its score matrix. Each field is declared once, in the class `Workload`, together with its option: the
field `causal` is ``--causal``, with its help. `attnlab.workload.grid` makes the options of the command line, of pytest
and of plan files from these declarations. Labels and tables use them too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from attnlab.errors import FieldError
from attnlab.text import decode
from attnlab.workload.distributions import DISTRIBUTIONS, SUFFIX, Captured
from attnlab.workload.inputs import LEAST_CAP, Alibi, Inputs, checked_number, derived, projected, shapes
from attnlab.workload.mask_kinds import ALIGNMENTS, Shape, forms
from attnlab.workload.masks import Counts, Mask, fields_of, masked_by
from attnlab.workload.number_formats import DTYPES, ITEM_BYTES

DEVICES = ("cpu", "cuda")
#: how keys and values are stored between calls; see `store` in `attnlab.backends.backend`
STORAGES = ("contiguous", "packed", "paged")
CONTIGUOUS = STORAGES[0]
#: the value of mask or bias for a caller's own array, which has no text
GIVEN = "given"

#: the names of the results of a call
OUTPUT, LOG_SUM = "output", "log sum"
GRADIENTS = ("query gradient", "key gradient", "value gradient")
#: the results with a row for every query
OF_QUERIES = (OUTPUT, LOG_SUM, GRADIENTS[0])


class Direction(NamedTuple):
    """What is computed: the forward pass, gradients, or both.

    results : the names of what a call returns, in order; a single result is returned as it is, several as a tuple. "log
    sum" is ln Z, from `attend_with_log_sum`. For gradients the library differentiates, and the inputs have an output
    gradient. If the output is among the results, the forward pass is timed too. flops : the FLOPs of the matrix
    products, as a multiple of those of "forward".
    """

    results: tuple[str, ...]
    flops: float


#: by name. A backward pass computes five matrix products, a forward pass two (Dao 2023, section 4.1)
DIRECTIONS = {
    "forward": Direction((OUTPUT,), 1.0),
    "forward_with_log_sum": Direction((OUTPUT, LOG_SUM), 1.0),
    "backward": Direction(GRADIENTS, 2.5),
    "training": Direction((OUTPUT, *GRADIENTS), 3.5),
}


#: the largest seed that stored tables hold
MOST_SEED = 2**63 - 1
_SIZES = ("batch", "heads", "kv_heads", "queries", "keys", "d_model", "head_dim", "value_dim")
#: fields that must keep their defaults for a block, and why
_OF_BLOCKS = {
    "layout": "its projections decide how query, key and value lie",
    "storage": "keys and values come from its projections",
    "distribution": "x is standard normal, as after a layer norm",
    "direction": "its gradients have no error budget",
}
#: the most positions over all batch elements: masks are counted over them
_MOST_POSITIONS = 2**24
#: the most products, so that the number of all operations fits into 63 bits
_MOST_PRODUCTS = 2**58


@dataclass(frozen=True)
class Declared:
    """The declaration of a field, beside its name and its default.

    help : one line for a person; the names are added to it. brief : the part of a label that shows the field, with {}
    for the value, or a function of the value; "" for nothing. By default a flag shows its name, a field with names
    shows its value, any other ``name=value``. always : whether a label shows it even at its default. several : the
    plural under which a grid takes many values of it. also : a second name of its option. names : the values that it
    may have, if they are names. group : the heading on a help page for its option, and for those of the following
    fields without a group.
    """

    help: str
    brief: str | Callable[[Any], str] | None = None
    always: bool = False
    several: str | None = None
    also: str | None = None
    names: tuple[str, ...] = ()
    group: str = ""


def declared(default: Any, help: str, names: Iterable[str] = (), **rest: Any) -> Any:
    """A dataclass field with its declaration."""
    return field(default=default, metadata={"declared": Declared(help, names=tuple(names), **rest)})


def declaration(one: Field[Any]) -> Declared:
    """The declaration of a field."""
    return one.metadata["declared"]  # type: ignore[no-any-return]


def in_label(one: Field[Any], value: Any) -> str:
    """The part of a label that shows a `value` of a field. Empty at its default, unless the field is always shown."""
    told = declaration(one)
    if value == one.default and not told.always:
        return ""
    if told.brief is None:
        return one.name if value is True else value if told.names else f"{one.name}={spoken(value)}"
    return told.brief.format(value) if isinstance(told.brief, str) else told.brief(value)


def option(name: str) -> str:
    """The option of a field on the command line: ``--head-dim``."""
    return "--" + name.replace("_", "-")


def spoken(value: Any) -> str:
    """A value as the text of its option: ``true``, ``256,0``, ``0.125``."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Attention of `queries` positions over `keys` positions, for `batch` x `heads` independent heads.

    query: (batch, heads, queries, head_dim), key: (batch, kv_heads, keys, head_dim),
    value: (batch, kv_heads, keys, value_dim), output: (batch, heads, queries, value_dim).

    With a `d_model` it is a multi-head block (`attnlab.workload.inputs`). x, (batch, queries, d_model), is projected to
    the query. x itself, or a memory (batch, keys, d_model) if there are more or fewer keys than queries, is projected
    to key and value. All heads together are projected to the output, (batch, queries, d_model). The declarations below
    say what each field means. None for `kv_heads`, `value_dim`, `head_dim` and `scale`, and True for `causal`, are
    replaced by the default that the declaration names.

    Raises ValueError, in one line, for a size that is 0 or extremely large, kv_heads that do not divide heads, a window
    or lengths beyond the keys, and an unknown name.
    """

    batch: int = declared(1, "Batch size.", brief="b{}", always=True, group="Shape")
    heads: int = declared(8, "Heads of the query.", brief="h{}", several="heads", always=True)
    kv_heads: int = declared(None, "Heads of key and value, if fewer (GQA). [default: all]", brief="")
    queries: int = declared(512, "Queries. [default: the length]", brief="", several="lengths")
    keys: int = declared(512, "Keys. [default: the length]", brief="", several="lengths")
    head_dim: int = declared(None, "Dimension of a head. [default: 64, or d_model / heads]", brief="d{}")
    value_dim: int = declared(None, "Dimension of a value. [default: the head's]", brief="")
    d_model: int | None = declared(None, "Width of a multi-head block. [default: the core alone]")
    dtype: str = declared(
        "float32", "Number format.", names=DTYPES, several="dtypes", always=True, group="What is measured"
    )
    device: str = declared("cpu", "Device.", names=DEVICES, always=True)
    causal: str | bool = declared(
        False,
        "Hide later keys. In top_left query 0 sees only key 0, in bottom_right the last query all.",
        brief=lambda value: "causal" if value == "top_left" else f"causal={value}",
        names=ALIGNMENTS,
        group="Mask and scores",
    )
    window: tuple[int, int] | None = declared(None, "LEFT,RIGHT: keys before and after a query; -1: no end.")
    key_lengths: tuple[int, ...] | None = declared(None, "How many keys of each batch element are real.")
    mask: str = declared(
        "", f"A further mask: one or more of {forms()}, joined by &.", brief=lambda it: it.replace(" ", "")
    )
    bias: str = declared("none", "Is added to the scores.", ("none", "normal", "alibi"), brief="bias={}")
    softcap: float | None = declared(None, "Cap c of the scores, c tanh(s/c).", brief="softcap={:g}")
    sinks: bool = declared(False, "One more logit a head in the denominator.")
    scale: float = declared(None, "Factor on the scores. [default: 1/sqrt(head_dim)]", brief="")
    layout: str = declared(
        "bhsd", "In memory heads lie before positions, or after.", ("bhsd", "bshd"), group="What is measured"
    )
    storage: str = declared(
        CONTIGUOUS, "How keys and values lie in memory.", STORAGES, brief="storage={}", several="storage"
    )
    direction: str = declared("forward", "Output, with ln Z too, gradients, or all but ln Z.", DIRECTIONS)
    distribution: str = declared(
        "normal",
        "Inputs of a model, FILE.safetensors/LAYER, or how they are drawn (subnormal: so are the weights).",
        brief=lambda value: Captured.parse(value).brief if SUFFIX in value else value,
        also="inputs",
        names=DISTRIBUTIONS,
    )
    seed: int = declared(0, "Seed of the inputs.")

    def __post_init__(self) -> None:
        written = vars(self)  # a frozen dataclass allows no assignment
        # not from `written`: msgspec does not set a field that a file leaves out
        written.update(derived({name: getattr(self, name) for name in _SIZES}))
        positions = self.batch * max(self.queries, self.keys)
        if positions > _MOST_POSITIONS:
            what = f"a workload has at most {_MOST_POSITIONS:,} positions in all, got {positions:,}"
            raise ValueError(f"{what}: take a smaller batch, fewer queries or keys")
        least = max(min(self.queries, self.keys), self.d_model or 1)
        if positions * self.heads * (self.head_dim + self.value_dim) * least > _MOST_PRODUCTS:
            raise ValueError(f"a workload has at most {_MOST_PRODUCTS:.1e} products: take smaller sizes")
        written.update(
            causal="top_left" if self.causal is True else False if self.causal is None else self.causal,
            scale=checked_number("scale", self.scale, 1 / math.sqrt(self.head_dim)),
            softcap=checked_number("softcap", self.softcap, above=LEAST_CAP),
        )
        for one in fields(self):
            self._check(one.name, getattr(self, one.name), one.default, declaration(one).names)
        self.masked.check(self.shape)
        # fields that mean the same mask are written in one way
        written.update(fields_of(self.masked) | ({"mask": GIVEN} if self.mask == GIVEN else {}))

    def _check(self, name: str, value: Any, default: Any, names: Sequence[str]) -> None:
        """Raises FieldError for an unknown name, a flag that is not true or false, a wrong seed, and a field that a
        block does not have."""
        known = (*names, GIVEN) if name == "bias" else names
        named = value is default or (isinstance(value, str) and value in known)
        if names and not named and not (name == "distribution" and self.captured):
            shown = names if default in names else (spoken(default), *names)
            raise FieldError(name, f"must be one of {', '.join(shown)}, got {value!r}")
        if default is False and not names and not isinstance(value, bool):
            raise FieldError(name, f"must be true or false, got {value!r}")
        if name == "seed" and (type(value) is not int or not 0 <= value <= MOST_SEED):
            raise FieldError(name, f"must be a whole number from 0 to {MOST_SEED}, got {value!r}")
        if name == "mask" and not isinstance(value, str):
            raise FieldError(name, f"must be the text of a mask, got {value!r}; attnlab.attend takes arrays")
        if name in _OF_BLOCKS and value != default and self.d_model is not None:
            of = f"of a multi-head block (d_model {self.d_model}) must be {default}, got {value!r}"
            raise FieldError(name, f"{of}: {_OF_BLOCKS[name]}")

    # -- what is asked and returned ----------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The shape of the score matrix: batch, heads, queries, keys."""
        return Shape(self.batch, self.heads, self.queries, self.keys)

    @property
    def captured(self) -> Captured | None:
        """The file that the inputs are read from, None if they are drawn.

        Raises FieldError if the digest is missing; `attnlab.workload.distributions.named` computes it.
        """
        if SUFFIX not in str(self.distribution):
            return None
        found = Captured.parse(self.distribution)
        if not found.digest:
            raise FieldError("distribution", f"must name the digest of {found.text}, got none")
        return found

    @property
    def masked(self) -> Mask:
        """Which keys the queries see; a caller's own array is not part of it."""
        further = Mask.parse("" if self.mask == GIVEN else self.mask)
        return masked_by(causal=self.causal, window=self.window, key_lengths=self.key_lengths) & further

    @classmethod
    def of_inputs(cls, inputs: Inputs, **rest: Any) -> Workload:
        """The workload of these inputs. For a mask or bias that is an array, the field is only `GIVEN`.

        rest : device, direction and layout, which inputs do not have.
        """
        return cls(
            **inputs.shape._asdict(),
            **{name: getattr(inputs, name) for name in ("kv_heads", "dtype", "softcap", "scale")},
            head_dim=inputs.query.shape[-1],
            value_dim=inputs.value.shape[-1],
            d_model=None if inputs.block is None else inputs.block.d_model,
            bias="none" if inputs.bias is None else "alibi" if isinstance(inputs.bias, Alibi) else GIVEN,
            sinks=inputs.sinks is not None,
            **fields_of(inputs.mask),
            **rest,
        )

    @property
    def backward(self) -> bool:
        """Whether gradients are asked for."""
        return GRADIENTS[0] in self.results

    @property
    def results(self) -> tuple[str, ...]:
        """The names of what a call returns."""
        return DIRECTIONS[self.direction].results

    @property
    def core(self) -> Workload:
        """The attention between the projections of a block; without a block, the workload itself."""
        return self if self.d_model is None else self.with_(d_model=None, layout="bshd")

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a named result."""
        if self.d_model is not None:
            return self.batch, self.queries, self.d_model
        rows, keys = (self.batch, self.heads, self.queries), (self.batch, self.kv_heads, self.keys)
        inputs = (*rows, self.head_dim), (*keys, self.head_dim), (*keys, self.value_dim)
        shapes = {OUTPUT: (*rows, self.value_dim), LOG_SUM: rows, **dict(zip(GRADIENTS, inputs, strict=True))}
        return shapes[name]

    def dtype_of(self, name: str) -> str:
        """The number format of a named result: the workload's, but at least float32 for ln Z."""
        return "float32" if name == LOG_SUM and self.dtype != "float64" else self.dtype

    # -- what it costs at least --------------------------------------------------------------------

    @cached_property
    def _seen(self) -> Counts:
        return self.masked.counts(self.shape)

    @property
    def pairs(self) -> int:
        """Query-key pairs that the mask keeps, over all batches and heads."""
        return self._seen.pairs

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products, over the pairs that the mask keeps, in its direction.

        The projections of a block count too: one multiplication and one addition for each weight and token.
        """
        core = int(DIRECTIONS[self.direction].flops * 2 * self.pairs * (self.head_dim + self.value_dim))
        if self.d_model is None:
            return core
        q, k, v = projected(self)
        tokens = self.queries * (q + self.heads * self.value_dim) + self.keys * (k + v)
        return core + 2 * self.batch * self.d_model * tokens

    @property
    def input_bytes(self) -> int:
        """Bytes of query, key, value and bias, and of the output's gradient if gradients are asked for.

        For a block: bytes of x, memory, parameters and bias.
        """
        return self._bytes_read(self.batch * self.queries, self.batch * self.keys, self.queries * self.keys)

    @property
    def output_bytes(self) -> int:
        """Bytes of the results: the least that any implementation must hold in addition to its inputs."""
        return sum(math.prod(self.shape_of(name)) * ITEM_BYTES[self.dtype_of(name)] for name in self.results)

    @property
    def least_bytes(self) -> int:
        """The least memory traffic: every visible input is read once, and every result is written once.

        A key that no query sees need not be read, nor a query that sees no key, nor the bias of a masked pair. Batch
        elements share the bias. A block reads all its inputs.
        """
        if self.d_model is not None:
            return self.input_bytes + self.output_bytes
        pairs = self.pairs // (self.batch * self.heads)
        return self._bytes_read(self._seen.queries, self._seen.keys, pairs) + self.output_bytes

    def _bytes_read(self, queries: int, keys: int, pairs: int) -> int:
        """Bytes of the inputs. queries, keys : their numbers over all batch elements. pairs : those of one head."""
        count = self.heads * pairs if self.bias == "normal" else 0
        if self.d_model is None:
            count += self.heads * queries * (self.head_dim + (self.value_dim if self.backward else 0))
            count += self.kv_heads * keys * (self.head_dim + self.value_dim)
        else:
            count += (queries + (0 if self.queries == self.keys else keys)) * self.d_model
            count += sum(map(math.prod, shapes(self).values()))
        return count * ITEM_BYTES[self.dtype]

    @property
    def score_bytes(self) -> int:
        """Bytes of one full score matrix, batch x heads x queries x keys, for any mask."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    # -- how it is written -------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """A short name that tells workloads apart: ``b1 h8 n512 d64 float32 cpu``."""
        return self.named()

    def named(self, *without: str) -> str:
        """The label, without the fields of these names."""
        heads = f"h{self.heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.heads else "")
        length = f"n{self.queries}" if self.queries == self.keys else f"n{self.queries}x{self.keys}"
        dim = f"d{self.head_dim}" if self.value_dim == self.head_dim else f"d{self.head_dim}v{self.value_dim}"
        scale = "" if self.scale == 1 / math.sqrt(self.head_dim) else f"scale={self.scale:g}"
        written = {"heads": heads, "queries": length, "head_dim": dim, "scale": scale}
        named = [one for one in fields(self) if one.name not in without]
        parts = (written.get(one.name, in_label(one, getattr(self, one.name))) for one in named)
        return " ".join(filter(None, parts))

    def options(self) -> list[str]:
        """The options that give this workload, ``["--length", "512", ...]``. Defaults are left out."""
        given: list[str] = ["--length", str(self.queries)]
        plain = {**asdict(Workload()), "queries": self.queries, "keys": self.queries}
        plain |= {"kv_heads": self.heads, "value_dim": self.head_dim, "scale": 1 / math.sqrt(self.head_dim)}
        if self.d_model is not None:
            plain["head_dim"] = self.d_model / self.heads  # if that is no whole number, head_dim is given
        for name, value in asdict(self).items():
            if value != plain[name]:
                given += [option(name), spoken(value)]
        return given

    def with_(self, **changes: Any) -> Workload:
        """A copy with these fields changed. None derives `kv_heads`, `head_dim`, `value_dim` or `scale` again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Workload:
        """The inverse of `to_dict`. Raises ValueError for an unknown field and for what a workload cannot be."""
        # workloads of earlier versions have this field; False asks for nothing
        kept = {name: one for name, one in data.items() if (name, one) != ("rotary", False)}
        return decode(kept, cls, "the workload")

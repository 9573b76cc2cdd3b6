"""A workload's arrays: equal workloads give bit-equal inputs, in every process and for every library.

They are drawn: standard normal, and in the shapes that break implementations. Every distribution turns three standard
normal arrays into query, key and value. Value keeps zero mean, because with a value mean of 1 a wrong scale hardly
moves the output.

Or inputs are what a model computed: query, key and value by layers, in one safetensors file, and what was asked of
them. Such a file is named as a distribution is: ``qkv.safetensors/layer3@1f3a9c02b7d4e655``, the layer and the digest
of the whole file (64 bits of its SHA-256, in hexadecimal digits) behind its path. Both may be left out when
it is typed: a file of one layer has no other, and the digest is what the file has then. A workload always has it, so
that equal workloads have equal inputs, and a file that changed since is refused.

Tensors are ``LAYER.query`` (batch, heads, queries, head_dim), ``LAYER.key``, ``LAYER.value`` (batch, kv_heads, keys,
dim), and where there are such ``LAYER.mask`` (booleans), ``LAYER.bias``, ``LAYER.sinks``; without ``LAYER.`` in a file
of a single layer. Scale, soft cap and masks that have a text stand in the metadata, JSON under the layer's name.
A safetensors file holds numbers and text: reading it runs nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from attnlab.errors import Declined, Unavailable
from attnlab.workload.inputs import PARAMETERS, WIDTHS, Alibi, Block, Inputs, floating, of_four_axes, shapes
from attnlab.workload.mask_kinds import Given
from attnlab.workload.masks import Mask, fields_of
from attnlab.workload.vocabulary import FORMATS, GIVEN, GRADIENTS, OUTPUT, carrier, round_to

if TYPE_CHECKING:
    from attnlab.workload.workload import Workload

#: a random stream each: a change of one array leaves the others as they were. See `attnlab.backends.storage` for 9
_DISTRIBUTION, _BIAS, _SINKS, _GRADIENT, _X, _MEMORY, _PARAMETERS = 3, 6, 7, 8, 10, 11, (12, 13, 14, 15)
#: numbers that are drawn at once: an array in the workload's format is then all that is held
_DRAWN = 2**20

Array = NDArray[np.float64]
Three = tuple[Array, Array, Array]
#: (query, key, value, scale, generator) -> (query, key, value)
Distribution = Callable[[Array, Array, Array, float, Generator], Three]


def _normal(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    return q, k, v


def _logit_std(std: float) -> Distribution:
    def distribution(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
        # Var(scale q.k) = scale^2 d for standard normal components
        now = abs(scale) * np.sqrt(q.shape[-1])
        return q * (std / now if now else 1.0), k, v

    return distribution


def _shifted_means(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    return q + 0.5, k + 0.5, v


def _outliers(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    def spiked(x: Array) -> Array:
        return x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 1e-3)

    return spiked(q), spiked(k), spiked(v)


def _duplicated_maxima(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every second key repeats its neighbour: each row's largest logit stands there at least twice
    pairs = k.shape[-2] // 2
    k = k.copy()
    k[..., 1 : 2 * pairs : 2, :] = k[..., 0 : 2 * pairs : 2, :]
    return q * 4, k, v


def _offset_logits(offset: float) -> Distribution:
    """Every logit of every row lies near `offset`: component 0 carries it, the others carry the spread."""

    def distribution(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
        size = np.sqrt(abs(offset) / abs(scale)) if scale else 0.0
        sign = np.sign(offset) * (np.sign(scale) or 1.0)
        q, k = q.copy(), k.copy()
        q[..., 0], k[..., 0] = size, sign * size
        return q, k, v

    return distribution


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": _normal,
    "logit_std_4": _logit_std(4.0),
    "logit_std_8": _logit_std(8.0),
    "shifted_means": _shifted_means,
    "outliers": _outliers,
    "duplicated_maxima": _duplicated_maxima,
    "above_1000": _offset_logits(1200.0),
    "below_minus_50000": _offset_logits(-52000.0),
}


def inputs(workload: Workload) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Query, key and value of `workload`, rounded to its dtype (bfloat16 in float32 arrays).

    Shapes as in `Workload`. Each array and the distribution have a random stream of their own, so that changing
    the number of keys leaves the queries as they were.

    Raises Declined, whoever asks, where the distribution needs numbers that the dtype does not hold: a logit of some
    size at a scale near 0 needs queries beyond its largest. Also for a file of inputs that is not what it was.
    """
    w = workload
    wanted = [w.shape_of(gradient) for gradient in GRADIENTS]
    if w.captured is not None:
        read = w.captured.read(dict(zip(_ARRAYS, wanted, strict=True)))
        q, k, v = (round_to(floating(name, array), w.dtype) for name, array in read.items())
    elif w.distribution == "normal":  # what every format holds
        q, k, v = (_drawn(w, stream, shape) for stream, shape in enumerate(wanted))
        return q, k, v
    else:
        q, k, v = (_drawn(w, stream, shape, rounded=False) for stream, shape in enumerate(wanted))
        with np.errstate(over="ignore", invalid="ignore"):  # told below
            generator = np.random.default_rng([w.seed, _DISTRIBUTION])
            drawn = DISTRIBUTIONS[w.distribution](q, k, v, w.scale, generator)
            q, k, v = (round_to(array, w.dtype) for array in drawn)
    if not all(np.isfinite(array).all() for array in (q, k, v)):
        mend = "name a wider dtype" if w.captured else "use a larger scale"
        raise Declined(f"no {w.dtype} holds the inputs of {w.distribution} at scale {w.scale:g}; {mend}")
    return q, k, v


def problem_of(workload: Workload) -> Inputs:
    """`workload` with its arrays: query, key and value, and bias, sinks and the output's gradient where it has them.

    Of a block x, memory and parameters (`block_of`) in place of query, key and value.
    The bias is one standard normal array for all batch elements, sinks are standard normal, and so is the gradient.
    Of a file of inputs that has them mask, bias and sinks are its own. Raises Declined as `inputs` does, ValueError for
    a mask or a bias of a caller's own.
    """
    w = workload
    if GIVEN in (w.mask, w.bias) and w.captured is None:
        raise ValueError("a mask or a bias that was given as an array cannot be drawn again; name one")
    block = None if w.d_model is None else block_of(w)
    q, k, v = inputs(w) if block is None else block.unknown()
    bias: Any = None
    if w.bias == "alibi":
        bias = Alibi.of_heads(w.heads)
    elif w.bias == GIVEN:
        bias = _read(w, "bias", tuple(w.shape))
    elif w.bias == "normal":  # as large as a score matrix: half of float64 where no more is needed
        wide = np.float64 if w.dtype == "float64" else np.float32
        bias = _drawn(w, _BIAS, (1, w.heads, w.queries, w.keys), wide=wide)
    sinks = None
    if w.sinks:
        own = w.captured is not None and w.captured.fields().get("sinks")
        sinks = _read(w, "sinks", (w.heads,)) if own else _drawn(w, _SINKS, (w.heads,))
    return Inputs(
        query=q,
        key=k,
        value=v,
        dtype=w.dtype,
        scale=w.scale,
        mask=w.masked & Mask((Given(_read(w, "mask", tuple(w.shape))),)) if w.mask == GIVEN else w.masked,
        bias=bias,
        softcap=w.softcap,
        sinks=sinks,
        output_gradient=_drawn(w, _GRADIENT, w.shape_of(OUTPUT)) if w.backward else None,
        block=block,
    )


def checked_problem(workload: Workload, rows: Sequence[int]) -> Inputs:
    """`problem_of`, the output's gradient being 0 but on the query rows `rows`.

    What answers are judged on before a race: the gradients of key and value depend on no other row then.
    """
    problem = problem_of(workload)
    if problem.output_gradient is None:
        return problem
    upstream = np.zeros_like(problem.output_gradient)
    upstream[:, :, rows] = problem.output_gradient[:, :, rows]
    return problem.with_(output_gradient=upstream)


def block_of(workload: Workload) -> Block:
    """The block that `workload` poses: equal workloads give bit-equal arrays.

    x and memory are standard normal. in_proj_weight is drawn as PyTorch initialises it, Xavier's uniform law on the
    one matrix (Glorot and Bengio 2010), out_proj.weight by the law of a linear layer, uniform within 1/√(its columns).
    So are the biases, within 1/√d_model: PyTorch's are 0 at first, and one that is left out could not be told from
    them.
    """
    w = workload
    assert w.d_model is not None
    wanted = shapes(w, w.d_model)
    xavier, of_biases = np.sqrt(6 / (wanted["in_proj_weight"][0] + w.d_model)), w.d_model**-0.5
    limits = xavier, of_biases, (w.heads * w.value_dim) ** -0.5, of_biases
    parameters = {}
    for name, stream, limit in zip(PARAMETERS, _PARAMETERS, limits, strict=True):
        drawn = np.random.default_rng([w.seed, stream]).uniform(-limit, limit, wanted[name])
        parameters[name] = round_to(drawn, w.dtype)
    return Block(
        x=_drawn(w, _X, (w.batch, w.queries, w.d_model)),
        memory=None if w.attends_to_itself else _drawn(w, _MEMORY, (w.batch, w.keys, w.d_model)),
        parameters=parameters,
        **{name: getattr(w, name) for name in WIDTHS},
    )


def _read(w: Workload, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A further array of the workload's file; over its scores one for all of an axis where the file has one."""
    assert w.captured is not None, "only what is read can be given"
    found = w.captured.read({name: shape})[name]
    return found if found.dtype == np.bool_ else round_to(floating(name, found), w.dtype)


def _drawn(
    workload: Workload,
    stream: int,
    shape: tuple[int, ...],
    *,
    wide: type[np.floating[Any]] = np.float64,
    rounded: bool = True,
) -> NDArray[Any]:
    """Standard normal numbers, drawn in the format `wide` and rounded to the workload's unless told otherwise.

    Piece by piece: the generator gives the same numbers one after the other, however many are asked for at once.
    """
    generator = np.random.default_rng([workload.seed, stream])
    found = np.empty(shape, carrier(workload.dtype) if rounded else wide)
    flat = found.reshape(-1)
    for start in range(0, flat.size, _DRAWN):
        part = flat[start : start + _DRAWN]
        drawn = generator.standard_normal(part.size, dtype=wide)
        part[:] = round_to(drawn, workload.dtype) if rounded else drawn
    return found


# -- inputs that a model computed --------------------------------------------------------------------

SUFFIX = ".safetensors"
#: the folder from which the path of a file is meant: a worker process, which has one of its own, sets it
started_in = Path()
#: what stands in a path of a file, so that it can be shown and typed as it is
_TEXT = re.compile(
    rf"(?P<file>[\w ./~+,=:-]*[\w+-]{re.escape(SUFFIX)})(/(?P<layer>[\w-]+))?(@(?P<digest>[0-9a-f]{{16}}))?"
)
#: the number formats by the names that safetensors has for them
_FORMATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_ARRAYS = ("query", "key", "value")
_CONDITIONS = ("scale", "softcap", "causal", "window", "key_lengths", "mask")


@dataclass(frozen=True)
class Captured:
    """One layer of a file, by name; `digest` is empty where it was not told."""

    file: str
    layer: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Captured:
        """Raises ValueError for what is no such text."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"a file of inputs is written FILE{SUFFIX}/LAYER, its path of letters, digits and ./_-+~,=: alone, "
                f"got {text!r}"
            )
        return cls(found["file"], found["layer"] or "", found["digest"] or "")

    @property
    def text(self) -> str:
        """As a workload has it."""
        return (
            self.file + (f"/{self.layer}" if self.layer else "") + (f"@{self.digest}" if self.digest else "")
        )

    @property
    def brief(self) -> str:
        """As a label has it: without folders, and with as much of the digest as tells two files apart."""
        return replace(self, file=Path(self.file).name, digest="").text + f"@{self.digest[:8]}"

    @property
    def _prefix(self) -> str:
        return f"{self.layer}." if self.layer else ""

    def fields(self) -> dict[str, Any]:
        """The fields of `Workload` that the file says: its sizes, its number format, what was asked.

        Nothing of the arrays is read. Raises ValueError, in one line, for a file that is none or holds no such layer.
        """
        with _opened(self.file) as (file, about):
            (query, dtype), (key, _), (value, _) = (_header(file, self._prefix + name) for name in _ARRAYS)
            there = set(file.keys())
        if query[0] != key[0] or key[:3] != value[:3] or query[3] != key[3] or query[1] % key[1]:
            raise ValueError(
                f"{self.file}: query, key and value of {self.layer or 'the file'} do not fit each other: "
                f"{tuple(query)}, {tuple(key)}, {tuple(value)}"
            )
        asked = _json(about.get(self.layer or "conditions", "{}"))
        if not isinstance(asked, dict) or set(asked) - set(_CONDITIONS):
            raise ValueError(
                f"{self.file}: its metadata do not say what was asked; write it with attnlab diagnose --save-inputs"
            )
        names = ("batch", "heads", "queries", "head_dim", "kv_heads", "keys", "value_dim")
        found: dict[str, Any] = dict(zip(names, (*query, *key[1:3], value[3]), strict=True))
        found |= {"dtype": dtype, "distribution": self.text, **asked}
        given = {"mask": "given", "bias": "given", "sinks": True}
        return found | {name: one for name, one in given.items() if self._prefix + name in there}

    def read(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
        """The first numbers of these arrays, each of its shape, as they lie in the file (bfloat16 as ml_dtypes has it).

        Raises Declined, since it happens where inputs are made, for a file that is not what it was, holds less, or
        holds a number that is not finite.
        """
        try:
            if self.digest != digest_of(self.file):
                raise ValueError(
                    f"{self.file} has changed: it was {self.digest}, it is {digest_of(self.file)}"
                )
            with _opened(self.file) as (file, _):
                return {name: self._cut(file, name, shape) for name, shape in shapes.items()}
        except ValueError as fault:
            raise Declined(str(fault)) from None

    def _cut(self, file: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The first of each axis; of a mask and a bias one for all where the file has one."""
        called = self._prefix + name
        if called not in file.keys():  # noqa: SIM118 - safe_open is no mapping
            raise ValueError(f"{self.file} holds no {called}")
        part = file.get_slice(called)
        there = tuple(part.get_shape())
        fits = len(there) == len(shape) and all(
            have >= want or (have == 1 and name in ("mask", "bias"))
            for have, want in zip(there, shape, strict=True)
        )
        if not fits:
            raise ValueError(f"{called} of {self.file} is {there}, and {shape} is asked for")
        found = np.ascontiguousarray(part[tuple(map(slice, map(min, there, shape)))])
        if found.dtype != np.bool_ and not np.isfinite(found.astype(np.float32)).all():
            raise ValueError(f"{self.file}: {called} holds a NaN or an infinity")
        return found


def is_captured(distribution: str) -> bool:
    """Whether the name of a distribution is that of a file."""
    return _TEXT.fullmatch(distribution) is not None


def named(text: str) -> tuple[Captured, ...]:
    """The layers that `text` names, with the digest that the file has: all of them where none is named.

    Raises ValueError, in one line, for a missing file, one that is none, an unknown layer and another digest.
    """
    asked = Captured.parse(text)
    there, digest = layers(asked.file), digest_of(asked.file)
    if asked.digest not in ("", digest):
        raise ValueError(
            f"{asked.file} has changed: it was {asked.digest}, it is {digest}; leave out what follows @ to take it"
        )
    if asked.layer and asked.layer not in there:
        raise ValueError(
            f"{asked.file} holds no {asked.layer!r}; it holds {', '.join(there) or 'one layer, unnamed'}"
        )
    chosen = (asked.layer,) if asked.layer else there or ("",)
    return tuple(Captured(asked.file, layer, digest) for layer in chosen)


def layers(file: str) -> tuple[str, ...]:
    """The names of the layers that `file` holds, in the order in which they were written; none where unnamed.

    Raises ValueError for a file that holds no query.
    """
    with _opened(file) as (opened, about):
        names = [name.rpartition(".")[0] for name in opened.keys() if name.rpartition(".")[2] == "query"]  # noqa: SIM118
    if not names:
        raise ValueError(
            f"{file} holds no inputs: it needs tensors query, key and value, see attnlab diagnose --help"
        )
    written = _json(about.get("layers", "[]"))
    order = {str(name): at for at, name in enumerate(written if isinstance(written, list) else [])}
    return tuple(sorted(filter(None, names), key=lambda one: (order.get(one, len(order)), one)))


def save(file: Path, problems: Mapping[str, Inputs], about: Mapping[str, str] | None = None) -> None:
    """Write the arrays of `problems`, by layers, into `file`; `about` goes into its metadata.

    Raises ValueError for a problem with ALiBi, whose bias has no array, and for a name that `Captured` does not take;
    Unavailable without safetensors.
    """
    _require_safetensors()
    from safetensors.numpy import save_file

    Captured.parse(str(file))
    tensors: dict[str, NDArray[Any]] = {}
    told = {**(about or {}), "layers": json.dumps(list(problems))}
    for layer, problem in problems.items():
        if isinstance(problem.bias, Alibi):
            raise ValueError(f"{layer}: ALiBi cannot be written; name it where the file is used")
        asked = {"scale": problem.scale, "softcap": problem.softcap, **fields_of(problem.mask)}
        given = asked["mask"] == GIVEN
        names = _CONDITIONS[:2] if given else _CONDITIONS
        stated = ((name, asked[name]) for name in names)
        told[layer] = json.dumps(
            {name: one for name, one in stated if one is not False and one not in (None, "")}
        )
        arrays = {"query": problem.query, "key": problem.key, "value": problem.value, "sinks": problem.sinks}
        for name, array in {**arrays, "bias": problem.bias}.items():
            if array is not None:
                cast = array.astype(FORMATS[problem.dtype])
                tensors[f"{layer}.{name}"] = of_four_axes(cast) if name == "bias" else cast
        seen = problem.mask.array(problem.shape) if given else None
        if seen is not None:
            tensors[f"{layer}.mask"] = of_four_axes(seen)
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(file), told)


def digest_of(file: str) -> str:
    """The first 64 bits of a file's SHA-256; ValueError where it cannot be read."""
    try:
        found = (started_in / file).stat()
        return _digest(file, found.st_size, found.st_mtime_ns)
    except OSError as fault:
        raise ValueError(f"the file of inputs {file} cannot be read: {fault.strerror}") from None


@lru_cache(maxsize=64)
def _digest(file: str, size: int, changed: int) -> str:
    with (started_in / file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def _require_safetensors() -> None:
    if importlib.util.find_spec("safetensors") is None:
        raise Unavailable("safetensors is not installed; pip install 'attnlab[diagnose]'")


@contextmanager
def _opened(file: str) -> Iterator[tuple[Any, dict[str, str]]]:
    """The file and its metadata; its header alone is read."""
    _require_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(started_in / file, "np")
    except OSError as fault:
        why = fault.strerror or "no such file"
        raise ValueError(f"the file of inputs {file} cannot be read: {why}") from None
    except SafetensorError as fault:
        raise ValueError(f"{file} is no safetensors file: {fault}") from None
    with opened as there:
        yield there, dict(there.metadata() or {})


def _header(file: Any, name: str) -> tuple[list[int], str]:
    """Shape and number format of one tensor. Raises ValueError for what is no input."""
    if name not in file.keys():  # noqa: SIM118 - safe_open is no mapping
        raise ValueError(f"the file of inputs holds no tensor {name!r}")
    part = file.get_slice(name)
    shape, kind = part.get_shape(), part.get_dtype()
    if len(shape) != 4 or 0 in shape or kind not in _FORMATS:
        raise ValueError(
            f"{name} must be of shape (batch, heads, length, dim) in {', '.join(_FORMATS)}, "
            f"got {tuple(shape)} in {kind}"
        )
    return shape, _FORMATS[kind]


def _json(text: str) -> Any:
    """What a text of JSON says, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

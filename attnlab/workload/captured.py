"""Inputs that a model computed: query, key and value by layers in one safetensors file, and what was asked of them.

Such a file is named as a distribution is: ``qkv.safetensors/layer3@1f3a9c02b7d4e655``, the layer and the digest of the
whole file (64 bits of its SHA-256, in hexadecimal digits) behind its path. Both may be left out when it is typed. A
workload always has the digest, so that equal workloads have equal inputs, and a file that changed since is refused.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined, FieldError, Unavailable
from attnlab.workload.inputs import Alibi, Inputs, of_four_axes
from attnlab.workload.masks import fields_of
from attnlab.workload.vocabulary import FORMATS, GIVEN

SUFFIX = ".safetensors"
#: the folder from which the path of a file is meant: a worker process, which has one of its own, sets it
started_in = Path()
#: what stands in a path of a file, so that it can be shown and typed as it is
_TEXT = re.compile(
    rf"(?P<file>[\w ./~+,=:-]*[\w+-]{re.escape(SUFFIX)})(/(?P<layer>[\w-]+))?(@(?P<digest>[0-9a-f]{{16}}))?"
)
#: the number formats by the names that safetensors has for them
_FORMATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
ARRAYS = ("query", "key", "value")
_CONDITIONS = ("scale", "softcap", "causal", "window", "key_lengths", "mask")


@dataclass(frozen=True)
class Captured:
    """One layer of a file, by name; `digest` is empty where it was not told."""

    file: str
    layer: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Captured:
        """Raises FieldError for what is no such text."""
        found = _TEXT.fullmatch(text)
        if found is None:
            wanted = f"FILE{SUFFIX}/LAYER, its path of letters, digits and ./_-+~,=: alone"
            raise FieldError("distribution", f"of a file is written {wanted}, got {text!r}")
        return cls(found["file"], found["layer"] or "", found["digest"] or "")

    @property
    def text(self) -> str:
        """As a workload has it."""
        layer, digest = self.layer and f"/{self.layer}", self.digest and f"@{self.digest}"
        return self.file + layer + digest

    @property
    def brief(self) -> str:
        """As a label has it: without folders, and with as much of the digest as tells two files apart."""
        return replace(self, file=Path(self.file).name, digest=self.digest[:8]).text

    def _tensor(self, name: str) -> str:
        return f"{self.layer}.{name}" if self.layer else name

    def fields(self) -> dict[str, Any]:
        """The fields of `Workload` that the file says: its sizes, its number format, what was asked.

        Nothing of the arrays is read. Raises ValueError, in one line, for a file that is none or holds no such layer.
        """
        with _opened(self.file) as (file, about):
            query, key, value = (_header(file, self._tensor(name)) for name in ARRAYS)
            dtype = _FORMATS[file.get_slice(self._tensor("query")).get_dtype()]
            there = set(file.keys())
        if query[0] != key[0] or key[:3] != value[:3] or query[3] != key[3] or query[1] % key[1]:
            raise ValueError(
                f"{self.file}: query, key and value of {self.layer or 'the file'} do not fit each other: "
                f"{tuple(query)}, {tuple(key)}, {tuple(value)}"
            )
        try:
            asked = msgspec.json.decode(about.get(self.layer or "conditions", "{}"), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            asked = {"": None}
        if set(asked) - set(_CONDITIONS):
            raise ValueError(
                f"{self.file}: its metadata do not say what was asked; write it with attnlab diagnose --save-inputs"
            )
        names = ("batch", "heads", "queries", "head_dim", "kv_heads", "keys", "value_dim")
        found = dict(zip(names, (*query, *key[1:3], value[3]), strict=True))
        given = {"mask": GIVEN, "bias": GIVEN, "sinks": True}
        of_arrays = {name: one for name, one in given.items() if self._tensor(name) in there}
        return {**found, "dtype": dtype, "distribution": self.text, **asked, **of_arrays}

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
        called, alike = self._tensor(name), name in ("mask", "bias")
        if called not in set(file.keys()):
            raise ValueError(f"{self.file} holds no {called}")
        part = file.get_slice(called)
        there = tuple(part.get_shape())
        if len(there) != len(shape) or not all(
            have >= want or (have == 1 and alike) for have, want in zip(there, shape, strict=True)
        ):
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
    there, digest = _layers(asked.file), digest_of(asked.file)
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


def _layers(file: str) -> tuple[str, ...]:
    """The names of the layers that `file` holds, layer2 before layer10; none where unnamed."""
    with _opened(file) as (opened, _):
        names = [name.rpartition(".")[0] for name in set(opened.keys()) if name.split(".")[-1] == "query"]
    if not names:
        raise ValueError(
            f"{file} holds no inputs: it needs tensors query, key and value, see attnlab diagnose --help"
        )
    return tuple(sorted(filter(None, names), key=lambda one: (len(one), one)))


def save(file: Path, inputs: Mapping[str, Inputs], about: Mapping[str, str] | None = None) -> None:
    """Write the arrays of `inputs`, by layers, into `file`; `about` goes into its metadata.

    Raises ValueError for inputs with ALiBi, whose bias has no array, and for a name that `Captured` does not take;
    Unavailable without safetensors.
    """
    _require_safetensors()
    from safetensors.numpy import save_file

    Captured.parse(str(file))
    tensors: dict[str, NDArray[Any]] = {}
    told = dict(about or {})
    for layer, one in inputs.items():
        if isinstance(one.bias, Alibi):
            raise ValueError(f"{layer}: ALiBi cannot be written; name it where the file is used")
        asked = {"scale": one.scale, "softcap": one.softcap, **fields_of(one.mask)}
        arrays = {"query": one.query, "key": one.key, "value": one.value, "sinks": one.sinks}
        arrays["bias"] = None if one.bias is None else of_four_axes(one.bias)
        found = {
            name: array.astype(FORMATS[one.dtype]) for name, array in arrays.items() if array is not None
        }
        if asked["mask"] == GIVEN:
            found["mask"] = of_four_axes(np.asarray(one.mask.array(one.shape)))
            asked = {name: asked[name] for name in ("scale", "softcap")}
        told[layer] = json.dumps(
            {name: value for name, value in asked.items() if value not in (None, False, "")}
        )
        tensors |= {f"{layer}.{name}": np.ascontiguousarray(array) for name, array in found.items()}
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


def _header(file: Any, name: str) -> list[int]:
    """The shape of one tensor. Raises ValueError for what is no input."""
    if name not in set(file.keys()):
        raise ValueError(f"the file of inputs holds no tensor {name!r}")
    part = file.get_slice(name)
    shape, kind = part.get_shape(), part.get_dtype()
    if len(shape) != 4 or 0 in shape or kind not in _FORMATS:
        wanted = f"of shape (batch, heads, length, dim) in {', '.join(_FORMATS)}"
        raise ValueError(f"{name} must be {wanted}, got {tuple(shape)} in {kind}")
    return list(shape)

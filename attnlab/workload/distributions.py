"""Where query, key and value come from: standard normal, shapes that break implementations, a file of a model's.

A distribution turns three standard normal arrays into query, key and value. Value keeps zero mean: with a value mean
of 1 a wrong scale hardly moves the output. A distribution that is one more row of the table is known to options, plan
files and reports.

Inputs that a model computed lie by layers in one safetensors file, which is named as a distribution is:
``qkv.safetensors/layer3@1f3a9c02b7d4e655``, the layer and the digest of the whole file (64 bits of its SHA-256, in
hexadecimal digits) behind its path. Both may be left out when it is typed. A workload always has the digest, so that
equal workloads have equal inputs, and a file that changed since is refused.

Tensors are ``LAYER.query`` (batch, heads, queries, head_dim), ``LAYER.key``, ``LAYER.value`` (batch, kv_heads, keys,
dim), and where there are such ``LAYER.mask`` (booleans), ``LAYER.bias``, ``LAYER.sinks``; without ``LAYER.`` in a file
of a single layer. Scale, soft cap and masks that have a text are said beside the file, as of other workloads.
A safetensors file holds numbers: reading it runs nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from attnlab.errors import FieldError, Unavailable
from attnlab.workload.inputs import Inputs, of_four_axes
from attnlab.workload.number_formats import floating

Array = NDArray[np.float64]
Three = tuple[Array, Array, Array]
#: (query, key, value, scale, generator) -> (query, key, value)
Distribution = Callable[[Array, Array, Array, float, Generator], Three]


def _outliers(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    q, k, v = (x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 1e-3) for x in (q, k, v))
    return q, k, v


def _duplicated_maxima(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every second key repeats its neighbour: each row's largest logit stands there at least twice
    pairs = k.shape[-2] // 2
    k = k.copy()
    k[..., 1 : 2 * pairs : 2, :] = k[..., 0 : 2 * pairs : 2, :]
    return q * 4, k, v


def _logit_std(std: float) -> Distribution:
    # Var(scale q.k) = scale^2 d for standard normal components
    return lambda q, k, v, scale, rng: (q * (std / (abs(scale) * np.sqrt(q.shape[-1]) or std)), k, v)


def _offset(logits: ArrayLike, q: Array, k: Array, v: Array, scale: float) -> Three:
    """The logits of a key lie near its number in `logits`: component 0 carries it, the others carry the spread."""
    near = np.asarray(logits)
    largest = np.abs(near).max()
    size = np.sqrt(largest / abs(scale)) if scale else 0.0
    q, k = q.copy(), k.copy()
    q[..., 0], k[..., 0] = size, size * (np.sign(scale) or 1.0) * (near / largest)
    return q, k, v


def _subnormal(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # e^-90 to e^-103: between them lie float32's numbers of fewer bits, which many processors compute slowly
    logits = rng.uniform(-102.5, -90.5, k.shape[:-1])
    logits[..., 0] = 0
    return _offset(logits, np.zeros_like(q), k, v, scale)


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": lambda q, k, v, scale, rng: (q, k, v),
    "logit_std_4": _logit_std(4.0),
    "logit_std_8": _logit_std(8.0),
    "shifted_means": lambda q, k, v, scale, rng: (q + 0.5, k + 0.5, v),
    "outliers": _outliers,
    "duplicated_maxima": _duplicated_maxima,
    "above_1000": lambda q, k, v, scale, rng: _offset(1200.0, q, k, v, scale),
    "below_minus_50000": lambda q, k, v, scale, rng: _offset(-52000.0, q, k, v, scale),
    "subnormal": _subnormal,
}


SUFFIX = ".safetensors"
#: what stands in a path of a file, so that it can be shown and typed as it is
_TEXT = re.compile(
    rf"(?P<file>[\w ./~+,=:-]*[\w+-]{re.escape(SUFFIX)})(/(?P<layer>[\w-]+))?(@(?P<digest>[0-9a-f]{{16}}))?"
)


@dataclass(frozen=True)
class Captured:
    """One layer of a file, by name. `digest` is empty where the user did not give it."""

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
        """As a label shows it: without folders, with eight digits of the digest."""
        return replace(self, file=Path(self.file).name, digest=self.digest[:8]).text

    def inputs(self) -> Inputs:
        """What the file holds of this layer. Raises ValueError, in one line, where it changed or holds no inputs."""
        if self.digest not in ("", now := digest_of(self.file)):
            hint = "leave out what follows @ to take it"
            raise ValueError(f"{self.file} has changed: it was {self.digest}, it is {now}; {hint}")
        return _inputs(self.file, self.layer, now)


def is_captured(distribution: str) -> bool:
    """Whether the name of a distribution is that of a file."""
    return _TEXT.fullmatch(distribution) is not None


def named(text: str) -> tuple[Captured, ...]:
    """The layers that `text` names, each with the file's digest. Without a layer: all of the file's layers.

    Raises ValueError, in one line, for a missing file, one that is none, and an unknown layer.
    """
    asked = Captured.parse(text)
    names = (name.rpartition(".") for name in _tensors(asked.file, digest_of(asked.file)))
    there = sorted((layer for layer, _, name in names if name == "query"), key=lambda one: (len(one), one))
    if not there:
        raise ValueError(f"{asked.file} holds no inputs: it needs tensors query, key and value")
    if asked.layer and asked.layer not in there:
        held = ", ".join(filter(None, there)) or "one layer, unnamed"
        raise ValueError(f"{asked.file} holds no {asked.layer!r}; it holds {held}")
    digest = asked.digest or digest_of(asked.file)
    return tuple(Captured(asked.file, layer, digest) for layer in ([asked.layer] if asked.layer else there))


def digest_of(file: str) -> str:
    """The first 64 bits of a file's SHA-256; ValueError where it cannot be read."""
    try:
        found = Path(file).stat()
        return _digest(file, found.st_size, found.st_mtime_ns)
    except OSError as fault:
        raise ValueError(f"the file of inputs {file} cannot be read: {fault.strerror}") from None


@lru_cache(maxsize=64)
def _digest(file: str, size: int, changed: int) -> str:
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


@lru_cache(maxsize=8)
def _tensors(file: str, digest: str, prefix: str | None = None) -> dict[str, Any]:
    """The tensors whose names begin with `prefix`; without a `prefix` the names alone, each with None."""
    if importlib.util.find_spec("safetensors") is None:
        raise Unavailable("safetensors is not installed; pip install 'attnlab[diagnose]'")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            names = [name for name in opened.keys() if name.startswith(prefix or "")]  # noqa: SIM118
            return {name: None if prefix is None else opened.get_tensor(name) for name in names}
    except SafetensorError as fault:
        raise ValueError(f"{file} is no safetensors file: {fault}") from None


@lru_cache(maxsize=4)
def _inputs(file: str, layer: str, digest: str) -> Inputs:
    """One layer of a file. Raises ValueError, in one line, where its arrays do not fit each other."""
    prefix = f"{layer}." if layer else ""
    tensors = _tensors(file, digest, prefix)
    arrays: dict[str, Any] = {
        name: tensors.get(prefix + name) for name in ("query", "key", "value", "mask", "bias", "sinks")
    }
    try:
        for name in ("query", "key", "value"):
            floating(name, arrays[name])
        found = Inputs.of(**arrays)
    except ValueError as fault:
        raise ValueError(f"{file} holds no inputs{f' of {layer}' if layer else ''}: {fault}") from None
    return found if found.bias is None else found.with_(bias=of_four_axes(np.asarray(found.bias)))

"""Where query, key and value come from: how they are drawn (``DISTRIBUTIONS``), or a file with the inputs of a model.

A distribution turns three standard normal arrays into query, key and value. The value keeps zero mean: with a mean of 1
a wrong scale would hardly move the output. Options, plan files and reports know every entry of the table; a new one
needs no other change.

The inputs of a model are in one safetensors file, layer by layer. A workload names one layer as its distribution,
``qkv.safetensors/layer3@1f3a9c02b7d4e655``: the path, the layer, and the digest of the whole file (the first 64 bits of
its SHA-256). On the command line the digest may be left out, and the layer too if there is only one. A workload always
has the digest: equal workloads have equal inputs, and a file that has changed is refused.

The tensors are ``LAYER.query`` (batch, heads, queries, head_dim), ``LAYER.key`` and ``LAYER.value`` (batch, kv_heads,
keys, dim). ``LAYER.`` is left out in a file of one layer. Masks, scale and soft cap are not in the file; they are given
as for any workload. A safetensors file holds numbers only: reading it runs no code.
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
from numpy.typing import ArrayLike

from attnlab.errors import FieldError, Unavailable
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import DTYPES, Array, floating

Three = tuple[Array, Array, Array]
#: (query, key, value, scale, generator) -> (query, key, value)
Distribution = Callable[[Array, Array, Array, float, Generator], Three]


def _outliers(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    q, k, v = (x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 1e-3) for x in (q, k, v))
    return q, k, v


def _duplicated_maxima(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every second key repeats its neighbour: each row has its largest logit at least twice
    pairs = k.shape[-2] // 2
    k = k.copy()
    k[..., 1 : 2 * pairs : 2, :] = k[..., 0 : 2 * pairs : 2, :]
    return q * 4, k, v


def _logit_std(std: float) -> Distribution:
    # Var(scale q.k) = scale^2 d for standard normal components
    return lambda q, k, v, scale, rng: (q * (std / (abs(scale) * np.sqrt(q.shape[-1]) or std)), k, v)


def _offset(logits: ArrayLike, q: Array, k: Array, v: Array, scale: float) -> Three:
    """The logits of each key lie near its number in `logits`: component 0 gives that number, the others the spread."""
    near = np.asarray(logits)
    largest = np.abs(near).max()
    size = np.sqrt(largest / abs(scale)) if scale else 0.0
    q, k = q.copy(), k.copy()
    q[..., 0], k[..., 0] = size, size * (np.sign(scale) or 1.0) * (near / (largest or 1.0))
    return q, k, v


def _subnormal(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # weights of e^-90 to e^-103: float32 has subnormal numbers there, which many processors compute slowly
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


#: a distribution whose name has this suffix is a file
SUFFIX = ".safetensors"
#: a path may have only characters that can be shown and typed without change
_TEXT = re.compile(
    rf"(?P<file>[\w ./~+,=:-]*[\w+-]{re.escape(SUFFIX)})(/(?P<layer>[\w.-]+))?(@(?P<digest>[0-9a-f]{{16}}))?"
)


@dataclass(frozen=True)
class Captured:
    """The name of one layer of a file. `digest` is empty if the user did not give it."""

    file: str
    layer: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Captured:
        """The layer that `text` names. Raises FieldError if `text` is not such a name."""
        found = _TEXT.fullmatch(text)
        if found is None:
            wanted = f"FILE{SUFFIX}/LAYER, its path of letters, digits and ./_-+~,=: alone"
            raise FieldError("distribution", f"of a file is written {wanted}, got {text!r}")
        return cls(**found.groupdict(""))

    @property
    def text(self) -> str:
        """The name as it is written in a workload."""
        return "".join((self.file, self.layer and f"/{self.layer}", self.digest and f"@{self.digest}"))

    @property
    def brief(self) -> str:
        """The name as it is shown in a label: without folders, with eight digits of the digest."""
        return replace(self, file=Path(self.file).name, digest=self.digest[:8]).text

    def inputs(self) -> Inputs:
        """Query, key and value of this layer. Raises ValueError if the file has changed or does not hold them."""
        if self.digest not in ("", now := digest_of(self.file)):
            hint = "leave out what follows @ to take it"
            raise ValueError(f"{self.file} has changed: it was {self.digest}, it is {now}; {hint}")
        return _inputs(self.file, self.layer, now)


def named(text: str) -> Captured:
    """The layer that `text` names, with the file's digest. `text` need not name the layer if the file has only one.

    Raises ValueError for a missing file, for one that is no safetensors file, and for a layer that it does not hold.
    """
    asked = Captured.parse(text)
    digest = digest_of(asked.file)
    names = (name.rpartition(".") for name in _tensors(asked.file))
    layers = [layer for layer, _, name in names if name == "query"]
    if not layers:
        raise ValueError(f"{asked.file} holds no inputs: it needs tensors query, key and value")
    if asked.layer not in layers and (asked.layer or len(layers) > 1):
        holds = f"no {asked.layer!r}" if asked.layer else "several layers"
        known = ", ".join(f"{asked.file}/{one}" for one in sorted(layers) if one) or asked.file
        raise ValueError(f"{asked.file} holds {holds}; name one of {known}")
    return Captured(asked.file, asked.layer or layers[0], asked.digest or digest)


def digest_of(file: str) -> str:
    """The first 64 bits of a file's SHA-256. Raises ValueError if it cannot be read."""
    try:
        found = Path(file).stat()
        return _digest(file, found.st_size, found.st_mtime_ns)
    except OSError as fault:
        raise ValueError(f"the file of inputs {file} cannot be read: {fault.strerror}") from None


@lru_cache(maxsize=64)
def _digest(file: str, size: int, changed: int) -> str:
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def _tensors(file: str, *wanted: str) -> dict[str, Any]:
    """The `wanted` tensors by name; without any, the names of all."""
    if importlib.util.find_spec("safetensors") is None:
        raise Unavailable("safetensors is not installed; pip install 'attnlab[diagnose]'")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "np") as opened:
            return {name: wanted and opened.get_tensor(name) for name in wanted or opened.keys()}
    except AttributeError as fault:  # "module 'numpy' has no attribute 'float8_e4m3fn'"
        raise ValueError(f"{file} holds {fault.name}; save it in one of {', '.join(DTYPES)}") from None
    except SafetensorError as fault:
        raise ValueError(f"{file} cannot be read as safetensors: {fault}") from None


@lru_cache(maxsize=4)
def _inputs(file: str, layer: str, digest: str) -> Inputs:
    """One layer of a file. Raises ValueError if its arrays do not fit each other."""
    wanted = {name: f"{layer}.{name}" if layer else name for name in ("query", "key", "value")}
    tensors = _tensors(file, *wanted.values())
    try:
        for name, of in wanted.items():
            floating(name, tensors[of])  # raises if not finite
        return Inputs.of(*(tensors[of] for of in wanted.values()))
    except ValueError as fault:
        raise ValueError(f"{file} holds no inputs{f' of {layer}' if layer else ''}: {fault}") from None

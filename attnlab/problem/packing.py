"""A problem as plain data and arrays, for a process on the other side of a pipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.problem.block import PARAMETERS, Block
from attnlab.problem.mask_kinds import Given
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Alibi, Problem

_ALWAYS = ("query", "key", "value")
_MAYBE = ("bias", "sinks", "output_gradient")
#: of a block, beside its arrays
_WIDTHS = ("heads", "kv_heads", "head_dim", "value_dim", "rotary")


def pack(problem: Problem) -> tuple[dict[str, Any], tuple[NDArray[Any], ...]]:
    """What `unpack` takes: plain data, and the arrays that it names in their order."""
    given = [part.array for part in problem.mask.parts if isinstance(part, Given)]
    told = Mask(tuple(part for part in problem.mask.parts if not isinstance(part, Given)))
    block = problem.block
    arrays = {name: getattr(problem, name) for name in _ALWAYS} if block is None else block.arrays()
    arrays |= {
        name: array
        for name in _MAYBE
        if (array := getattr(problem, name)) is not None and not isinstance(array, Alibi)
    }
    plain = {
        "arrays": list(arrays),
        "masks": len(given),
        "mask": told.text,
        "block": None if block is None else {name: getattr(block, name) for name in _WIDTHS},
        "dtype": problem.dtype,
        "scale": problem.scale,
        "softcap": problem.softcap,
        "slopes": problem.bias.slopes if isinstance(problem.bias, Alibi) else None,
    }
    return plain, (*arrays.values(), *given)


def digest(problem: Problem) -> str:
    """The first 16 digits of the SHA-256 of what is asked: plain data, and every array's dtype, shape and bytes.

    Equal for equal problems on every platform: bytes are little-endian.
    """
    plain, arrays = pack(problem)
    found = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for array in arrays:
        found.update(f"{array.dtype.newbyteorder('<')} {array.shape}".encode())
        found.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return found.hexdigest()[:16]


def unpack(plain: Mapping[str, Any], arrays: Sequence[NDArray[Any]]) -> Problem:
    """The problem that was packed; nothing is checked again."""
    names = plain["arrays"]
    found: dict[str, Any] = dict(zip(names, arrays, strict=False))
    given = tuple(map(Given, arrays[len(names) :]))
    if plain["slopes"] is not None:
        found["bias"] = Alibi(tuple(plain["slopes"]))
    mask = Mask.parse(plain["mask"]) & Mask(given)
    if plain["block"] is not None:
        parameters = {name: found.pop(name) for name in PARAMETERS}
        block = Block(found.pop("x"), found.pop("memory", None), parameters, **plain["block"])
        found |= {**dict(zip(_ALWAYS, block.unknown(), strict=True)), "block": block}
    return Problem(**found, dtype=plain["dtype"], scale=plain["scale"], softcap=plain["softcap"], mask=mask)

"""What may be asked of a backend beside plain attention: one small workload a feature, for the support matrix.

A kind of mask is a feature as soon as it is defined, and a field of workloads that is yes or no as soon as it is
declared; for a field with other values somebody has to choose some, here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.problem.directions import DIRECTIONS
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.mask_parts import Part
from attnlab.problem.workload import Workload

#: what features are added to: the smallest shape that kernels made for real models take
BASE = Workload(batch=2, heads=4, queries=32, keys=32, head_dim=64)
PLAIN = "no mask"
#: fields that are no features: sizes, the axes of the matrix, and what the inputs are drawn from
_NO_FEATURES = ("batch", "heads", "head_dim", "dtype", "device", "direction", "mask", "distribution", "seed")

#: of each field the features that it makes, and the other fields that show them
_CHOSEN: dict[str, dict[str, Mapping[str, Any]]] = {
    "queries": {"decoding, 1 query": {"queries": 1}, "cross-attention, fewer queries": {"queries": 20}},
    "keys": {"cross-attention, fewer keys": {"keys": 20}},
    "kv_heads": {"grouped heads": {"kv_heads": 2}, "one key head": {"kv_heads": 1}},
    "value_dim": {"value_dim ≠ head_dim": {"value_dim": 32}},
    "causal": {
        "causal, as many queries as keys": {"causal": "top_left"},
        "causal top-left, fewer queries": {"causal": "top_left", "queries": 20},
        "causal bottom-right, fewer queries": {"causal": "bottom_right", "queries": 20},
    },
    "window": {
        "window": {"window": (5, 5)},
        "window and causal": {"window": (5, 0), "causal": "top_left"},
        "window and causal bottom-right, fewer queries": {
            "window": (5, 0),
            "causal": "bottom_right",
            "queries": 20,
        },
    },
    "key_lengths": {
        "key lengths": {"key_lengths": (20, 32)},
        "key lengths, one of them 0": {"key_lengths": (0, 32)},
    },
    "bias": {"bias": {"bias": "normal"}, "ALiBi": {"bias": "alibi"}},
    "softcap": {"soft cap": {"softcap": 5.0}},
    "scale": {"scale": {"scale": 0.3}},
    "layout": {"layout bshd": {"layout": "bshd"}},
    "storage": {
        "preallocated cache": {"storage": "preallocated", "queries": 1},
        "grown cache": {"storage": "grown", "queries": 1},
        "packed keys": {"storage": "packed", "key_lengths": (20, 32)},
        "paged keys": {"storage": "paged", "queries": 1},
    },
    "splits": {"keys in 3 parts": {"splits": 3}},
    "d_model": {"multi-head block": {"d_model": 256}},
    "rotary": {"multi-head block, rotary": {"d_model": 256, "rotary": True}},
}
#: the kinds of masks that fields of their own say, and the one of a caller's own array
_SAID_ELSEWHERE = ("causal", "window", "key_lengths", "given")


def features() -> dict[str, Mapping[str, Any]]:
    """The fields of `Workload` that each feature sets on `BASE`, by the feature's name.

    Raises ValueError for a field of `Workload` that nobody has chosen a feature for.
    """
    found: dict[str, Mapping[str, Any]] = {PLAIN: {}}
    for field in dataclasses.fields(Workload):
        if field.name in _CHOSEN:
            found |= _CHOSEN[field.name]
        elif field.name == "mask":
            found |= _masks()
        elif field.default is False:
            found[field.name.replace("_", " ")] = {field.name: True}
        elif field.name not in _NO_FEATURES:
            raise ValueError(f"choose a feature for the field {field.name} in attnlab/runs/features.py")
    return found


def _masks() -> dict[str, Mapping[str, Any]]:
    """A mask of each kind that is written as text; the boolean array that all of them come to is ``random``."""
    found: dict[str, Mapping[str, Any]] = {}
    for kind, cls in Part.kinds.items():
        part = None if kind in _SAID_ELSEWHERE else cls.drawn(np.random.default_rng(0), BASE.shape)
        if part is not None:
            name = "any boolean mask" if kind == "random" else f"mask {kind}"
            found[name] = {"mask": part.text}
    return found


def asked(feature: str, dtype: str, direction: str, device: str) -> Workload:
    """The small workload of a feature. Raises KeyError for one that there is not."""
    return BASE.with_(
        **{"value_dim": None, "kv_heads": None, "scale": None, **features()[feature]},
        dtype=dtype,
        direction=direction,
        device=device,
    )


#: the axes of the matrix beside backend and feature
AXES = {"directions": tuple(DIRECTIONS), "dtypes": DTYPES}

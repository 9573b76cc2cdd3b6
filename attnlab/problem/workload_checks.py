"""What a workload's fields may be, and how they are written so that equal questions are equal.

Each function looks at some fields and returns, by name, those that are to be written otherwise. Each raises ValueError,
in one line, for what cannot be.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from attnlab.problem.directions import DIRECTIONS
from attnlab.problem.distributions import DISTRIBUTIONS
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.mask_kinds import Causal, KeyLengths, Window
from attnlab.problem.mask_part import ALIGNMENTS
from attnlab.problem.masks import Mask
from attnlab.problem.storage import STORAGES

if TYPE_CHECKING:
    from attnlab.problem.workload import Workload

DEVICES = ("cpu", "cuda")
LAYOUTS = ("bhsd", "bshd")
#: how a workload's bias is made; "given" stands for an array of a caller's
BIASES = ("none", "normal", "alibi", "given")
#: the mask of a caller's own array, which has no text
GIVEN = "given"


def numbers(w: Workload) -> dict[str, Any]:
    """Scale, soft cap, seed and flags: the fields that are written otherwise, by name."""
    found: dict[str, Any] = {}
    scale: Any = 1 / math.sqrt(w.head_dim) if w.scale is None else w.scale
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ValueError(f"scale must be a number or None, got {scale!r}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale!r}")
    found["scale"] = float(scale)
    if w.softcap is not None:
        if (
            isinstance(w.softcap, bool)
            or not isinstance(w.softcap, int | float)
            or not 0 < w.softcap < math.inf
        ):
            raise ValueError(f"softcap must be a number above 0, or None for no cap, got {w.softcap!r}")
        found["softcap"] = float(w.softcap)
    if not isinstance(w.seed, int) or isinstance(w.seed, bool) or w.seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {w.seed!r}")
    for name in ("sinks", "rotary"):
        if not isinstance(getattr(w, name), bool):
            raise ValueError(f"{name} must be true or false, got {getattr(w, name)!r}")
    return found


def names(w: Workload) -> dict[str, Any]:
    """The fields that are one of some names; True and None of `causal` stand for such."""
    causal: Any = w.causal
    if causal is True or causal is None:
        causal = "top_left" if causal else False
    known: dict[str, tuple[Any, ...]] = {
        "dtype": DTYPES,
        "device": DEVICES,
        "causal": (False, *ALIGNMENTS),
        "bias": BIASES,
        "layout": LAYOUTS,
        "storage": STORAGES,
        "direction": tuple(DIRECTIONS),
        "distribution": tuple(DISTRIBUTIONS),
    }
    if w.captured is not None:
        del known["distribution"]
    for name, allowed in known.items():
        value = causal if name == "causal" else getattr(w, name)
        if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            shown = ", ".join("false" if one is False else one for one in allowed)
            raise ValueError(f"{name} must be one of {shown}, got {value!r}")
    return {"causal": causal}


def sequences(w: Workload) -> dict[str, Any]:
    """`window` and `key_lengths`, as tuples."""
    found = {}
    for name in ("window", "key_lengths"):
        given = getattr(w, name)
        if given is not None:
            if not isinstance(given, list | tuple):
                raise ValueError(f"{name} must be whole numbers, got {given!r}")
            found[name] = tuple(given)
    return found


def mask(w: Workload) -> dict[str, Any]:
    """The fields of the mask, which has one way to be written."""
    if not isinstance(w.mask, str):
        raise ValueError(f"mask must be the text of a mask, got {w.mask!r}; attnlab.attend takes arrays")
    masked = w.masked
    masked.check(w.shape)
    if w.mask != GIVEN:
        return mask_fields(masked)
    return {} if w.window is None else {"window": Window.of(w.window).sides}


def mask_fields(mask: Mask) -> dict[str, Any]:
    """The fields that say `mask`: of their own for one condition of each kind, the rest as text."""
    found: dict[str, Any] = {"causal": False, "window": None, "key_lengths": None}
    further = []
    for part in sorted(mask.parts, key=lambda part: (part.kind != "causal", part.text)):
        if isinstance(part, Causal) and not found["causal"]:
            found["causal"] = part.alignment
        elif isinstance(part, KeyLengths) and found["key_lengths"] is None:
            found["key_lengths"] = part.lengths
        elif isinstance(part, Window) and _along(part, found["causal"]) and found["window"] is None:
            found["window"] = part.sides
        else:
            further.append(part)
    given = any(part.kind == GIVEN for part in further)
    return {**found, "mask": GIVEN if given else Mask(tuple(further)).text}


def _along(window: Window, causal: str | bool) -> bool:
    """Whether the window lies along the causal diagonal, which the field takes it to do."""
    return window.alignment == (causal or "top_left")

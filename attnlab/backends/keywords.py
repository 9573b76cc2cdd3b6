"""The keywords of a backend's `attend`, and their values. A keyword that is not in its signature is never passed.

``causal``, ``causal_bottom_right``
    True if the mask is causal, apart from parts that have their own keywords.
``window``, ``window_bottom_right``
    (left, right) keys around a query's own position, -1 for no limit; None without a window.
``key_lengths``
    the number of real keys of each batch element, a tuple of int; None without lengths.
``mask``
    a boolean array of the library, broadcastable to (batch, heads, queries, keys), True keeps; None without a mask.
``visible``
    the mask as a function of (batch, head, rows, columns), numbers and slices. It returns the tile as a NumPy array of
    shape (rows, columns). For kernels that never hold the whole mask. None without a mask.
``bias``
    an array of the library that is added to the scores, broadcastable like the mask; None without a bias.
``alibi_slopes``
    a tuple of float, one for each head, in place of an ALiBi bias; None without ALiBi.
``attn_mask``
    mask and bias in one array, as PyTorch has it: boolean if there is no bias, else numbers with -inf for hidden keys;
    None without mask and bias. It stands for ``mask`` and ``bias``.
``scale``, ``softcap``
    numbers; softcap is None if there is no cap.
``sinks``
    an array of the library, (heads,); None without sinks.
``enable_gqa``
    True if key and value have fewer heads than the query; each then serves the same number of successive query heads.

The mask is given by keywords if the backend has one for each of its parts. Otherwise all parts are in one array, and
the keywords have the values for no mask, because some kernels do not take both.

A contender may ask for another form of the same mask (`FORMS`). ``array``: always a boolean array, of ones if every
query sees every key. ``none``: no mask at all, which is declined if the mask hides a key.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Refusal
from attnlab.libraries.library import Library
from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.mask_kinds import Shape
from attnlab.workload.masks import Mask
from attnlab.workload.workload import GIVEN, Workload

#: keywords that take any mask
_ARRAYS = ("mask", "visible", "attn_mask")
#: kinds of masks that have a field of their own in a workload
_FIELDS = ("causal", "window", "key_lengths")
#: every keyword but those of the kinds of masks
PLAIN = (*_ARRAYS, "bias", "alibi_slopes", "scale", "softcap", "sinks", "enable_gqa")
#: the value of a keyword if nothing is asked for, unless that is None
_RESTING = dict.fromkeys(("causal", "causal_bottom_right", "enable_gqa"), False)
#: forms in which a contender may ask for its mask
FORMS = ARRAY, NO_MASK = "array", "none"


def unsupported(workload: Workload, options: Collection[str]) -> Refusal | None:
    """Why a backend with these keywords cannot do `workload`, or None. The scale is not considered."""
    mask = workload.masked
    if not set(_ARRAYS) & set(options):
        if workload.mask == GIVEN:
            return _takes_no("mask", "mask")
        for part in mask.parts:
            flags = part.flag(workload.shape)
            if not set(flags) & set(options):
                return _takes_no(part.kind if part.kind in _FIELDS else "mask", next(iter(flags), part.kind))
        if _told(mask, workload.shape, options) is None:
            return _takes_no("mask", f"mask, and {mask.text} needs one")
    takes = {"bias", "attn_mask"} | ({"alibi_slopes"} if workload.bias == "alibi" else set())
    if workload.bias != "none" and not takes & set(options):
        return _takes_no("bias", "bias")
    for name, asked in (("softcap", workload.softcap), ("sinks", workload.sinks)):
        if asked and name not in options:
            return _takes_no(name, name)
    if workload.kv_heads != workload.heads and "enable_gqa" not in options:
        shared = f"enable_gqa: {workload.heads} heads share {workload.kv_heads} of key and value"
        return _takes_no("kv_heads", shared)
    return None


def _takes_no(field: str, what: str) -> Refusal:
    return Refusal(field, f"its attend() takes no {what}")


def in_form(workload: Workload, form: str | None) -> Workload:
    """The workload as it looks to a backend that gets the mask in this form."""
    if form is None:
        return workload
    return workload.with_(causal=False, window=None, key_lengths=None, mask=GIVEN if form == ARRAY else "")


def not_in_form(workload: Workload, form: str | None, options: Collection[str]) -> Refusal | None:
    """Why the mask of `workload` cannot be given in this form, or None."""
    if form == ARRAY and not {"mask", "attn_mask"} & set(options):
        return Refusal("mask", "its attend() takes no mask as an array; leave out mask=array")
    if form == NO_MASK and (workload.mask == GIVEN or workload.pairs < math.prod(workload.shape)):
        mask = workload.masked.text or "a mask of your own"
        return Refusal("mask", f"mask=none hands over no mask, and {mask} hides keys")
    return None


def given(
    inputs: Inputs, options: Collection[str], library: Library, dtype: str, form: str | None = None
) -> dict[str, Any]:
    """The keyword arguments of `attend`, for inputs that are not `unsupported`."""
    found = given_nothing(options)
    flags = {} if form == NO_MASK else None if form else _told(inputs.mask, inputs.shape, options)
    bias: Any = inputs.bias
    if flags is not None:
        found.update(flags)
    elif "visible" in options and form is None:
        found["visible"] = partial(inputs.mask.tile, inputs.shape)
    elif "mask" in options:
        found["mask"] = library.from_numpy(_seen(inputs), dtype)
    if isinstance(bias, Alibi) and "alibi_slopes" in options:
        found["alibi_slopes"], bias = bias.slopes, None
    if bias is not None and "bias" in options:
        found["bias"] = library.from_numpy(_array(inputs.bias_array), dtype)
    elif "attn_mask" in options:
        found["attn_mask"] = _attn_mask(inputs, bias is not None, flags is None, library, dtype)
        if bias is not None and flags:
            found.update({name: _RESTING.get(name) for name in flags})
    if inputs.sinks is not None:
        found["sinks"] = library.from_numpy(inputs.sinks, dtype)
    plain = {"scale": inputs.scale, "softcap": inputs.softcap, "enable_gqa": inputs.group > 1}
    return found | {name: value for name, value in plain.items() if name in options}


def given_nothing(options: Collection[str]) -> dict[str, Any]:
    """The keyword arguments of `attend` if nothing is asked for but attention itself."""
    return {name: _RESTING.get(name) for name in options}


def told(workload: Workload, options: Collection[str]) -> dict[str, Any] | None:
    """The keywords of `options` that express the whole mask of `workload`, with their values; None if they cannot."""
    return None if workload.mask == GIVEN else _told(workload.masked, workload.shape, options)


def _told(mask: Mask, shape: Shape, options: Collection[str]) -> dict[str, Any] | None:
    """The keywords that express the whole mask, or None if it needs an array, as two parts of one kind do."""
    found: dict[str, Any] = {}
    if len({part.kind for part in mask.parts}) < len(mask.parts):
        return None
    for part in mask.parts:
        flags = {name: value for name, value in part.flag(shape).items() if name in options}
        if not flags:
            return None
        found.update([next(iter(flags.items()))])
    return found


def _attn_mask(inputs: Inputs, biased: bool, masked: bool, library: Library, dtype: str) -> Any:
    """Mask and bias in one array. biased : there is a bias. masked : keywords cannot express the mask."""
    if not biased:
        return library.from_numpy(_seen(inputs), dtype) if masked else None
    bias, seen = _array(inputs.bias_array), inputs.mask.array(inputs.shape)
    if seen is None:
        return library.from_numpy(bias, dtype)
    hidden = ~_array(seen)
    whole = np.broadcast_to(bias, np.broadcast_shapes(bias.shape, hidden.shape))
    return library.fill(library.from_numpy(_array(whole), dtype), library.from_numpy(hidden, dtype), -np.inf)


def _seen(inputs: Inputs) -> NDArray[np.bool_]:
    """The whole mask with four axes, ones if there is none."""
    found = inputs.mask.array(inputs.shape)
    return _array(np.ones(inputs.shape[2:], bool) if found is None else found)


def _array(found: NDArray[Any] | None) -> NDArray[Any]:
    """The array with four axes: some kernels need all of them."""
    assert found is not None
    return np.ascontiguousarray(found.reshape((1,) * (4 - found.ndim) + found.shape))

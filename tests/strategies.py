"""Random workloads for the tests of several parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnlab.workload.mask_kinds import OPEN, Part, Shape
from attnlab.workload.masks import Mask
from attnlab.workload.workload import GIVEN, Workload, declaration

#: the possible values of each field whose values are names
_NAMES = {
    one.name: st.sampled_from(declaration(one).names)
    for one in dataclasses.fields(Workload)
    if declaration(one).names
}


@st.composite
def workloads(draw: st.DrawFn, longest: int = 9) -> Workload:
    """Any workload without a block that can be written down: all fields, at most `longest` queries and keys."""
    batch, kv_heads, queries, keys = (draw(st.integers(1, most)) for most in (3, 3, longest, longest))
    side = st.integers(OPEN, keys)
    rng, shape = np.random.default_rng(draw(st.integers(0, 2**16))), Shape(batch, kv_heads, queries, keys)
    kinds = draw(st.sets(st.sampled_from(sorted(set(Part.kinds) - {GIVEN}))))
    parts = [Part.kinds[kind].drawn(rng, shape) for kind in sorted(kinds)]
    fields: dict[str, st.SearchStrategy[Any]] = {
        **_NAMES,
        "batch": st.just(batch),
        "heads": st.sampled_from([kv_heads, 2 * kv_heads]),
        "kv_heads": st.just(kv_heads),
        "queries": st.just(queries),
        "keys": st.just(keys),
        "head_dim": st.integers(1, 9),
        "value_dim": st.none() | st.integers(1, 9),
        "d_model": st.none(),
        "causal": st.sampled_from([False, "top_left", "bottom_right"]),
        "window": st.none() | st.tuples(side, side),
        "key_lengths": st.none() | st.tuples(*[st.integers(0, keys)] * batch),
        "mask": st.just(Mask(tuple(part for part in parts if part is not None)).text),
        "softcap": st.none() | st.floats(1e-9, 1e9),
        "sinks": st.booleans(),
        "scale": st.none() | st.floats(-8, 8),
        "seed": st.integers(0, 2**32),
    }
    lacking = {field.name for field in dataclasses.fields(Workload)} - set(fields)
    assert not lacking, f"say above what values {lacking} may have: a strategy in `fields`"
    return Workload(**draw(st.fixed_dictionaries(fields)))


@st.composite
def blocks(draw: st.DrawFn, longest: int = 9) -> Workload:
    """Any multi-head block that can be written down: any core, with a width that need not be divisible by its heads."""
    core = draw(workloads(longest))
    asked: dict[str, Any] = {"layout": "bhsd", "storage": "contiguous"}
    asked |= {"distribution": "normal", "direction": "forward"}
    return core.with_(d_model=draw(st.integers(1, 9)), **asked)

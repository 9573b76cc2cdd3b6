"""However keys and values are stored, a call reads exactly the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import workloads

from attnlab.backends.backend import PAGE, store
from attnlab.libraries.library import open_library
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.workload import CONTIGUOUS, STORAGES, Workload

STORED = [name for name in STORAGES if name != CONTIGUOUS]


ASKED = {"device": "cpu", "direction": "forward", "distribution": "normal"}
#: workloads with up to three pages of keys; batch elements may have no keys
CACHES = st.builds(
    lambda one, storage: one.with_(**ASKED, storage=storage), workloads(3 * PAGE), st.sampled_from(STORED)
)


@pytest.mark.parametrize("name", ["numpy", "torch"])
@given(workload=CACHES)
@settings(max_examples=35, deadline=None)
def test_what_is_read_is_what_was_laid_down(name: str, workload: Workload) -> None:
    """Bit for bit and in every call, where a batch element has keys. Elsewhere the numbers are finite."""
    library = open_library(name)
    if library.declines(workload.dtype):
        return
    made = inputs_of(workload)
    key, value = made.key, made.value
    stored = store(library, workload, key, value)
    lengths = np.array(workload.key_lengths or (workload.keys,) * workload.batch)
    there = np.broadcast_to((np.arange(workload.keys) < lengths[:, None])[:, None, :, None], key.shape)
    for _ in range(2):
        for array, found in zip((key, value), stored.read(), strict=True):
            kept = there[..., :1] & np.ones(array.shape, bool)
            read = library.to_numpy(found)
            assert read.shape == array.shape and library.dtype_of(found) == workload.dtype
            np.testing.assert_array_equal(read[kept], array[kept])
            assert np.isfinite(read).all()

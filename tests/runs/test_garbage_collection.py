"""Without garbage collection inside, and as it was before outside."""

import gc
import weakref

import pytest

from attnlab.system import without_garbage_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_off_inside_and_as_before_outside(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), without_garbage_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
        assert without_garbage_collection()(gc.isenabled)() is False
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


class _Part:
    pass


def test_before_the_end_of_a_process_what_is_there_is_not_looked_through() -> None:
    """What refers to itself stays; without that it is found."""
    for last in (False, True):
        with without_garbage_collection(last=last):
            part = _Part()
            part.itself = part  # type: ignore[attr-defined]  # a part of nothing but itself
            known = weakref.ref(part)
            del part
        try:
            gc.collect()
            assert (known() is not None) is last
        finally:
            gc.unfreeze()
            gc.collect()

"""Without garbage collection inside, and as it was before outside."""

import gc

import pytest

from attnlab.program.garbage_collection import without_garbage_collection


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

"""Without garbage collection inside, and as it was before outside."""

import gc

import pytest

from attnlab.system import without_garbage_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_off_inside_and_as_before_outside(enabled: bool) -> None:
    """And before the end of a process, what is there is not looked through any more."""
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError), without_garbage_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled and not gc.get_freeze_count()
        assert without_garbage_collection(last=True)(gc.isenabled)() is False
        assert gc.isenabled() is enabled and gc.get_freeze_count()
    finally:
        gc.enable()
        gc.unfreeze()

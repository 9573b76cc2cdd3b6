"""PyTorch in several processes (`attnlab.libraries.torch_ranks`), on the CPU of a Linux machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnlab.backends.library import Call
from attnlab.errors import Unavailable
from attnlab.libraries.torch_library import Torch

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11: workers run in 3.10 too


class TorchRanks(Torch):
    """See `attnlab.backends.library.Library`."""

    #: why no block is made around its attention
    no_projections = "only the attention is cut over processes, not its projections"

    name = "torch_ranks"
    before_fork = None
    arrays_of = "torch"

    @classmethod
    def open_on(cls, device: str) -> Self:
        """It on `device`. Raises Unavailable for any device but the CPU, and where processes cannot be connected."""
        if device != "cpu":
            raise Unavailable(f"attnlab runs ranks on the CPU only, not on {device}")
        found = cls(device)
        if not found.module.distributed.is_available() or not hasattr(os, "memfd_create"):
            raise Unavailable("ranks need Linux and a PyTorch with torch.distributed")
        return found

    def peak_bytes(self, call: Call) -> int | None:
        """Raises RuntimeError: the memory is that of other processes."""
        raise RuntimeError("the memory of the ranks is not measured")

    def attest(self, call: Call) -> str:
        return "unknown: the ranks are not profiled"


LIBRARIES = (TorchRanks,)

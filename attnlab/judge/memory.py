"""Memory that the judge shares with a sandbox: on the host, and on a CUDA device.

The sandbox inherits a file descriptor for each of them, so it needs no file name and no process number. Arrays lie in
the memory one after the other, as the bits of their number format.
"""

from __future__ import annotations

import fcntl
import importlib
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Unavailable
from attnlab.processes import Failed
from attnlab.workload.number_formats import carrier, held

#: where an array lies: its dtype, its shape, and its first byte
Place = tuple[str, tuple[int, ...], int]
Array = NDArray[Any]
PAGE = mmap.PAGESIZE


class HostMemory:
    """Shared memory of `size` bytes on the host, of which the first `used` hold arrays.

    shared : the file descriptor of memory that another process made.
    """

    def __init__(self, size: int = 0, shared: int | None = None) -> None:
        self.used, self.number = 0, -1 if shared is None else shared
        if shared is None:
            self.number = os.memfd_create("attnlab", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.ftruncate(self.number, size)
            # without seals a candidate could shrink the memory, and the judge would crash when it reads there
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.number, fcntl.F_ADD_SEALS, seals)
        self._bytes: Any = mmap.mmap(self.number, size)
        self.size = len(self._bytes)

    def lay(self, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Place]:
        """Place a new array here, all NaN, with at least a page of NaN behind it. Raises Failed if there is no room."""
        start, count = self.used, int(np.prod(shape))
        end = start + -(-count * np.dtype(dtype).itemsize // PAGE) * PAGE + PAGE
        if end > self.size:
            raise Failed("memory", f"its shared memory has {self.size} bytes, and {end} are needed")
        self.array(("u1", (end - start,), start))[...] = 0xFF
        self.used = end
        return self.array((dtype, shape, start)), (dtype, shape, start)

    def array(self, place: Place) -> Any:
        """The array at `place`, a view of this memory."""
        dtype, shape, start = place
        return np.frombuffer(self._bytes, dtype, int(np.prod(shape)), start).reshape(shape)

    def staged(self, array: Array) -> Any:
        """The array on the device of this memory, but not yet in it."""
        return array

    def taken(self, array: Any, chosen: Sequence[Array]) -> Any:
        """A copy of the chosen parts, on the host. chosen : an index of the first dimensions."""
        return array[tuple(chosen)]

    def finite(self, bits: Any, form: np.dtype[Any]) -> bool:
        """Whether these bits, read in the number format `form`, are all finite numbers."""
        return bool(np.isfinite(bits.view(form).astype(np.float32)).all())

    def finish(self) -> None:
        """Wait until all copies are complete."""


class DeviceMemory(HostMemory):
    """Shared memory on the CUDA device. The driver's virtual memory management exports it as a file descriptor.

    Arrays are PyTorch tensors. Raises Unavailable if cuda-bindings is not installed, or if the driver reports an error.
    """

    def __init__(self, size: int, shared: int | None = None) -> None:
        self._torch: Any = importlib.import_module("torch")
        try:
            driver: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError:
            raise Unavailable("on CUDA the judge needs cuda-bindings; pip install cuda-bindings") from None
        self._torch.empty(1, device="cuda")  # makes PyTorch's context, which the driver calls below need
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        asked, access = driver.CUmemAllocationProp(), driver.CUmemAccessDesc()
        asked.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        asked.requestedHandleTypes = kind
        asked.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        asked.location.id = self._torch.cuda.current_device()
        access.location = asked.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        whole = _done(driver.cuMemGetAllocationGranularity(asked, least))
        self.size, self.used = -(-size // whole) * whole, 0
        if shared is None:
            handle = _done(driver.cuMemCreate(self.size, asked, 0))
            self.number = int(_done(driver.cuMemExportToShareableHandle(handle, kind, 0)))
            weakref.finalize(self, os.close, self.number)
        else:
            self.number, handle = shared, _done(driver.cuMemImportFromShareableHandle(shared, kind))
        start = _done(driver.cuMemAddressReserve(self.size, 0, 0, 0))
        _done(driver.cuMemMap(start, self.size, 0, handle, 0))
        _done(driver.cuMemSetAccess(start, self.size, [access], 1))
        # called after the last reference is gone, in reverse order: unmap first
        weakref.finalize(self, driver.cuMemRelease, handle)
        weakref.finalize(self, driver.cuMemAddressFree, start, self.size)
        weakref.finalize(self, driver.cuMemUnmap, start, self.size)
        form = {"shape": (self.size,), "typestr": "|u1", "data": (int(start), False), "version": 3}
        there = type("There", (), {"__cuda_array_interface__": form})()
        self._bytes = self._torch.as_tensor(there, device="cuda")

    def array(self, place: Place) -> Any:
        dtype, shape, start = place
        empty = np.empty(0, dtype)
        size = int(np.prod(shape)) * empty.itemsize
        form = self._torch.from_numpy(empty).dtype
        return self._bytes[start : start + size].view(form).view(shape)

    def staged(self, array: Array) -> Any:
        return self._torch.from_numpy(array).to("cuda")

    def taken(self, array: Any, chosen: Sequence[Array]) -> Any:
        places = np.ravel_multi_index(np.broadcast_arrays(*chosen), array.shape[: len(chosen)])
        rows = array.flatten(0, len(chosen) - 1)
        return rows[self._torch.from_numpy(places).to("cuda")].cpu().numpy()

    def finite(self, bits: Any, form: np.dtype[Any]) -> bool:
        return bool(bits.view(getattr(self._torch, form.name)).isfinite().all())

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        """The bits of standard normal numbers, on the device, from a new generator that is not kept."""
        secret = self._torch.Generator("cuda").manual_seed(secrets.randbits(63))
        drawn = self._torch.randn(*shape, generator=secret, device="cuda").to(getattr(self._torch, dtype))
        return drawn.view(getattr(self._torch, f"int{8 * drawn.itemsize}"))

    def read(self, bits: Any, dtype: str) -> Array:
        """The numbers that these bits encode in `dtype`, on the host."""
        return held("inputs", bits.view(getattr(self._torch, dtype))).astype(carrier(dtype), copy=False)

    def finish(self) -> None:
        self._torch.cuda.synchronize()


def _done(told: tuple[Any, ...]) -> Any:
    """The result of a driver call. Raises Unavailable for an error."""
    error, *found = told
    if int(error):
        raise Unavailable(f"the judge cannot share memory of the CUDA device: {error.name}")
    return found[0] if found else None

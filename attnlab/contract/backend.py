"""One implementation of attention, as data: a name, its array library, `attend`, and what it declines.

A backend file needs no import from attnlab. It holds

``LIBRARY``
    ``"numpy"`` or ``"torch"``: whose arrays `attend` takes and returns.
``attend(query, key, value, *, causal, scale)``
    the computation on arrays laid out (batch, heads, length, dim). An option that its signature does not
    take is declined by the harness where a workload asks for it, so ``attend(q, k, v)`` is a valid backend.
``declines(workload)``, optional
    the reason why it cannot do a workload, or None.
``prepare(workload, query, key, value)``, optional
    the arrays in the layout that `attend` wants; runs outside the clock.
``KERNEL``, optional
    the operator that must be seen running (``attest``), for a backend that forces one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.errors import Declined
from attnlab.contract.library import Library, open_library
from attnlab.contract.workload import Workload


@dataclass(frozen=True)
class Backend:
    """One implementation. Made from a file by `Backend.of_module`, or by hand from a function.

    `options` are the keyword options that `attend` takes, of ``causal`` and ``scale``.
    """

    name: str
    library: str
    attend: Callable[..., Any]
    summary: str = ""
    options: frozenset[str] = frozenset({"causal", "scale"})
    own_reason: Callable[[Workload], str | None] | None = None
    prepare: Callable[..., tuple[Any, Any, Any]] | None = None
    kernel: str | None = None

    @classmethod
    def of_module(cls, name: str, module: ModuleType) -> Backend:
        """The backend that a file defines. Raises ValueError where ``attend`` or ``LIBRARY`` is missing."""
        attend = getattr(module, "attend", None)
        if not callable(attend):
            raise ValueError(
                f"{name}: a backend file must define attend(query, key, value, *, causal, scale)"
            )
        library = getattr(module, "LIBRARY", None)
        if library not in ("numpy", "torch"):
            raise ValueError(f'{name}: LIBRARY must be "numpy" or "torch", got {library!r}')
        return cls(
            name=name,
            library=library,
            attend=attend,
            summary=(inspect.getdoc(module) or "").partition("\n")[0],
            options=_options(name, attend),
            own_reason=getattr(module, "declines", None),
            prepare=getattr(module, "prepare", None),
            kernel=getattr(module, "KERNEL", None),
        )

    def open(self, device: str) -> Library:
        """This backend's array library on `device`. Raises Unavailable."""
        return open_library(self.library, device)

    def declines(self, workload: Workload) -> str | None:
        """Why this backend does not do `workload`, or None. Raises Unavailable for a missing device."""
        reason = self.open(workload.device).declines(workload.dtype)
        if reason:
            return reason
        if workload.causal and "causal" not in self.options:
            return "its attend() takes no causal mask"
        if "scale" not in self.options and not math.isclose(workload.scale, workload.head_dim**-0.5):
            return "its attend() takes no scale; it can only do the default 1/sqrt(head_dim)"
        return self.own_reason(workload) if self.own_reason else None

    def bind(
        self, workload: Workload, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]
    ) -> Callable[[], Any]:
        """A call without arguments that computes `workload` on these NumPy arrays, ready for a clock.

        Conversion, device transfer and `prepare` happen here, once. Raises Declined with the reason.
        """
        reason = self.declines(workload)
        if reason:
            raise Declined(f"{self.name} declines {workload.label}: {reason}")
        library = self.open(workload.device)
        arrays = tuple(library.from_numpy(array, workload.dtype) for array in (q, k, v))
        if self.prepare:
            arrays = self.prepare(workload, *arrays)
        query, key, value = arrays
        options, attend = self.options_of(workload), self.attend
        return lambda: attend(query, key, value, **options)

    def options_of(self, workload: Workload) -> dict[str, Any]:
        """What `attend` is given beside its arrays."""
        given = {"causal": workload.causal, "scale": workload.scale}
        return {name: option for name, option in given.items() if name in self.options}

    def gradients(self, workload: Workload, arrays: tuple[Any, ...], output_gradient: Any) -> tuple[Any, ...]:
        """The output and the gradients of query, key and value, by automatic differentiation through `attend`.

        arrays : query, key, value in this backend's library, (batch, heads, length, dim) to the eye; its
        `prepare` is differentiated through. A gradient is None where none arrived. Raises Declined where this
        backend does not do `workload` or cannot be differentiated.
        """
        reason = self.declines(workload)
        if reason:
            raise Declined(f"{self.name} declines {workload.label}: {reason}")

        def attend(*leaves: Any) -> Any:
            prepared = self.prepare(workload, *leaves) if self.prepare else leaves
            return self.attend(*prepared, **self.options_of(workload))

        return self.open(workload.device).gradients(attend, arrays, output_gradient)


def _options(name: str, attend: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(attend).parameters
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: Python cannot tell which options its attend takes; "
            "wrap it in a function: def attend(query, key, value, *, causal, scale)"
        ) from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return frozenset({"causal", "scale"})
    return frozenset({"causal", "scale"} & set(parameters))


def checked_output(backend: Backend, workload: Workload, output: Any) -> NDArray[Any]:
    """`output` as a NumPy array. Raises ValueError where it is another library's, or
    its shape or its dtype is not the workload's.
    """
    library = backend.open(workload.device)
    arrays = type(library.from_numpy(np.zeros(1, np.float32), "float32"))
    if not isinstance(output, arrays):
        raise ValueError(
            f"{backend.name} returned a {_kind(type(output))}, expected a {_kind(arrays)}, as its LIBRARY says"
        )
    expected = (workload.batch, workload.heads, workload.queries, workload.value_dim)
    shape = tuple(output.shape)
    if shape != expected:
        raise ValueError(f"{backend.name} returned shape {shape}, expected {expected}")
    dtype = library.dtype_of(output)
    if dtype != workload.dtype:
        raise ValueError(f"{backend.name} returned dtype {dtype}, expected {workload.dtype}")
    return library.to_numpy(output)


def checked_gradient(library: Library, name: str, gradient: Any, array: Any) -> NDArray[Any]:
    """The gradient of the array `name`, of `library`, as a NumPy array.

    Raises ValueError where none arrived, or its shape or its dtype is not that of `array`.
    """
    if gradient is None:
        raise ValueError(f"no {name} gradient arrived: the output does not depend on the {name}")
    shape, dtype = tuple(gradient.shape), library.dtype_of(gradient)
    expected = tuple(array.shape), library.dtype_of(array)
    if (shape, dtype) != expected:
        raise ValueError(
            f"the {name} gradient has shape {shape} and dtype {dtype}, expected {expected[0]} and {expected[1]}"
        )
    return library.to_numpy(gradient)


def _kind(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"

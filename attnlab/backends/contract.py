"""What a backend file may define, and how it is read.

A file needs no import from attnlab. It holds

``LIBRARY``
    whose arrays `attend` takes and returns: a name of `attnlab.backends.library.libraries`.
``attend(query, key, value, *, causal, scale)``
    the computation on arrays laid out (batch, heads, length, dim). Each further keyword in its signature is something
    that it supports (`attnlab.backends.keywords`). What it does not name is declined where a workload asks for it, so
    that ``attend(q, k, v)`` is a valid backend.
``block(parameters, heads, *, causal)``, in place of ``attend``
    for what computes a whole multi-head block: from its parameters, arrays of the library by the names of
    `attnlab.workload.inputs.PARAMETERS`, to a function of x and memory (None where x attends to itself) that is timed
    and returns (batch, queries, d_model). ``rotary`` may be among its keywords. Around any ``attend`` attnlab makes the
    block itself (`attnlab.backends.block`).
``declines(workload)``, optional
    None, or why it cannot do a workload: (field, reason), or the reason alone.
``prepare(workload, query, key, value)``, optional
    the arrays in the layout that `attend` wants. It runs outside the clock, but where gradients pass through it, and
    where keys and values are gathered within the call.
``attend_with_log_sum(query, key, value, **asked)``, optional
    output and ln Z, the natural logarithm of the softmax's denominator Σ_j e^{s_ij} + e^{sink}, (batch, heads, queries)
    in float32, in float64 for float64 inputs; -inf where it is empty. It is given what `attend` is given. A file that
    has it may leave out ``attend``: that is then its output.
``KERNEL``, optional
    the operator that must be seen running (``attest``), for a backend that forces one.
``EMPTY_ROWS``, optional
    ``"zeros"`` where a query that sees no key gets the output 0 and gradients 0, as the contract says; by device,
    ``{"cpu": "zeros"}``, where it does not everywhere. Otherwise attnlab writes the zeros, within the call, and
    gradients of such rows are declined.
``ON_REQUEST``, optional
    why it takes part only in runs that name it (or ``all``), in one line of text: set-up that takes long, say.
``MEMORY``, optional
    what a call holds at most: ``{"scores": S, "outputs": O}``, in score matrices and outputs.
``COMPUTES_IN``, optional
    the number format in which it computes, where that is a lower one than its inputs': its answers are held against
    the truth of inputs rounded to that format, and rankings say so.
``SETTINGS`` and ``configure(**settings)``, optional
    settings of its own, ``{"precision": ("f32", "bf16")}``, written out: names with their values, the default first. A
    contender ``name[precision=bf16]`` asks for one. `configure` is called with a value for each, once, when the file
    has been imported and before anything else of it is read, so that it may set ``LIBRARY``, ``KERNEL`` and so on. It
    returns what ``COMPUTES_IN`` would say, or None, and raises ValueError for what cannot be had here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from attnlab.backends.keywords import known_keywords
from attnlab.backends.library import libraries
from attnlab.errors import Declined, Unavailable
from attnlab.workload.number_formats import DTYPES
from attnlab.workload.workload import Workload

#: what a file may hold beside `attend`, `LIBRARY` and `SETTINGS`, and the fields of `Definition` for it
_OPTIONAL = {
    "declines": "own_reason",
    "prepare": "prepare",
    "attend_with_log_sum": "attend_with_log_sum",
    "KERNEL": "kernel",
    "EMPTY_ROWS": "empty_rows",
    "MEMORY": "memory",
    "block": "block",
}


@dataclass(frozen=True)
class Definition:
    """One implementation, as its file defines it.

    `options` are the keywords that `attend` takes, or `block` where it computes whole multi-head blocks; `settings` its
    own settings with the values they have; `mask_form` in which of `keywords.FORMS` it is handed a mask, None for as
    its keywords say.
    """

    name: str
    library: str
    attend: Callable[..., Any]
    summary: str = ""
    options: frozenset[str] = frozenset({"causal", "scale"})
    own_reason: Callable[[Workload], tuple[str, str] | str | None] | None = None
    prepare: Callable[..., tuple[Any, Any, Any]] | None = None
    attend_with_log_sum: Callable[..., tuple[Any, Any]] | None = None
    kernel: str | None = None
    empty_rows: str | Mapping[str, str] | None = None
    memory: Mapping[str, float] | None = None
    block: Callable[..., Callable[[Any, Any], Any]] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    computes_in: str | None = None
    mask_form: str | None = None

    def zeros_empty_rows(self, device: str) -> bool:
        """Whether a query that sees no key gets zeros from it, on `device`, without anybody's help."""
        said = self.empty_rows.get(device) if isinstance(self.empty_rows, Mapping) else self.empty_rows
        return said == "zeros"


def defined(name: str, module: ModuleType, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The fields of `Definition` that a file defines, with these values of all its `settings`.

    Raises ValueError where ``attend`` or ``LIBRARY`` is missing or unknown, Unavailable where it refuses `settings`.
    """
    computes_in = _configured(name, module, settings or {})
    found = {field: getattr(module, one, None) for one, field in _OPTIONAL.items()}
    block, with_log_sum = found["block"], found["attend_with_log_sum"]
    attend = _no_core if block is not None else getattr(module, "attend", None)
    if attend is None and with_log_sum is not None:
        attend = _output_of(with_log_sum)
    if not callable(attend):
        raise ValueError(f"{name}: a backend file must define attend(query, key, value, *, causal, scale)")
    library = getattr(module, "LIBRARY", None)
    if library not in libraries():
        known = " or ".join(f'"{one}"' for one in libraries())
        raise ValueError(f"{name}: LIBRARY must be {known}, got {library!r}")
    return {
        "name": name,
        "library": library,
        "attend": attend,
        "summary": (inspect.getdoc(module) or "").partition("\n")[0],
        "options": _options(name, attend, 3) if block is None else _options(name, block, 2),
        "settings": dict(settings or {}),
        "computes_in": computes_in,
        **found,
    }


def _no_core(*arrays: Any, **options: Any) -> Any:
    raise Declined("it computes whole multi-head blocks; give a block")


def _output_of(attend_with_log_sum: Callable[..., tuple[Any, Any]]) -> Callable[..., Any]:
    """``attend`` of a file that has ``attend_with_log_sum`` alone, with its signature."""

    @functools.wraps(attend_with_log_sum)
    def attend(*arrays: Any, **options: Any) -> Any:
        return attend_with_log_sum(*arrays, **options)[0]

    return attend


def _configured(name: str, module: ModuleType, settings: Mapping[str, str]) -> str | None:
    """Hand the file its settings, where it has any; the number format in which it then computes."""
    computes_in = None
    if settings:
        configure = getattr(module, "configure", None)
        if not callable(configure):
            raise ValueError(f"{name}: a backend file with SETTINGS must define configure(**settings)")
        try:
            computes_in = configure(**settings)
        except ValueError as refused:
            asked = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise Unavailable(f"{name} refuses {asked}: {' '.join(str(refused).split())}") from None
    computes_in = computes_in or getattr(module, "COMPUTES_IN", None)
    if computes_in is not None and computes_in not in DTYPES:
        raise ValueError(f"{name}: it must compute in one of {', '.join(DTYPES)}, got {computes_in!r}")
    return computes_in


def _options(name: str, function: Callable[..., Any], positional: int) -> frozenset[str]:
    """The keywords of a file's function after so many arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: Python cannot tell which options its attend takes; "
            "wrap it in a function: def attend(query, key, value, *, causal, scale)"
        ) from None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return frozenset({"causal", "scale"})
    known = known_keywords()
    named = [
        one for one in parameters[positional:] if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    for one in named:
        if one.name not in known and one.default is one.empty:
            raise ValueError(
                f"{name}: its attend needs {one.name!r}, which is no keyword of attnlab; "
                f"known are {', '.join(sorted(known))}; give it a default"
            )
    return frozenset(one.name for one in named) & known

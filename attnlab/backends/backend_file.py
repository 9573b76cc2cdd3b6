"""A backend from its file: what the file holds, and what of that is read.

A backend file needs no import from attnlab. It holds

``LIBRARY``
    whose arrays `attend` takes and returns: a name of `attnlab.backends.library.library_names`.
``attend(query, key, value, *, causal, scale)``
    the computation on arrays laid out (batch, heads, length, dim). Each further keyword that its signature names is
    something that it supports, see `attnlab.backends.keywords`; what it does not name is declined for it where a
    workload asks for it, so that ``attend(q, k, v)`` is a valid backend.
``block(parameters, heads, *, causal)``, in place of ``attend``
    for what computes a whole multi-head block by itself: from its parameters, arrays of the library by the names of
    `attnlab.problem.block.PARAMETERS`, to a function of x and memory (None where x attends to itself) that is timed
    and returns (batch, queries, d_model). Its further keywords mean what they mean to ``attend``, and ``rotary`` may be
    among them. Around any ``attend`` the harness makes the block itself (`attnlab.backends.block_call`).
``declines(workload)``, optional
    the reason why it cannot do a workload, or None.
``prepare(workload, query, key, value)``, optional
    the arrays in the layout that `attend` wants; runs outside the clock, but where gradients pass through it, and
    where key and value are gathered or cut within the call.
``attend_with_log_sum(query, key, value, **asked)``, optional
    output and ln Z, the natural logarithm of the softmax's denominator Σ_j e^{s_ij} + e^{sink}, (batch, heads, queries)
    in float32, in float64 for float64 inputs; -inf where it is empty. It is given what `attend` is given. Without it
    ln Z, and keys that are cut into parts, are declined.
``KERNEL``, optional
    the operator that must be seen running (``attest``), for a backend that forces one.
``EMPTY_ROWS``, optional
    ``"zeros"`` where a query that sees no key gets the output 0 and gradients 0, as the contract says; by device,
    ``{"cpu": "zeros"}``, where it does not everywhere. Otherwise the harness writes the zeros into the output, within
    the call, and gradients of such rows are declined.
``ON_REQUEST``, optional
    why it takes part only in runs that name it (or ``all``), in one line of text: set-up that takes long, say.
``MEMORY``, optional
    what a call holds at most: ``{"scores": S, "outputs": O}``, in score matrices and outputs.
``COMPUTES_IN``, optional
    the number format in which it computes, where that is a lower one than its inputs': its answers are held against
    the truth of inputs rounded to that format, and whatever ranks it says so.
``PARTS``, optional
    into how many parts, of about equal length, it cuts the keys itself where each part's output is rounded to the
    inputs' format before they are merged, as by a ring of processes: the gate then allows for these roundings too.
``SETTINGS`` and ``configure(**settings)``, optional
    settings of its own, ``{"precision": ("f32", "bf16")}``, written out: names with their values, the first of which is
    the default. A contender ``name[precision=bf16]`` asks for one. `configure` is called with a value for each, once,
    when the file has been imported and before anything else of it is read, so that it may set ``LIBRARY``, ``KERNEL``
    and so on. It returns what ``COMPUTES_IN`` would say, or None, and raises ValueError for what cannot be had here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from attnlab.backends.backend import Backend
from attnlab.backends.keywords import known_keywords
from attnlab.backends.library import library_names
from attnlab.errors import Declined, Unavailable
from attnlab.problem.dtypes import DTYPES

#: arguments of `block` before its keywords: the parameters and the heads
_OF_BLOCK = 2


def backend_of(name: str, module: ModuleType, settings: Mapping[str, str] | None = None) -> Backend:
    """The backend that a file defines, with these values of all its `settings`.

    Raises ValueError where ``attend`` or ``LIBRARY`` is missing or unknown, Unavailable where it refuses `settings`.
    """
    computes_in = _configured(name, module, settings or {})
    block = getattr(module, "block", None)
    attend = getattr(module, "attend", None) if block is None else _no_core
    if not callable(attend):
        raise ValueError(f"{name}: a backend file must define attend(query, key, value, *, causal, scale)")
    library = getattr(module, "LIBRARY", None)
    if library not in library_names():
        known = " or ".join(f'"{one}"' for one in library_names())
        raise ValueError(f"{name}: LIBRARY must be {known}, got {library!r}")
    return Backend(
        name=name,
        library=library,
        attend=attend,
        summary=(inspect.getdoc(module) or "").partition("\n")[0],
        options=_options(name, attend) if block is None else _options(name, block, _OF_BLOCK),
        own_reason=getattr(module, "declines", None),
        prepare=getattr(module, "prepare", None),
        attend_with_log_sum=getattr(module, "attend_with_log_sum", None),
        kernel=getattr(module, "KERNEL", None),
        empty_rows=getattr(module, "EMPTY_ROWS", None),
        memory=getattr(module, "MEMORY", None),
        settings=dict(settings or {}),
        computes_in=computes_in,
        parts=_parts(name, getattr(module, "PARTS", 1)),
        block=block,
    )


def _parts(name: str, said: object) -> int:
    if isinstance(said, bool) or not isinstance(said, int) or said < 1:
        raise ValueError(f"{name}: PARTS must be a whole number from 1 on, got {said!r}")
    return said


def _no_core(*arrays: Any, **options: Any) -> Any:
    raise Declined("it computes whole multi-head blocks; give a block")


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
            said = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise Unavailable(f"{name} refuses {said}: {' '.join(str(refused).split())}") from None
    computes_in = computes_in or getattr(module, "COMPUTES_IN", None)
    if computes_in is not None and computes_in not in DTYPES:
        raise ValueError(f"{name}: it must compute in one of {', '.join(DTYPES)}, got {computes_in!r}")
    return computes_in


def _options(name: str, attend: Callable[..., Any], positional: int = 3) -> frozenset[str]:
    """The keywords of a file's function after so many arguments."""
    try:
        parameters = list(inspect.signature(attend).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: Python cannot tell which options its attend takes; "
            "wrap it in a function: def attend(query, key, value, *, causal, scale)"
        ) from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset({"causal", "scale"})
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [parameter for parameter in parameters[positional:] if parameter.kind in by_keyword]
    known = known_keywords()
    for parameter in named:
        if parameter.name not in known and parameter.default is parameter.empty:
            raise ValueError(
                f"{name}: its attend needs {parameter.name!r}, which nobody gives it; "
                f"known are {', '.join(sorted(known))}; give it a default"
            )
    return frozenset(parameter.name for parameter in named) & known

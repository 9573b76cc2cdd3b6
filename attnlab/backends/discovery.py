"""Backends found by name, and read from their files. Nothing is imported before it is asked for.

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

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab.backends.backend import Backend
from attnlab.backends.importing import begun
from attnlab.backends.keywords import known_keywords
from attnlab.backends.library import library_names
from attnlab.errors import Declined, Unavailable
from attnlab.plain import suggestion
from attnlab.problem.dtypes import DTYPES

_HOME = "attnlab.implementations"
_NAME = re.compile(r"[A-Za-z]\w*")
_ON_REQUEST = re.compile(r"^ON_REQUEST = \"(.+)\"$", re.MULTILINE)
_BLOCK, _ATTEND = (re.compile(rf"^def {name}\b", re.MULTILINE) for name in ("block", "attend"))
#: the name of a backend's own setting, and one of its values
NAME, _VALUE = re.compile(r"[a-z][a-z0-9_]*"), re.compile(r"[^\s,=\[\]]+")
#: arguments of `block` before its keywords: the parameters and the heads
_OF_BLOCK = 2


def backends(folders: Sequence[Path | str] = ()) -> list[str]:
    """Names of all backends: those that come with attnlab and the files in `folders`, sorted.

    A name says that a file is there, not that its library is installed. Raises ValueError for a folder
    that is none, or a file whose name is taken.
    """
    return sorted(_places(folders))


def block_only(name: str, folders: Sequence[Path | str] = ()) -> bool:
    """Whether the backend `name` computes whole multi-head blocks and nothing else, by its text: it is not imported."""
    file = require(name, folders) or _home_file(name)
    text = file.read_text(encoding="utf-8", errors="replace")
    return bool(_BLOCK.search(text)) and not _ATTEND.search(text)


def on_request(name: str, folders: Sequence[Path | str] = ()) -> str | None:
    """Why the backend `name` races only where it is named (its ``ON_REQUEST``), by its text, or None."""
    file = require(name, folders) or _home_file(name)
    found = _ON_REQUEST.search(file.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None


def unasked(folders: Sequence[Path | str] = ()) -> list[str]:
    """The backends that take part where nobody is named: those of cores that do not ask to be named."""
    return [
        name
        for name in backends(folders)
        if on_request(name, folders) is None and not block_only(name, folders)
    ]


def load(name: str, folders: Sequence[Path | str] = (), settings: Mapping[str, str] | None = None) -> Backend:
    """The backend `name`, its file imported now, with these of its own `settings` and the defaults of the others.

    With settings given its file is imported anew, so that what they change holds for this backend alone. Raises
    ValueError for an unknown name (naming the near ones), an unknown setting, a file that fails on import or is
    malformed, and Unavailable where it needs a library that is not installed or refuses its settings.
    """
    file = require(name, folders)
    values = chosen(name, _declared(name, file), settings or {})
    return backend_of(name, _import(name, file, settings or {}), values)


def settings_of(name: str, folders: Sequence[Path | str] = ()) -> dict[str, tuple[str, ...]]:
    """The settings of the backend `name` with their values, the default first; its file is not imported.

    Raises ValueError for an unknown name and for settings that are not declared as they must be.
    """
    return _declared(name, require(name, folders))


def require(name: str, folders: Sequence[Path | str] = ()) -> Path | None:
    """The file of the backend `name` (None for one that comes with attnlab), without importing it.

    Raises ValueError for an unknown name, naming the near ones.
    """
    places = _places(folders)
    if name not in places:
        raise ValueError(f"no backend is called {name!r}; {suggestion(name, sorted(places))}")
    return places[name]


def _declared(name: str, file: Path | None) -> dict[str, tuple[str, ...]]:
    return _declared_in(file or _home_file(name))


def _home_file(name: str) -> Path:
    """The file of a backend that comes with attnlab."""
    folders = map(Path, importlib.import_module(_HOME).__path__)
    places = (place for one in folders for place in (one / f"{name}.py", one / name / "__init__.py"))
    return next(place for place in places if place.is_file())


def _places(folders: Sequence[Path | str]) -> dict[str, Path | None]:
    home = importlib.import_module(_HOME)
    places: dict[str, Path | None] = {
        module.name: None for module in pkgutil.iter_modules(home.__path__) if not module.name.startswith("_")
    }
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"--implementations must name a folder, got {folder}")
        for file in sorted(folder.glob("[!_]*.py")):
            if not _NAME.fullmatch(file.stem):
                raise ValueError(
                    f"{file}: a backend is called by its file's name, which must be letters, digits and _; "
                    "rename the file, or begin its name with _ if it is no backend"
                )
            if places.get(file.stem) == file.resolve():
                continue  # the folder is named twice
            if file.stem in places:
                raise ValueError(f"{file} has the name of another backend, {file.stem}; rename the file")
            places[file.stem] = file.resolve()
    return places


def _import(name: str, file: Path | None, settings: Mapping[str, str]) -> ModuleType:
    said = ",".join(f"{key}={value}" for key, value in sorted(settings.items()))
    suffix = f"[{said}]".replace(".", "_") if said else ""
    before = len(begun)
    try:
        if file is not None:
            return _import_file(f"attnlab_user_backends.{name}{suffix}", file)
        if settings:
            return _import_file(f"{_HOME}.{name}{suffix}", _home_file(name))
        return importlib.import_module(f"{_HOME}.{name}")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "attnlab":
            raise  # a fault of our packaging must never read as "not installed"
        raise Unavailable(f"{name} needs {missing.name or missing}, which is not installed") from None
    except (Exception, SystemExit) as fault:  # a script that exits must not take the program with it
        text = " ".join(str(fault).split())
        if file is None:
            if begun[before:] and isinstance(fault, ImportError | AttributeError | OSError):
                module, mend = begun[-1]
                lacking = f"{module} does not hold what {name} needs ({type(fault).__name__}: {text})"
                raise Unavailable(f"{lacking}; {mend}") from None
            raise
        where = _line_in(file, fault)
        raise ValueError(f"{file.name} fails on import: {type(fault).__name__}: {text}{where}") from None


def _line_in(file: Path, fault: BaseException) -> str:
    """Where in `file` the fault arose; nothing for a syntax error, whose own text says it."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if Path(frame.filename) == file
    ]
    return f" (line {lines[-1]})" if lines else ""


def _import_file(qualified: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(qualified, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module  # dataclasses and torch.compile look their module up by name
    spec.loader.exec_module(module)
    return module


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


def _declared_in(file: Path) -> dict[str, tuple[str, ...]]:
    """The allowed values of each setting that the backend `file` declares, the default first; empty without any.

    Raises ValueError, in one line, for a ``SETTINGS`` that is no such thing; a file that is no Python has none.
    """
    text = file.read_text(encoding="utf-8", errors="replace")
    if "SETTINGS" not in text:
        return {}
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return {}  # its import tells where
    for one in statements:
        targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "SETTINGS" for target in targets):
            return _settings_of(file, getattr(one, "value", None))
    return {}


def chosen(backend: str, known: dict[str, tuple[str, ...]], given: Mapping[str, str]) -> dict[str, str]:
    """A value for each of the `known` settings of `backend`: the one `given`, or its default.

    Raises ValueError, in one line, for a name or a value that is not known.
    """
    for name, value in given.items():
        if name not in known:
            its = ", ".join(f"{one}={'|'.join(values)}" for one, values in known.items())
            raise ValueError(
                f"{backend} has no setting {name!r}; "
                + (f"its own are {its}" if its else "it has none of its own")
            )
        if value not in known[name]:
            raise ValueError(f"{backend}: {name} must be {' or '.join(known[name])}, got {value!r}")
    return {name: given.get(name, values[0]) for name, values in known.items()}


def _settings_of(file: Path, value: ast.expr | None) -> dict[str, tuple[str, ...]]:
    try:
        found = ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, dict) or not all(map(_sound, found, found.values())):
        raise ValueError(
            f'{file.name}: SETTINGS must be written out as {{"name": ("default", "other value"), ...}}: '
            "names of small letters, digits and _, values without blanks, commas, = and brackets"
        )
    return {name: tuple(values) for name, values in found.items()}


def _sound(name: object, values: object) -> bool:
    return (
        isinstance(name, str)
        and NAME.fullmatch(name) is not None
        and isinstance(values, tuple | list)
        and len(values) > 0
        and all(isinstance(one, str) and _VALUE.fullmatch(one) is not None for one in values)
    )

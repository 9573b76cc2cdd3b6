"""Backend files: what a file may define, how it is found by its name, and how it is loaded.

A file needs no import from attnlab. It holds

``LIBRARY``
    the library whose arrays `attend` takes and returns: a name of `attnlab.libraries.library.libraries`.
``attend(query, key, value, *, causal, scale)``
    the computation on arrays of shape (batch, heads, length, dim). Each further keyword in its signature is something
    that it supports (`attnlab.backends.keywords`). A workload that needs another keyword is declined, so
    ``attend(q, k, v)`` is a valid backend.
``block(parameters, heads, *, causal)``, in place of ``attend``
    for a whole multi-head block. It takes the parameters, arrays of the library by the names of
    `attnlab.workload.inputs.PARAMETERS`. It returns a function of x and memory (None if x attends to itself), which is
    timed and returns (batch, queries, d_model). Around any ``attend`` attnlab makes the block itself
    (`attnlab.backends.backend`).
``declines(workload)``, optional
    None, or why it cannot do a workload: (field, reason), or the reason alone.
``prepare(workload, query, key, value)``, optional
    returns the arrays in the layout that `attend` needs. It is not part of the timed call, except if gradients pass
    through it, or if keys and values are gathered within the call.
``attend_with_log_sum(query, key, value, **asked)``, optional
    returns the output and ln Z, the natural logarithm of the softmax's denominator Σ_j e^{s_ij} + e^{sink}, (batch,
    heads, queries) in float32, in float64 for float64 inputs; -inf if the sum is empty. It takes the same arguments as
    `attend`. A file that has it may leave out ``attend``, which then returns its output alone.
``KERNEL``, optional
    the operator that a backend forces. ``attest`` must see this operator run.
``EMPTY_ROWS``, optional
    ``"zeros"`` if a query that sees no key gets the output 0 and gradients 0, as the contract says; by device,
    ``{"cpu": "zeros"}``, if only there. Otherwise attnlab writes the zeros, within the call, and declines gradients of
    such rows.
``ON_REQUEST``, optional
    why it takes part only in runs that name it (or ``all``), in one line. If this line contains "at every shape", few
    of its declarations are tried.
``MEMORY``, optional
    the most memory that a call holds: ``{"scores": S, "outputs": O}``, in sizes of the score matrix and of the output.
``COMPUTES_IN``, optional
    the number format in which it computes, if that is lower than that of its inputs. Its output is then checked against
    the right output for inputs rounded to that format, and rankings say so.
``SETTINGS`` and ``configure(**settings)``, optional
    settings of its own, ``{"precision": ("f32", "bf16")}``, as a literal: names with their values, the default first.
    A contender ``name[precision=bf16]`` chooses one. `configure` is called once with a value for each, after the file
    is imported and before anything else of it is read, so it may set ``LIBRARY``, ``KERNEL`` and so on. It returns the
    value of ``COMPUTES_IN``, or None, and raises ValueError for a value that is not available here.

Names and literals of a file are read without importing it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec

from attnlab.backends.backend import Backend
from attnlab.backends.keywords import PLAIN
from attnlab.errors import Unavailable
from attnlab.libraries.library import imports_begun, libraries
from attnlab.text import suggestion
from attnlab.workload.mask_kinds import Part
from attnlab.workload.number_formats import DTYPES

_HOME = "attnlab.implementations"
#: optional names of a file that are fields of `Backend` under the same names
_OPTIONAL = ("prepare", "attend_with_log_sum", "KERNEL", "EMPTY_ROWS", "MEMORY", "block")
#: the form of the names of `SETTINGS`
SETTING = "[a-z][a-z0-9_]*"
_Name = Annotated[str, msgspec.Meta(pattern=f"^{SETTING}$")]
_Value = Annotated[str, msgspec.Meta(pattern=r"^[^\s,=\[\]]+$")]
_Settings = dict[_Name, Annotated[tuple[_Value, ...], msgspec.Meta(min_length=1)]]
#: marks a value that is not a literal
_COMPUTED = object()


def backends(folders: Sequence[Path | str] = ()) -> list[str]:
    """Names of all backends: those that come with attnlab and the files in `folders`, sorted.

    The library of a backend may be missing. Raises ValueError for a folder that does not exist, and for a file whose
    name is taken.
    """
    return sorted(_files(folders))


def require(name: str, folders: Sequence[Path | str] = ()) -> Path:
    """The file of the backend `name`. Raises ValueError for an unknown name, and suggests similar ones."""
    files = _files(folders)
    if name not in files:
        raise ValueError(f"no backend is called {name!r}; {suggestion(name, sorted(files))}")
    return files[name]


def digest(name: str, folders: Sequence[Path | str] = ()) -> str:
    """16 digits of a hash of the backend's file. Raises ValueError for an unknown name."""
    return hashlib.sha256(require(name, folders).read_bytes()).hexdigest()[:16]


def _written(name: str, folders: Sequence[Path | str]) -> Mapping[str, Any]:
    """The names that the backend's file binds at its top level, with their values if these are literals."""
    file = require(name, folders)
    return _parsed(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _parsed(file: Path, changed: int) -> Mapping[str, Any]:
    try:
        statements = ast.parse(file.read_text(encoding="utf-8", errors="replace")).body
    except SyntaxError:
        return {}  # the import will report the error
    return bound_in(statements)


def bound_in(statements: Sequence[ast.stmt]) -> dict[str, Any]:
    """The names that these statements bind, functions too, with their values if these are literals."""
    found: dict[str, Any] = {}
    for one in statements:
        if isinstance(one, ast.FunctionDef):
            found[one.name] = _COMPUTED
        elif isinstance(one, ast.Assign | ast.AnnAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    try:
                        found[target.id] = ast.literal_eval(one.value or ast.Constant(None))
                    except ValueError:
                        found[target.id] = _COMPUTED
    return found


def block_only(name: str, folders: Sequence[Path | str] = ()) -> bool:
    """Whether the backend `name` computes whole multi-head blocks only."""
    written = _written(name, folders)
    return "block" in written and "attend" not in written


def on_request(name: str, folders: Sequence[Path | str] = ()) -> str | None:
    """Why the backend `name` takes part only in runs that name it (its ``ON_REQUEST``), or None."""
    found = _written(name, folders).get("ON_REQUEST")
    return found if isinstance(found, str) else None


def compiles_often(name: str, folders: Sequence[Path | str] = ()) -> str | None:
    """What `on_request` returns if it contains "at every shape", else None: trying all declarations would take long."""
    why = on_request(name, folders)
    return why if why and "at every shape" in why else None


def library_of(name: str, folders: Sequence[Path | str] = ()) -> type[Any] | None:
    """The class of the library of the backend `name`, without importing either. None if it is unknown."""
    try:
        return libraries().get(str(_written(name, folders).get("LIBRARY")))
    except ValueError:
        return None


def unasked(folders: Sequence[Path | str] = ()) -> list[str]:
    """The backends that take part if none is named: all except those for whole blocks and those on request."""
    return [one for one in backends(folders) if not (on_request(one, folders) or block_only(one, folders))]


def settings_of(name: str, folders: Sequence[Path | str] = ()) -> dict[str, tuple[str, ...]]:
    """The settings of the backend `name` with their values, the default first.

    Raises ValueError for an unknown name and for a malformed declaration.
    """
    try:
        return msgspec.convert(_written(name, folders).get("SETTINGS", {}), _Settings)
    except msgspec.ValidationError:
        raise ValueError(
            f'{name}.py: SETTINGS must be written out as {{"name": ("default", "other value"), ...}}: '
            "names of small letters, digits and _, values without blanks, commas, = and brackets"
        ) from None


def chosen(
    name: str,
    folders: Sequence[Path | str],
    given: Mapping[str, str],
    hint: Callable[[str], str] = lambda setting: "",
) -> dict[str, str]:
    """A value for each setting of the backend `name`: the one `given`, or its default.

    Raises ValueError for an unknown setting, with the `hint` for its name, and for an unknown value.
    """
    known = settings_of(name, folders)
    for one, value in given.items():
        if one not in known:
            its = ", ".join(f"{own}={'|'.join(values)}" for own, values in known.items())
            has = f"its own are {its}" if its else "it has none of its own"
            raise ValueError(f"{name} has no setting {one!r}; {has}{hint(one)}")
        if value not in known[one]:
            raise ValueError(f"{name}: {one} must be {' or '.join(known[one])}, got {value!r}")
    return {one: given.get(one, values[0]) for one, values in known.items()}


def load(name: str, folders: Sequence[Path | str] = (), settings: Mapping[str, str] | None = None) -> Backend:
    """The backend `name`, its file imported now, with these `settings` of its own, and defaults for the others.

    With settings the file is imported again, so that they change this backend alone. Raises ValueError for an unknown
    name (similar ones are suggested), an unknown setting, and a file that fails on import or is malformed. Raises
    Unavailable if the backend needs a library that is not installed, or refuses its settings.
    """
    values = chosen(name, folders, settings or {})
    module = _imported(name, require(name, folders), settings or {})
    computes_in = _configured(name, module, values)
    found = {one.lower(): getattr(module, one, None) for one in _OPTIONAL}
    block, with_log_sum = found["block"], found["attend_with_log_sum"]
    # the `attend` of a file that defines a block is never called
    attend = getattr(module, "attend", None) if block is None else block
    if attend is None and with_log_sum is not None:
        attend = functools.wraps(with_log_sum)(lambda *arrays, **asked: with_log_sum(*arrays, **asked)[0])
    if not callable(attend):
        raise ValueError(f"{name}: a backend file must define attend(query, key, value, *, causal, scale)")
    library = getattr(module, "LIBRARY", None)
    if library not in libraries():
        known = " or ".join(f'"{one}"' for one in libraries())
        raise ValueError(f"{name}: LIBRARY must be {known}, got {library!r}")
    return Backend(
        name=name,
        library=library,
        attend=attend,
        summary=(inspect.getdoc(module) or "").partition("\n")[0],
        options=options_of(name, attend, 3 if block is None else 2),
        settings=values,
        computes_in=computes_in,
        own_reason=getattr(module, "declines", None),
        **found,
    )


def _configured(name: str, module: ModuleType, settings: Mapping[str, str]) -> str | None:
    """Give the file its settings, if it has any. Returns its lower number format for them, or None."""
    computes_in = getattr(module, "COMPUTES_IN", None)
    if settings:
        if not callable(configure := getattr(module, "configure", None)):
            raise ValueError(f"{name}: a backend file with SETTINGS must define configure(**settings)")
        try:
            computes_in = configure(**settings) or getattr(module, "COMPUTES_IN", None)
        except ValueError as refused:
            asked = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise Unavailable(f"{name} refuses {asked}: {' '.join(str(refused).split())}") from None
    if computes_in not in (None, *DTYPES):
        raise ValueError(f"{name}: it must compute in one of {', '.join(DTYPES)}, got {computes_in!r}")
    return computes_in


def options_of(name: str, function: Callable[..., Any], positional: int) -> frozenset[str]:
    """The keywords of a file's function, after its `positional` arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: Python cannot tell which options its attend takes; "
            "wrap it in a function: def attend(query, key, value, *, causal, scale)"
        ) from None
    known = frozenset(PLAIN).union(*(part.keywords for part in Part.kinds.values()))
    named = [
        one for one in parameters[positional:] if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    for one in named:
        if one.name not in known and one.default is one.empty:
            said = f"which is no keyword of attnlab; known are {', '.join(sorted(known))}; give it a default"
            raise ValueError(f"{name}: its attend needs {one.name!r}, {said}")
    any_named = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return known.intersection(one.name for one in named) | ({"causal", "scale"} if any_named else set())


def _files(folders: Sequence[Path | str]) -> dict[str, Path]:
    """The file of every backend, by name."""
    homes = map(Path, importlib.import_module(_HOME).__path__)
    found = {file.stem: file for home in homes for file in home.glob("[!_.]*.py")}
    if isinstance(folders, str | Path):
        raise ValueError(f"folders must be several, as ['{folders}'], got {str(folders)!r}")
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"--implementations must name a folder that is there, got {folder}")
        for file in sorted(one.resolve() for one in folder.glob("[!_.]*.py") if one.is_file()):
            if not re.fullmatch(r"[A-Za-z]\w*", file.stem):
                raise ValueError(
                    f"{file}: a backend is called by its file's name, which must be letters, digits and _; "
                    "rename the file, or begin its name with _ if it is no backend"
                )
            if found.setdefault(file.stem, file) != file:  # equal if the folder is named twice
                raise ValueError(f"{file} has the name of another backend, {file.stem}; rename the file")
    return found


def _imported(name: str, file: Path, settings: Mapping[str, str]) -> ModuleType:
    """The file as a module; imported again if there are settings."""
    own = str(file.parent) in importlib.import_module(_HOME).__path__
    qualified, before = f"{_HOME if own else 'attnlab_user_backends'}.{name}", len(imports_begun)
    if settings:
        asked = ",".join(f"{key}={value}" for key, value in sorted(settings.items()))
        qualified += f"[{asked}]".replace(".", "_")
    try:
        if own and not settings:
            return importlib.import_module(qualified)
        spec = importlib.util.spec_from_file_location(qualified, file)
        assert spec is not None and spec.loader is not None, "a file of Python"
        module = sys.modules[qualified] = importlib.util.module_from_spec(spec)  # for torch.compile
        spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "attnlab":
            raise  # an error in the packaging of attnlab must not be reported as "not installed"
        raise Unavailable(f"{name} needs {missing.name or missing}, which is not installed") from None
    except (Exception, SystemExit) as fault:  # a script that exits must not end this program
        text = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        if own:
            if imports_begun[before:] and isinstance(fault, ImportError | AttributeError | OSError):
                module_name, mend = imports_begun[-1]
                raise Unavailable(f"{module_name} does not hold what {name} needs ({text}); {mend}") from None
            raise
        frames = traceback.extract_tb(fault.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
        where = f" (line {lines[-1]})" if lines else ""  # the text of a syntax error already has the line
        raise ValueError(f"{file.name} fails on import: {text}{where}") from None

"""Backends found by name: the files of a folder, read without being imported, and imported when asked for.

What a file holds is said in `attnlab.backends.contract`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec

from attnlab.backends.backend import Backend
from attnlab.backends.library import imports_begun, libraries
from attnlab.errors import Unavailable
from attnlab.text import suggestion

_HOME = "attnlab.implementations"
#: what a file's `SETTINGS` have to be
SETTING = "[a-z][a-z0-9_]*"
_Name = Annotated[str, msgspec.Meta(pattern=f"^{SETTING}$")]
_Value = Annotated[str, msgspec.Meta(pattern=r"^[^\s,=\[\]]+$")]
_Settings = dict[_Name, Annotated[tuple[_Value, ...], msgspec.Meta(min_length=1)]]
#: where a name is bound to what is not written out
_COMPUTED = object()


def backends(folders: Sequence[Path | str] = ()) -> list[str]:
    """Names of all backends: those that come with attnlab and the files in `folders`, sorted.

    A name says that a file is there, not that its library is installed. Raises ValueError for a folder that is none,
    or a file whose name is taken.
    """
    return sorted(_files(folders))


def require(name: str, folders: Sequence[Path | str] = ()) -> Path:
    """The file of the backend `name`, without importing it. Raises ValueError for an unknown one, naming the near."""
    files = _files(folders)
    if name not in files:
        raise ValueError(f"no backend is called {name!r}; {suggestion(name, sorted(files))}")
    return files[name]


def _written(name: str, folders: Sequence[Path | str]) -> Mapping[str, Any]:
    """What the backend's file binds at its top level, with the values that are written out; it is not imported."""
    file = require(name, folders)
    return _parsed(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _parsed(file: Path, changed: int) -> Mapping[str, Any]:
    try:
        statements = ast.parse(file.read_text(encoding="utf-8", errors="replace")).body
    except SyntaxError:
        return {}  # its import tells where
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
    """Whether the backend `name` computes whole multi-head blocks and nothing else; it is not imported."""
    written = _written(name, folders)
    return "block" in written and "attend" not in written


def on_request(name: str, folders: Sequence[Path | str] = ()) -> str | None:
    """Why the backend `name` races only where it is named (its ``ON_REQUEST``), or None; it is not imported."""
    found = _written(name, folders).get("ON_REQUEST")
    return found if isinstance(found, str) else None


def before_fork(name: str, folders: Sequence[Path | str] = ()) -> tuple[str, ...] | None:
    """The modules to import before processes are forked for the backend `name`, which is not imported itself.

    None where its library is not to be forked, or is not known.
    """
    try:
        kind = libraries().get(str(_written(name, folders).get("LIBRARY")))
    except ValueError:
        return None
    return None if kind is None else kind.before_fork


def unasked(folders: Sequence[Path | str] = ()) -> list[str]:
    """The backends that take part where nobody is named: those of cores that do not ask to be named."""
    return [
        name
        for name in backends(folders)
        if on_request(name, folders) is None and not block_only(name, folders)
    ]


def settings_of(name: str, folders: Sequence[Path | str] = ()) -> dict[str, tuple[str, ...]]:
    """The settings of the backend `name` with their values, the default first; its file is not imported.

    Raises ValueError for an unknown name and for settings that are not declared as they must be.
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

    Raises ValueError, in one line, for a name or a value that is not known; `hint` ends it for a name.
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
    """The backend `name`, its file imported now, with these of its own `settings` and the defaults of the others.

    With settings given its file is imported anew, so that what they change holds for this backend alone. Raises
    ValueError for an unknown name (naming the near ones), an unknown setting, a file that fails on import or is
    malformed, and Unavailable where it needs a library that is not installed or refuses its settings.
    """
    values = chosen(name, folders, settings or {})
    return Backend.of(name, _imported(name, require(name, folders), settings or {}), values)


def _files(folders: Sequence[Path | str]) -> dict[str, Path]:
    """The file of every backend, by name."""
    homes = map(Path, importlib.import_module(_HOME).__path__)
    found = {file.stem: file for home in homes for file in home.glob("[!_]*.py")}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"--implementations must name a folder that is there, got {folder}")
        for file in sorted(one.resolve() for one in folder.glob("[!_]*.py")):
            if not re.fullmatch(r"[A-Za-z]\w*", file.stem):
                raise ValueError(
                    f"{file}: a backend is called by its file's name, which must be letters, digits and _; "
                    "rename the file, or begin its name with _ if it is no backend"
                )
            if found.setdefault(file.stem, file) != file:  # the same where the folder is named twice
                raise ValueError(f"{file} has the name of another backend, {file.stem}; rename the file")
    return found


def _imported(name: str, file: Path, settings: Mapping[str, str]) -> ModuleType:
    """The file, imported; anew where there are settings."""
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
        module = sys.modules[qualified] = importlib.util.module_from_spec(spec)  # torch.compile looks it up
        spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "attnlab":
            raise  # a fault of our packaging must never read as "not installed"
        raise Unavailable(f"{name} needs {missing.name or missing}, which is not installed") from None
    except (Exception, SystemExit) as fault:  # a script that exits must not take the program with it
        text = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        if own:
            if imports_begun[before:] and isinstance(fault, ImportError | AttributeError | OSError):
                module_name, mend = imports_begun[-1]
                raise Unavailable(f"{module_name} does not hold what {name} needs ({text}); {mend}") from None
            raise
        frames = traceback.extract_tb(fault.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
        where = f" (line {lines[-1]})" if lines else ""  # the text of a syntax error says it
        raise ValueError(f"{file.name} fails on import: {text}{where}") from None

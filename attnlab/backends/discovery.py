"""Finding backends: a folder listing and an import. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from attnlab.backends import settings as own
from attnlab.backends.backend import Backend
from attnlab.backends.backend_file import backend_of
from attnlab.backends.importing import begun
from attnlab.errors import Unavailable
from attnlab.plain import suggestion

_HOME = "attnlab.implementations"
_NAME = re.compile(r"[A-Za-z]\w*")
_ON_REQUEST = re.compile(r"^ON_REQUEST = \"(.+)\"$", re.MULTILINE)
_BLOCK, _ATTEND = (re.compile(rf"^def {name}\b", re.MULTILINE) for name in ("block", "attend"))


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
    values = own.chosen(name, _declared(name, file), settings or {})
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
    return own.declared(file or _home_file(name))


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

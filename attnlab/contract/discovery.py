"""Finding backends: a folder listing and an import. Nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from attnlab.contract.backend import Backend
from attnlab.contract.errors import Unavailable
from attnlab.contract.importing import begun

_HOME = "attnlab.implementations"
_NAME = re.compile(r"[A-Za-z]\w*")


def backends(folders: Sequence[Path | str] = ()) -> list[str]:
    """Names of all backends: those that come with attnlab and the files in `folders`, sorted.

    A name says that a file is there, not that its library is installed. Raises ValueError for a folder
    that is none, or a file whose name is taken.
    """
    return sorted(_places(folders))


def load(name: str, folders: Sequence[Path | str] = ()) -> Backend:
    """The backend `name`, its file imported now.

    Raises ValueError for an unknown name (naming the near ones), a file that fails on import or is
    malformed, and Unavailable where it needs a library that is not installed.
    """
    return Backend.of_module(name, _import(name, require(name, folders)))


def require(name: str, folders: Sequence[Path | str] = ()) -> Path | None:
    """The file of the backend `name` (None for one that comes with attnlab), without importing it.

    Raises ValueError for an unknown name, naming the near ones.
    """
    places = _places(folders)
    if name not in places:
        near = difflib.get_close_matches(name, places, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(places))}"
        raise ValueError(f"no backend is called {name!r}; {hint}")
    return places[name]


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


def _import(name: str, file: Path | None) -> ModuleType:
    before = len(begun)
    try:
        if file is None:
            return importlib.import_module(f"{_HOME}.{name}")
        return _import_file(name, file)
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


def _import_file(name: str, file: Path) -> ModuleType:
    qualified = f"attnlab_user_backends.{name}"
    spec = importlib.util.spec_from_file_location(qualified, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module  # dataclasses and torch.compile look their module up by name
    spec.loader.exec_module(module)
    return module

"""Other Python interpreters (``python=``, ``with=``): check one, or make an environment from requirements.

A worker in another interpreter has the libraries of that environment and the measuring code of *this* attnlab, so that
both sides of a race are measured in the same way.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attnlab.environment import cache_folder
from attnlab.errors import Unavailable
from attnlab.processes import Interpreter, without_own
from attnlab.text import one_line

#: the first Python version that attnlab's workers run in, and the one after the last
VERSIONS = ((3, 11), (3, 15))
#: the packages that a worker imports in addition to the library that it measures
NEEDED = ("numpy", "ml_dtypes", "msgspec", "psutil", "packaging", "threadpoolctl", "typing_extensions")
#: seconds that an interpreter has to report its version
_PATIENCE = 60.0
_LOOK = (
    "import importlib.util, json, sys; print(json.dumps([sys.version_info[:3], "
    "[one for one in sys.argv[1:] if importlib.util.find_spec(one) is None]]))"
)
#: code that prints the folders of an interpreter's installed packages
_PACKAGES = "import sys; print(*(one for one in sys.path if one.endswith('-packages')), sep='\\n')"


def interpreter(path: str) -> Interpreter:
    """The interpreter at `path`, or of the virtual environment there, with this attnlab's own code.

    Raises Unavailable for a file that is no interpreter or cannot run here, for a Python version that attnlab does not
    support, and for an interpreter that lacks a package that a worker needs.
    """
    executable = Path.cwd() / Path(path).expanduser()  # not resolved: a link names the environment
    if (executable / "bin" / "python").exists():
        executable = executable / "bin" / "python"
    _require(str(executable))
    return Interpreter(str(executable), (str(own_code()),))


@functools.cache
def _require(executable: str) -> None:
    no_python = f"{executable} is no Python interpreter"
    if not Path(executable).is_file():
        raise Unavailable(f"{no_python}: there is no such file")
    said = _ran([executable, "-c", _LOOK, *NEEDED], _PATIENCE).stdout
    try:
        version, missing = json.loads(said)
        version = tuple(map(int, version))
    except (ValueError, TypeError):
        raise Unavailable(no_python) from None
    shown = ".".join(map(str, version))
    if not VERSIONS[0] <= version < VERSIONS[1]:
        first, last = ".".join(map(str, VERSIONS[0])), f"{VERSIONS[1][0]}.{VERSIONS[1][1] - 1}"
        raise Unavailable(f"{executable} is Python {shown}; attnlab measures in Python {first} to {last}")
    if missing:
        lacks = f"{executable} lacks {', '.join(missing)}, without which nothing can be measured there"
        raise Unavailable(f"{lacks}: {executable} -m pip install {' '.join(missing)}")


def environment_of(requirements: Sequence[str], base: str = sys.executable) -> Interpreter:
    """An environment in which these `requirements` are installed over the packages of `base`.

    venv and pip make it at the first call, and it is kept in the cache folder. pip's own settings decide where packages
    come from. Raises Unavailable, with pip's last line, if that fails.
    """
    home = cache_folder() / "environments"
    said = json.dumps([sorted(requirements), base, sys.version, NEEDED])
    words = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(sorted(requirements))).strip("-")[:60]
    folder = home / f"{words}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
    if not folder.exists():
        made_whole(folder, functools.partial(_install, requirements, base))
    return interpreter(str(folder))


def _install(requirements: Sequence[str], base: str, folder: Path) -> None:
    """Make a virtual environment in `folder`: the requirements, and all other packages of `base` below them."""
    _run([base, "-m", "venv", "--without-pip", str(folder)])
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "below.pth").write_text(_run([base, "-c", _PACKAGES]))  # adds folders to sys.path: see `site`
    # pip keeps the packages that are there already, so that only the requirements differ
    here = ["--python", str(folder / "bin" / "python")]
    _run([base, "-m", "pip", *here, "install", "-q", *requirements])


def _ran(command: Sequence[str], seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises Unavailable if it cannot run, or does not end within `seconds`."""
    how: dict[str, Any] = {"env": without_own(os.environ), "stdin": subprocess.DEVNULL, "errors": "replace"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, **how)
    except (OSError, subprocess.TimeoutExpired) as fault:
        why = fault.strerror if isinstance(fault, OSError) else f"no answer within {seconds:.0f} s"
        raise Unavailable(f"{command[0]} cannot run here: {why}") from None


def _run(command: Sequence[str]) -> str:
    """Run a command and return its output. Raises Unavailable, with the last line of its errors, if it fails."""
    done = _ran(command)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        told = [line for line in lines if line.lower().startswith(("error", "×"))] or lines
        last = one_line(told[-1], 300) if told else f"exit status {done.returncode}"
        raise Unavailable(f"{' '.join(command[1:]).removeprefix('-m ')} failed: {last}")
    return done.stdout


def made_whole(folder: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a new folder, then rename that to `folder`. If this fails, nothing is left of it.

    Raises Unavailable if the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as place:
            fresh = Path(place, "whole")
            fresh.mkdir()
            make(fresh)
            fresh.rename(folder)
    except OSError as fault:
        if not folder.exists():  # else another process has made it in the meantime
            raise Unavailable(
                f"{folder} cannot be made: {fault.strerror or fault}; make room, or set ATTNLAB_CACHE"
            ) from None


@functools.cache
def own_code() -> Path:
    """A folder in which another interpreter finds this attnlab and no other package."""
    import attnlab

    homes: Iterable[Path] = map(Path, attnlab.__path__)
    links = {one.name: one.resolve() for home in homes for one in home.iterdir() if one.name != "__pycache__"}
    for name in ("implementations", "suites"):
        links[name] = Path(next(iter(importlib.import_module(f"attnlab.{name}").__path__))).resolve()
    text = json.dumps({name: str(one) for name, one in sorted(links.items())})
    folder = cache_folder() / f"code-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def link(fresh: Path) -> None:
        (fresh / "attnlab").mkdir()
        for name, one in links.items():
            (fresh / "attnlab" / name).symlink_to(one)

    if not folder.exists():
        made_whole(folder, link)
    return folder

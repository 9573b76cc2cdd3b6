"""Where a contender's process finds its Python, its libraries and its backend file, where that is not here.

`python` names an interpreter, `with` requirements that are installed over this environment's packages (or that
interpreter's), `ref` a state of the git repository that the working folder is in: its backend files and its packages.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab.backends.contender import Contender
from attnlab.environment import cache_folder
from attnlab.errors import Unavailable
from attnlab.interpreters import environment_of, interpreter, made_whole, own_code
from attnlab.processes import Interpreter

#: the name of the working tree as it is, changes that are not committed included
WORKING_TREE = "."
#: checkouts that are kept: the others go, those that were not used for longest first
_KEPT = 20


@dataclass(frozen=True)
class Side:
    """`interpreter` starts the contender's processes, which look for its backend in `folders`."""

    interpreter: Interpreter
    folders: tuple[str, ...]


def side_of(contender: Contender, folders: Sequence[Path | str] = ()) -> Side:
    """Where `contender` runs; environments that it asks for are made where they are not there yet.

    Raises Unavailable, in one line, where that is not to be had.
    """
    there = tuple(str(Path(folder).resolve()) for folder in folders)
    found = Interpreter()
    if contender.requirements:
        base = None if contender.python is None else interpreter(contender.python).executable
        found = environment_of(contender.requirements, base or sys.executable)
    elif contender.python is not None:
        found = interpreter(contender.python)
    if contender.ref is None:
        return Side(found, there)
    top = repository()
    root = top if contender.ref == WORKING_TREE else checkout(top, commit_of(top, contender.ref))
    paths = tuple(str(one) for one in (root, root / "src") if one.is_dir())
    moved = (
        root / Path(one).relative_to(top) if Path(one).is_relative_to(top) else Path(one) for one in there
    )
    # a folder that this state does not have holds no backend either
    there = tuple(str(one) for one in moved if one.is_dir())
    # this attnlab's code comes first: that state may be of attnlab itself
    return Side(Interpreter(found.executable, (*(found.paths or (str(own_code()),)), *paths)), there)


def repository() -> Path:
    """The top of the git repository that the working folder is in. Raises Unavailable where there is none."""
    try:
        return Path(_git("rev-parse", "--show-toplevel")).resolve()
    except Unavailable as fault:
        if "not a git repository" not in str(fault):
            raise
        raise Unavailable("the working folder is in no git repository, where commits are looked up") from None


@functools.cache
def commit_of(top: Path, ref: str) -> str:
    """The commit that `ref` names in the repository at `top`. Raises Unavailable where it names none."""
    try:
        return _git(
            "-C", str(top), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
        )
    except Unavailable:
        raise Unavailable(f"{ref!r} is no commit, branch or tag of {top}") from None


@functools.cache
def checkout(top: Path, commit: str) -> Path:
    """A folder that holds the files of that commit of the repository at `top`; the repository stays as it is."""
    home = cache_folder() / "checkouts"
    folder = home / commit

    def unpack(fresh: Path) -> None:
        command = ["git", "-C", str(top), "archive", "--format=tar", commit]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as packed:
            try:
                with tarfile.open(fileobj=packed.stdout, mode="r|") as files:
                    files.extractall(fresh, filter="data")
            except tarfile.TarError as fault:
                raise Unavailable(f"{commit} of {top} could not be unpacked: {fault}") from None
        if packed.returncode:
            raise Unavailable(f"{commit} of {top} could not be read: git archive failed")

    if not folder.is_dir():
        made_whole(folder, unpack)
    folder.touch()
    for old in sorted(home.glob("[0-9a-f]*"), key=lambda one: one.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, errors="replace")
    except OSError as fault:
        raise Unavailable(f"git cannot run here: {fault.strerror}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"git {words[0]}: {said[-1].removeprefix('fatal: ')}")
    return done.stdout.strip()


def setting_of(text: str) -> tuple[str, str]:
    """The setting of a contender that says to run on the side called `text`.

    A requirement with a version, the path of an interpreter or of a virtual environment, or a state of this git
    repository. Raises ValueError for what no contender can have.
    """
    if "," in text or "[" in text:
        raise ValueError(f"{text!r} names no side: one version of a package without extras, as torch==2.11.0")
    key = "ref"
    if re.search(r"[=<>~!@]=|@ ", text):
        key = "with"
    elif text != WORKING_TREE and (Path(text).is_file() or Path(text, "bin", "python").exists()):
        key = "python"
    return key, text


def require_two(base: tuple[str, str], head: tuple[str, str]) -> None:
    """Raises ValueError where both settings mean one side, or where HEAD is a commit that lacks what is in the tree."""
    if base == head or (base[0] == head[0] == "ref" and _state(base[1]) == _state(head[1])):
        raise ValueError(
            f"BASE and HEAD are the same, {head[1]}: name two versions, {WORKING_TREE} for what is not committed; "
            "`attnlab compare` of a contender with itself tests the machine"
        )
    if head[0] == "ref" and WORKING_TREE not in (base[1], head[1]) and _state(head[1]) == _state("HEAD"):
        changed = _git("diff", "--name-only", "HEAD").splitlines()  # none that git does not know
        if changed:
            raise ValueError(
                f"files of the working tree differ from {head[1]}, as {changed[0]}: commit, or name the tree as it "
                f"is, {WORKING_TREE}"
            )


def _state(ref: str) -> str:
    """The commit that it is; of the working tree, where it differs from its last commit, itself."""
    if ref == WORKING_TREE and _git("status", "--porcelain"):
        return ref
    return commit_of(repository(), "HEAD" if ref == WORKING_TREE else ref)

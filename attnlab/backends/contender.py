"""A contender: a backend with its settings, written ``backend[SETTING=VALUE,...]``, and where its process runs.

=====================================  ======================================================================
``threads=N``                          the number of threads of its library
``pages=huge|default``                 large arrays on huge pages, if the library can
``projection=fused|loop``              how x of a multi-head block is projected (`attnlab.backends.backend`)
``mask=array|none``                    the same mask handed over in another form (`attnlab.backends.keywords`)
``deterministic=1``                    the library's mode in which every call gives the same bits
``slowed=PERCENT``                     waits after every call: a known difference, to test the instrument itself
``python=PATH``                        the interpreter, or the virtual environment, that it runs in
``with=REQUIREMENT[;REQUIREMENT...]``  packages installed over those of this interpreter, or of ``python=``
``ref=COMMIT``                         backend files and packages as they are in a commit of this git repository
``NAME=VALUE`` in capitals             an environment variable
any other name in small letters        a setting of the backend's own (`attnlab.backends.discovery`)
=====================================  ======================================================================

All are fixed when its process starts, because libraries read them once, on import.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import SETTING, chosen, load
from attnlab.backends.keywords import FORMS
from attnlab.environment import cache_folder, read
from attnlab.errors import Unavailable
from attnlab.interpreters import environment_of, interpreter, made_whole, own_code
from attnlab.libraries.library import libraries, thread_variables
from attnlab.processes import Interpreter, without_own
from attnlab.text import suggestion
from attnlab.workload.inputs import PROJECTIONS

_NOTATION = re.compile(r"(?P<backend>[A-Za-z]\w*)(\[(?P<settings>.*)\])?")
_ENTRY = re.compile(r"#\d+$")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
#: whether glibc returns a freed score matrix to the system depends on where in the heap it lies: identical processes
#: differed by a factor of 2.5. So every worker keeps freed memory, unless a setting says otherwise
_KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_ALLOCATOR_PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
#: PyTorch needs it for deterministic matrix products on CUDA
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MOST_THREADS = 4096
#: the name of the working tree as it is, with changes that are not committed
WORKING_TREE = "."
#: the number of checkouts that are kept, the most recently used ones
_KEPT = 20


def percentage(value: str) -> float | None:
    """The number in ``3%`` or ``3``, at most 1000; None for another text."""
    match = re.fullmatch(r"([0-9]+(\.[0-9]+)?)%?", value)
    return float(match[1]) if match and float(match[1]) <= 1000 else None


def _requirements(value: str) -> tuple[str, ...] | None:
    from packaging.requirements import InvalidRequirement, Requirement

    asked = tuple(one.strip() for one in value.split(";"))
    try:
        named = [Requirement(one) for one in asked]
    except InvalidRequirement:
        return None
    return asked if all(one.specifier or one.url for one in named) else None


_THREADS = {str(one): one for one in range(1, _MOST_THREADS + 1)}
#: settings that are not environment variables: what each must be, and a function that reads it (None if it is wrong)
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "threads": (f"a whole number from 1 to {_MOST_THREADS:,}", _THREADS.get),
    "pages": ("huge or default", {"huge": "huge", "default": "default"}.get),
    "slowed": ("a percentage from 0 to 1000", percentage),
    "projection": (f"one of {', '.join(PROJECTIONS)}", dict(zip(PROJECTIONS, PROJECTIONS, strict=True)).get),
    "mask": (f"{' or '.join(FORMS)}", dict(zip(FORMS, FORMS, strict=True)).get),
    "deterministic": ("0 or 1", {"0": False, "1": True}.get),
    "python": ("the path of an interpreter or of a virtual environment", str),
    "with": ("requirements with versions, e.g. torch==2.11.0, ; between them", _requirements),
    "ref": ("a commit, branch or tag, or . for the working tree", str),
}
#: the settings of every contender, in words
_FOR_ALL = f"settings of all contenders are {', '.join(_SETTINGS)} and environment variables in capitals"


@dataclass(frozen=True)
class Contender:
    """A backend with settings; the table above says what they mean, and None is "not set".

    name : unique within a run; used in results. variables : environment variables, as (name, value) pairs. settings :
    the backend's own settings, as (name, value) pairs. deterministic : declined by a library without such a mode; a
    backend that still returns other bits in a second call is wrong. requirements : those of ``with=``.
    """

    name: str
    backend: str
    variables: tuple[tuple[str, str], ...] = ()
    threads: int | None = None
    pages: str | None = None
    slowed: float = 0.0
    settings: tuple[tuple[str, str], ...] = ()
    projection: str | None = None
    mask: str | None = None
    deterministic: bool = False
    python: str | None = None
    requirements: tuple[str, ...] = ()
    ref: str | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether it runs with another Python, other libraries or other files than this process."""
        return self.python is not None or bool(self.requirements) or self.ref is not None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """The contender that `text` names. Raises ValueError for broken notation; see also `require`."""
        backend, written = _taken_apart(text)
        variables, of_backend, own = dict[str, str](), dict[str, str](), dict[str, Any]()
        for setting in written:
            key, _, value = setting.partition("=")
            if not key or not value or "\0" in value:
                raise ValueError(f"{text}: a setting is written NAME=value, got {setting!r}")
            field = "requirements" if key == "with" else key
            if key in variables or key in of_backend or field in own:
                raise ValueError(f"{text}: {key} is given twice")
            if key in _SETTINGS:
                wanted, reader = _SETTINGS[key]
                own[field] = reader(value)
                if own[field] is None:
                    raise ValueError(f"{text}: {key} must be {wanted}, got {value!r}")
            elif _VARIABLE.fullmatch(key):
                variables[key] = value
            elif re.fullmatch(SETTING, key):
                of_backend[key] = value
            else:
                raise ValueError(f"{text}: {key!r} is no setting; {_FOR_ALL}")
        pairs = tuple(variables.items()), tuple(of_backend.items())
        return cls(text.strip(), backend, pairs[0], settings=pairs[1], **own)

    def require(self, folders: Sequence[Path | str] = ()) -> None:
        """Raises ValueError for an unknown backend and for a setting that its file does not declare."""
        own = dict(self.settings)
        chosen(self.backend, folders, own, lambda one: f"; {suggestion(one, _SETTINGS, _FOR_ALL)}")

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of its process, with the `inherited` ones.

        Freed memory is kept, unless the contender or the caller sets a variable of the allocator.
        """
        own = dict(self.variables)
        asked = {} if self.threads is None else dict.fromkeys(thread_variables(), str(self.threads))
        if not any(name.startswith(_ALLOCATOR_PREFIXES) for name in (*own, *inherited)):
            asked |= _KEPT_HEAP
        for library in libraries().values() if self.pages == "huge" else ():
            asked |= library.huge_pages
        if self.deterministic:
            asked |= _DETERMINISTIC
        if self.python is not None or self.requirements:
            inherited = without_own(inherited)
        return {**inherited, **asked, **own}


def _taken_apart(text: str) -> tuple[str, list[str]]:
    """The backend and the settings as they are written. Raises ValueError if `text` is no contender."""
    match = _NOTATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        wanted = "backend or backend[threads=1,VARIABLE=value]"
        raise ValueError(f"a contender is written {wanted}, got {text!r}")
    settings = match["settings"]
    return match["backend"], [] if settings is None else [one.strip() for one in settings.split(",")]


def with_setting(text: str, key: str, value: str) -> str:
    """The notation of the same contender with this setting. Raises ValueError if `text` is no contender."""
    backend, settings = _taken_apart(_ENTRY.sub("", text.strip()))
    kept = [one for one in settings if one and not one.startswith(f"{key}=")]
    return f"{backend}[{','.join([*kept, f'{key}={value}'])}]"


def parse_all(texts: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders that `texts` name. A second entry of the same text is called ``text#2``.

    Raises ValueError for broken notation or an empty list.
    """
    if not texts or isinstance(texts, str):
        raise ValueError(f"expected several contenders, as ['torch_sdpa'], got {texts or 'none'}")
    seen: Counter[str] = Counter()
    contenders = []
    for one in map(Contender.parse, texts):
        seen[one.name] += 1
        again = seen[one.name]
        contenders.append(one if again == 1 else replace(one, name=f"{one.name}#{again}"))
    return tuple(contenders)


def in_this_process(text: str, folders: Sequence[Path | str] = ()) -> Backend:
    """The backend that `text` names, with its own settings, loaded into this process.

    Raises ValueError for a setting that needs a process of its own, and as `require` and `load` do.
    """
    one = Contender.parse(text)
    one.require(folders)
    if one != Contender(one.name, one.backend, settings=one.settings):
        said = f"{text}: it is computed in this process, where only settings of the backend's own can be had"
        raise ValueError(f"{said}; leave out {', '.join(_SETTINGS)} and environment variables")
    return load(one.backend, folders, dict(one.settings))


def huge_pages_refused() -> str | None:
    """Why a program cannot get huge pages from this system, or None."""
    told = read(_HUGE_PAGES)
    if told is None:
        return "this system has no transparent huge pages, or does not show them"
    return "transparent huge pages are switched off (never)" if "[never]" in told else None


# -- where it runs -------------------------------------------------------------------------------------


class Side(NamedTuple):
    """The `interpreter` of a contender's processes, and the `folders` in which they look for its backend."""

    interpreter: Interpreter
    folders: tuple[str, ...]


def side_of(contender: Contender, folders: Sequence[Path | str] = ()) -> Side:
    """Where `contender` runs. Environments and checkouts that it asks for are made if they are missing.

    Raises Unavailable if that fails.
    """
    there = [Path(folder).resolve() for folder in folders]
    found = Interpreter() if contender.python is None else interpreter(contender.python)
    if contender.requirements:
        found = environment_of(contender.requirements, found.executable or sys.executable)
    if contender.ref is not None:
        top = Path(_git("rev-parse", "--show-toplevel")).resolve()
        root = top if contender.ref == WORKING_TREE else _checkout(top, _commit_of(top, contender.ref))
        moved = (root / one.relative_to(top) if one.is_relative_to(top) else one for one in there)
        # a folder that is missing in this commit holds no backend either
        there = [one for one in moved if one.is_dir()]
        # this attnlab's code comes first: the commit may be one of attnlab itself
        paths = [*(found.paths or [own_code()]), *(one for one in (root, root / "src") if one.is_dir())]
        found = Interpreter(found.executable, tuple(map(str, paths)))
    return Side(found, tuple(map(str, there)))


@functools.cache
def _commit_of(top: Path, ref: str) -> str:
    """The commit that `ref` names in the repository at `top`. Raises Unavailable if there is none."""
    try:
        return _git("-C", str(top), "rev-parse", "--verify", "-q", "--end-of-options", f"{ref}^{{commit}}")
    except Unavailable:
        raise Unavailable(f"{ref!r} is no commit, branch or tag of {top}") from None


@functools.cache
def _checkout(top: Path, commit: str) -> Path:
    """A folder with the files of a commit of the repository at `top`. The repository is not changed."""
    home = cache_folder() / "checkouts"
    folder = home / commit

    def unpack(fresh: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="attnlab-") as place:
            packed = Path(place) / "commit.tar"
            _git("-C", str(top), "archive", "--format=tar", f"--output={packed}", commit)
            shutil.unpack_archive(packed, fresh, filter="data")

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
    """The setting by which a contender runs on the side `text` of a gate: ``with``, ``python`` or ``ref``.

    The side is a requirement with a version, the path of an interpreter or of a virtual environment, or a commit of
    this git repository. Raises ValueError for anything else.
    """
    if "," in text or "[" in text:
        raise ValueError(f"{text!r} names no side: a version of a package without extras, e.g. torch==2.11.0")
    if re.search(r"[=<>~!@]=|@ ", text):
        return "with", text
    path = text != WORKING_TREE and (Path(text).is_file() or Path(text, "bin", "python").exists())
    return "python" if path else "ref", text


def require_two(base: tuple[str, str], head: tuple[str, str]) -> None:
    """Raises ValueError if both sides are the same, or if HEAD is a commit that lacks changes of the working tree."""
    if base == head or (base[0] == head[0] == "ref" and _state(base[1]) == _state(head[1])):
        mend = f"name two versions, {WORKING_TREE} for what is not committed"
        machine = "`attnlab compare` of a contender with itself tests the machine"
        raise ValueError(f"BASE and HEAD are the same, {head[1]}: {mend}; {machine}")
    if head[0] == "ref" and WORKING_TREE not in (base[1], head[1]) and _state(head[1]) == _state("HEAD"):
        changed = _git("diff", "--name-only", "HEAD").splitlines()  # tracked files only
        if changed:
            differ = f"files of the working tree differ from {head[1]}, as {changed[0]}"
            raise ValueError(f"{differ}: commit, or name the tree as it is, {WORKING_TREE}")


def _state(ref: str) -> str:
    """The commit that `ref` names; the working tree itself if it differs from its last commit."""
    if ref == WORKING_TREE and _git("status", "--porcelain"):
        return ref
    top = Path(_git("rev-parse", "--show-toplevel")).resolve()
    return _commit_of(top, "HEAD" if ref == WORKING_TREE else ref)

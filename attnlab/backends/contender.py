"""A contender: a backend with its settings, written ``backend[SETTING=VALUE,...]``, and where its process runs.

Settings are environment variables, in capitals, ``threads=N``, ``pages=huge|default``, ``slowed=PERCENT`` and, of a
multi-head block, ``projection=fused|loop``. ``mask=array|none`` hands the same mask over in another form
(`attnlab.backends.keywords`), ``deterministic=1`` asks its library for the same bits in every call. ``python=PATH``
names an interpreter, ``with=REQUIREMENT[;REQUIREMENT...]`` what is installed over this environment's packages (or that
interpreter's), ``ref=COMMIT`` a state of the git repository that the working folder is in: its backend files and its
packages. Any other name in small letters is a setting of the backend's own (`attnlab.backends.discovery`). All of them
are fixed when the contender's process starts, because libraries read them once, on import.
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
from attnlab.environment import cache_folder
from attnlab.errors import Unavailable
from attnlab.interpreters import environment_of, interpreter, made_whole, own_code
from attnlab.libraries.library import libraries, thread_variables
from attnlab.processes import Interpreter, without_own
from attnlab.text import suggestion
from attnlab.workload.inputs import PROJECTIONS

_NOTATION = re.compile(r"(?P<backend>[A-Za-z]\w*)(\[(?P<settings>.*)\])?")
_ENTRY = re.compile(r"#\d+$")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
#: whether glibc returns a freed score matrix to the system depends on how a process's heap came to lie: identical
#: processes differed 2.5 times (docs/decisions/0004). Every worker keeps its heap, unless a setting says otherwise.
_KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_ALLOCATOR_PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
#: without which PyTorch refuses products on CUDA when it is to be deterministic
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MOST_THREADS = 4096
#: the name of the working tree as it is, changes that are not committed included
WORKING_TREE = "."
#: checkouts that are kept: the others go, those that were not used for longest first
_KEPT = 20


def _percent(value: str) -> float | None:
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
#: settings that are no environment variables: what they have to be, and what reads them, None where they are not that
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "threads": (f"a whole number from 1 to {_MOST_THREADS:,}", _THREADS.get),
    "pages": ("huge or default", {"huge": "huge", "default": "default"}.get),
    "slowed": ("a percentage from 0 to 1000", _percent),
    "projection": (f"one of {', '.join(PROJECTIONS)}", dict(zip(PROJECTIONS, PROJECTIONS, strict=True)).get),
    "mask": (f"{' or '.join(FORMS)}", dict(zip(FORMS, FORMS, strict=True)).get),
    "deterministic": ("0 or 1", {"0": False, "1": True}.get),
    "python": ("the path of an interpreter or of a virtual environment", str),
    "with": ("requirements with versions, as torch==2.11.0, ; between them", _requirements),
    "ref": ("a commit, branch or tag, or . for the working tree", str),
}
#: what may be set of any contender, in words
_FOR_ALL = f"settings of all contenders are {', '.join(_SETTINGS)} and environment variables in capitals"


@dataclass(frozen=True)
class Contender:
    """`name` is what results are filed under, unique within a run; `variables` are (name, value) pairs.

    `settings` are (name, value) pairs of the backend's own. `pages` "huge" takes large arrays on huge pages, where
    the library can. `slowed` waits after every call for so much per cent of its time: a difference that is known, for
    tests of the instrument itself. `projection` is how x of a multi-head block is projected
    (`attnlab.backends.block`), None for as it comes, `mask` the form in which a mask is handed over, None for as the
    backend's keywords say. `deterministic` is declined by a library that has no such mode, and a backend that then
    gives other bits in a second call is wrong. `python`, `requirements` and `ref` say where it runs, None for here.
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
        """Whether it runs with another Python, other libraries or another state of its files than are here."""
        return self.python is not None or bool(self.requirements) or self.ref is not None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """The contender that `text` names. Raises ValueError where the notation is broken; see also `require`."""
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
        """Raises ValueError, in one line, for an unknown backend and for a setting that its file does not declare."""
        own = dict(self.settings)
        chosen(self.backend, folders, own, lambda one: f"; {suggestion(one, _SETTINGS, _FOR_ALL)}")

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that its process is started with, the `inherited` ones included.

        An allocator setting of the contender's or of the caller's own replaces the kept heap.
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
    """The backend and the settings as they are written. Raises ValueError where `text` names no contender."""
    match = _NOTATION.fullmatch(text.strip())
    if match is None:
        wanted = "backend or backend[threads=1,VARIABLE=value]"
        raise ValueError(f"a contender is written {wanted}, got {text!r}")
    settings = match["settings"]
    return match["backend"], [] if settings is None else [one.strip() for one in settings.split(",")]


def with_setting(text: str, key: str, value: str) -> str:
    """The notation of the same contender with this setting. Raises ValueError where `text` names no contender."""
    backend, settings = _taken_apart(_ENTRY.sub("", text.strip()))
    kept = [one for one in settings if one and not one.startswith(f"{key}=")]
    return f"{backend}[{','.join([*kept, f'{key}={value}'])}]"


def parse_all(texts: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders that `texts` name; a second entry of the same text is called ``text#2``.

    Raises ValueError for broken notation or an empty list.
    """
    if not texts:
        raise ValueError("at least one contender is needed, got none")
    seen: Counter[str] = Counter()
    contenders = []
    for one in map(Contender.parse, texts):
        seen[one.name] += 1
        again = seen[one.name]
        contenders.append(one if again == 1 else replace(one, name=f"{one.name}#{again}"))
    return tuple(contenders)


def in_this_process(text: str, folders: Sequence[Path | str] = ()) -> Backend:
    """The backend that `text` names, with its own settings.

    Raises ValueError for a setting that only a process of its own can have, and as `require` and `load` do.
    """
    one = Contender.parse(text)
    one.require(folders)
    if one != Contender(one.name, one.backend, settings=one.settings):
        raise ValueError(
            f"{text}: it is computed in this process, where only settings of the backend's own can be had; "
            f"leave out {', '.join(_SETTINGS)} and environment variables"
        )
    return load(one.backend, folders, dict(one.settings))


def huge_pages_refused() -> str | None:
    """Why this system gives no huge pages to those who ask, or None."""
    try:
        given = _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "this system has no transparent huge pages, or does not show them"
    return "transparent huge pages are switched off (never)" if given == "never" else None


# -- where it runs -------------------------------------------------------------------------------------


class Side(NamedTuple):
    """`interpreter` starts the contender's processes, which look for its backend in `folders`."""

    interpreter: Interpreter
    folders: tuple[str, ...]


def side_of(contender: Contender, folders: Sequence[Path | str] = ()) -> Side:
    """Where `contender` runs; environments that it asks for are made where they are not there yet.

    Raises Unavailable, in one line, where that is not to be had.
    """
    there = [Path(folder).resolve() for folder in folders]
    found = Interpreter() if contender.python is None else interpreter(contender.python)
    if contender.requirements:
        found = environment_of(contender.requirements, found.executable or sys.executable)
    if contender.ref is not None:
        top = _repository()
        root = top if contender.ref == WORKING_TREE else _checkout(top, _commit_of(top, contender.ref))
        moved = (root / one.relative_to(top) if one.is_relative_to(top) else one for one in there)
        # a folder that this state does not have holds no backend either
        there = [one for one in moved if one.is_dir()]
        # this attnlab's code comes first: that state may be of attnlab itself
        paths = [*(found.paths or [own_code()]), *(one for one in (root, root / "src") if one.is_dir())]
        found = Interpreter(found.executable, tuple(map(str, paths)))
    return Side(found, tuple(map(str, there)))


def _repository() -> Path:
    """The top of the git repository that the working folder is in. Raises Unavailable where there is none."""
    try:
        return Path(_git("rev-parse", "--show-toplevel")).resolve()
    except Unavailable as fault:
        if "not a git repository" not in str(fault):
            raise
        raise Unavailable("the working folder is in no git repository, where commits are looked up") from None


@functools.cache
def _commit_of(top: Path, ref: str) -> str:
    """The commit that `ref` names in the repository at `top`. Raises Unavailable where it names none."""
    try:
        return _git("-C", str(top), "rev-parse", "--verify", "-q", "--end-of-options", f"{ref}^{{commit}}")
    except Unavailable:
        raise Unavailable(f"{ref!r} is no commit, branch or tag of {top}") from None


@functools.cache
def _checkout(top: Path, commit: str) -> Path:
    """A folder that holds the files of that commit of the repository at `top`; the repository stays as it is."""
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
    """The setting of a contender that says to run on the side called `text`.

    A requirement with a version, the path of an interpreter or of a virtual environment, or a state of this git
    repository. Raises ValueError for what no contender can have.
    """
    if "," in text or "[" in text:
        raise ValueError(f"{text!r} names no side: one version of a package without extras, as torch==2.11.0")
    if re.search(r"[=<>~!@]=|@ ", text):
        return "with", text
    path = text != WORKING_TREE and (Path(text).is_file() or Path(text, "bin", "python").exists())
    return "python" if path else "ref", text


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
    return _commit_of(_repository(), "HEAD" if ref == WORKING_TREE else ref)

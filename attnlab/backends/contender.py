"""A contender: a backend with its settings, written ``backend[SETTING=VALUE,...]``.

Settings are environment variables, in capitals, ``threads=N``, ``pages=huge|default``, ``slowed=PERCENT`` and, of a
multi-head block, ``projection=fused|loop``. ``mask=array|none`` hands the same mask over in another form
(`attnlab.backends.keywords`), ``deterministic=1`` asks its library for the same bits in every call. ``python=PATH``,
``with=REQUIREMENT[;REQUIREMENT...]`` and ``ref=COMMIT`` say where its process finds Python, libraries and its file
(`attnlab.backends.side`). Any other name in small letters is a setting of the backend's own
(`attnlab.backends.discovery`). All of them are fixed when the contender's process starts, because libraries read them
once, on import.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import SETTING, chosen, load
from attnlab.backends.keywords import FORMS
from attnlab.backends.library import huge_page_variables, thread_variables
from attnlab.processes import without_own
from attnlab.text import suggestion
from attnlab.workload.inputs import PROJECTIONS

_NOTATION = re.compile(r"(?P<backend>[A-Za-z]\w*)(\[(?P<settings>.*)\])?")
_NOTATION_SAID = "a contender is written backend or backend[threads=1,VARIABLE=value], got {!r}"
_ENTRY = re.compile(r"#\d+$")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
#: whether glibc returns a freed score matrix to the system depends on how a process's heap came to lie: identical
#: processes differed 2.5 times (docs/decisions/0004). Every worker keeps its heap, unless a setting says otherwise.
_KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_MOST_THREADS = 4096
#: without which PyTorch refuses products on CUDA when it is to be deterministic
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ALLOCATOR_PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def _percent(value: str) -> float | None:
    try:
        percent = float(value.removesuffix("%"))
    except ValueError:
        return None
    return percent if 0 <= percent <= 1000 else None


def _requirements(value: str) -> tuple[str, ...] | None:
    from packaging.requirements import InvalidRequirement, Requirement

    asked = tuple(one.strip() for one in value.split(";"))
    try:
        named = [Requirement(one) for one in asked]
    except InvalidRequirement:
        return None
    return asked if all(one.specifier or one.url for one in named) else None


#: settings that are no environment variables: what they have to be, and what reads them, None where they are not that
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "threads": (
        f"a whole number from 1 to {_MOST_THREADS:,}",
        {str(one): one for one in range(1, _MOST_THREADS + 1)}.get,
    ),
    "pages": ("huge or default", {"huge": "huge", "default": "default"}.get),
    "slowed": ("a percentage from 0 to 1000", _percent),
    "projection": (f"one of {', '.join(PROJECTIONS)}", {one: one for one in PROJECTIONS}.get),
    "mask": (f"{' or '.join(FORMS)}", {one: one for one in FORMS}.get),
    "deterministic": ("0 or 1", {"0": False, "1": True}.get),
    "python": ("the path of an interpreter or of a virtual environment", str),
    "with": ("requirements with versions, as torch==2.11.0, ; between them", _requirements),
    "ref": ("a commit, branch or tag, or . for the working tree", str),
}
#: what may be set of any contender, in words
_FOR_ALL = f"settings of all contenders are {', '.join(_SETTINGS)} and environment variables in capitals"


def with_setting(text: str, key: str, value: str) -> str:
    """The notation of the same contender with this setting. Raises ValueError where `text` names no contender."""
    match = _NOTATION.fullmatch(_ENTRY.sub("", text.strip()))
    if match is None:
        raise ValueError(_NOTATION_SAID.format(text))
    settings = (one.strip() for one in (match["settings"] or "").split(","))
    kept = [one for one in settings if one and not one.startswith(f"{key}=")]
    return f"{match['backend']}[{','.join([*kept, f'{key}={value}'])}]"


def huge_pages_refused() -> str | None:
    """Why this system gives no huge pages to those who ask, or None."""
    try:
        chosen = _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return "this system has no transparent huge pages, or does not show them"
    return "transparent huge pages are switched off (never)" if chosen == "never" else None


@dataclass(frozen=True)
class Contender:
    """`name` is what results are filed under, unique within a run; `variables` are (name, value) pairs.

    `settings` are (name, value) pairs of the backend's own. `pages` "huge" takes large arrays on huge pages, where
    the library can. `slowed` waits after every call for so much per cent of its time: a difference that is known, for
    tests of the instrument itself. `projection` is how x of a multi-head block is projected
    (`attnlab.backends.backend`), None for as it comes, `mask` the form in which a mask is handed over, None for as the
    backend's keywords say. `deterministic` is declined by a library that has no such mode, and whoever then gives other
    bits in a second call is wrong. `python`, `requirements` and `ref` say where it runs, None or
    nothing for here (`attnlab.backends.side`).
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
        match = _NOTATION.fullmatch(text.strip())
        if not match:
            raise ValueError(_NOTATION_SAID.format(text))
        variables: list[tuple[str, str]] = []
        of_backend: list[tuple[str, str]] = []
        own: dict[str, Any] = {}
        given: set[str] = set()
        for setting in (match["settings"] or "").split(",") if match["settings"] is not None else ():
            key, equals, value = setting.strip().partition("=")
            if not equals or not key or not value or "\0" in value:
                raise ValueError(f"{text}: a setting is written NAME=value, got {setting.strip()!r}")
            if key in given:
                raise ValueError(f"{text}: {key} is given twice")
            given.add(key)
            if key in _SETTINGS:
                wanted, reader = _SETTINGS[key]
                field = {"with": "requirements"}.get(key, key)
                own[field] = reader(value)
                if own[field] is None:
                    raise ValueError(f"{text}: {key} must be {wanted}, got {value!r}")
            elif _VARIABLE.fullmatch(key):
                variables.append((key, value))
            elif re.fullmatch(SETTING, key):
                of_backend.append((key, value))
            else:
                raise ValueError(f"{text}: {key!r} is no setting; {_FOR_ALL}")
        return cls(text.strip(), match["backend"], tuple(variables), settings=tuple(of_backend), **own)

    def require(self, folders: Sequence[Path | str] = ()) -> None:
        """Raises ValueError, in one line, for an unknown backend and for a setting that its file does not declare."""
        chosen(
            self.backend,
            folders,
            dict(self.settings),
            hint=lambda one: f"; {suggestion(one, _SETTINGS, _FOR_ALL)}",
        )

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that its process is started with, the `inherited` ones included.

        An allocator setting of the contender's or of the caller's own replaces the kept heap.
        """
        own = dict(self.variables)
        chosen = any(name.startswith(_ALLOCATOR_PREFIXES) for name in (*own, *inherited))
        threads = {} if self.threads is None else dict.fromkeys(thread_variables(), str(self.threads))
        asked = huge_page_variables() if self.pages == "huge" else {}
        if self.deterministic:
            asked = {**asked, **_DETERMINISTIC}
        if self.python is not None or self.requirements:
            inherited = without_own(inherited)
        return {**inherited, **({} if chosen else _KEPT_HEAP), **threads, **asked, **own}


def parse_all(texts: Sequence[str]) -> tuple[Contender, ...]:
    """The contenders that `texts` name; a second entry of the same text is called ``text#2``.

    Raises ValueError for broken notation or an empty list.
    """
    if not texts:
        raise ValueError("at least one contender is needed, got none")
    seen: Counter[str] = Counter()
    contenders = []
    for text in texts:
        one = Contender.parse(text)
        seen[one.name] += 1
        if seen[one.name] > 1:
            one = replace(one, name=f"{one.name}#{seen[one.name]}")
        contenders.append(one)
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

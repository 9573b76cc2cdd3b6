"""A contender: a backend with its settings, written ``backend[SETTING=VALUE,...]``.

Settings are environment variables, in capitals, and ``threads=N``. They are fixed when the contender's
process starts, because libraries read them once, on import.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.contract.library import thread_variables

_NOTATION = re.compile(r"(?P<backend>[A-Za-z]\w*)(\[(?P<settings>.*)\])?")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
#: whether glibc returns a freed score matrix to the system depends on how a process's heap came to lie: identical
#: processes differed 2.5 times (docs/decisions/0004). Every worker keeps its heap, unless a setting says otherwise.
_KEPT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_ALLOCATOR_PREFIXES = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@dataclass(frozen=True)
class Contender:
    """`name` is what results are filed under, unique within a run; `variables` are (name, value) pairs."""

    name: str
    backend: str
    variables: tuple[tuple[str, str], ...] = ()
    threads: int | None = None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """The contender that `text` names. Raises ValueError where the notation is broken."""
        match = _NOTATION.fullmatch(text.strip())
        if not match:
            raise ValueError(
                f"a contender is written backend or backend[threads=1,VARIABLE=value], got {text!r}"
            )
        variables: list[tuple[str, str]] = []
        threads = None
        given: set[str] = set()
        for setting in (match["settings"] or "").split(",") if match["settings"] is not None else ():
            key, equals, value = setting.strip().partition("=")
            if not equals or not key or not value or "\0" in value:
                raise ValueError(f"{text}: a setting is written NAME=value, got {setting.strip()!r}")
            if key in given:
                raise ValueError(f"{text}: {key} is given twice")
            given.add(key)
            if key == "threads":
                if not value.isdecimal() or int(value) < 1:
                    raise ValueError(f"{text}: threads must be a whole number of at least 1, got {value!r}")
                threads = int(value)
            elif _VARIABLE.fullmatch(key):
                variables.append((key, value))
            else:
                raise ValueError(
                    f"{text}: unknown setting {key!r}; settings are threads and "
                    "environment variables in capitals"
                )
        return cls(text.strip(), match["backend"], tuple(variables), threads)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that its process is started with, the `inherited` ones included.

        An allocator setting of the contender's or of the caller's own replaces the kept heap.
        """
        own = dict(self.variables)
        chosen = any(name.startswith(_ALLOCATOR_PREFIXES) for name in (*own, *inherited))
        threads = {} if self.threads is None else dict.fromkeys(thread_variables(), str(self.threads))
        return {**inherited, **({} if chosen else _KEPT_HEAP), **threads, **own}


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
            one = Contender(f"{one.name}#{seen[one.name]}", one.backend, one.variables, one.threads)
        contenders.append(one)
    return tuple(contenders)

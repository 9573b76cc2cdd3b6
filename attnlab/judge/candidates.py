"""A candidate is a file in one of three forms, recognised by parsing it; nothing of it is run here.

``backend``
    a file of attnlab: it names its ``LIBRARY`` and defines ``attend`` (`attnlab.backends.discovery`).
``function``
    one public function of q, k and v, which may take the keywords of attnlab's contract.
``model``
    KernelBench's form: a class ``ModelNew``, made without arguments, whose ``forward`` takes q, k and v.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from attnlab.backends.discovery import library_of, require
from attnlab.libraries.library import libraries

BACKEND, FUNCTION, MODEL, KNOWN = "backend", "function", "model", "known"
#: bytes of a file, at most
MOST_BYTES = 2**20
_Q, _K, _V = {"q", "query", "Q"}, {"k", "key", "K"}, {"v", "value", "V"}
_FORMS = (
    "expected a backend (LIBRARY and attend), one public function of q, k and v, or a class ModelNew; "
    "see docs/judge.md"
)


@dataclass(frozen=True)
class Candidate:
    """What is judged, as plain data.

    name : what records call it. form : see above, or ``known`` for a backend that comes with attnlab. entry : the name
    of its function, class or backend. library : whose arrays it takes. digest : of its text, SHA-256.
    """

    name: str
    form: str
    entry: str
    library: str
    source: str = ""

    @property
    def digest(self) -> str:
        """Of the text; files with one digest are one candidate."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


def read_candidate(path: Path | str) -> Candidate:
    """The candidate in a file. Raises ValueError, in one line, for a file that holds none."""
    file = Path(path)
    try:
        if file.is_dir():
            raise ValueError(f"{file}: expected a Python file, got a folder; name its files, as {file}/*.py")
        if not file.is_file():
            raise ValueError(f"{file}: expected a Python file, got nothing that can be read there")
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as fault:
        raise ValueError(f"{file}: expected a Python file, got {fault.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{file}: expected at most {MOST_BYTES} bytes, got more; shorten it")
    try:
        source = data.decode("utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line = getattr(fault, "lineno", None)
        where = f" (line {line})" if line else ""
        raise ValueError(f"{file}: expected Python, got {type(fault).__name__}{where}; mend it") from None
    form, entry = _form(file, tree)
    return Candidate(str(file), form, entry, _library(file, tree, form), source)


def known_candidate(name: str) -> Candidate:
    """A backend that comes with attnlab, such as the reference. Raises ValueError for an unknown name."""
    source, library = require(name).read_text(encoding="utf-8"), library_of(name)
    if library is None:
        raise ValueError(f"the reference {name} names no library; take another")
    return Candidate(name, KNOWN, name, library.name, source)


def _form(file: Path, tree: ast.Module) -> tuple[str, str]:
    """The one form of the file, and the name of what is called. Raises ValueError where there is none, or two."""
    assigned = {
        target.id
        for one in tree.body
        if isinstance(one, ast.Assign | ast.AnnAssign)
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        if isinstance(target, ast.Name)
    }
    functions = [
        one.name
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and _takes_qkv(one)
    ]
    models = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "ModelNew"]
    backend = "LIBRARY" in assigned
    if backend and models:
        raise ValueError(f"{file}: {_FORMS}; got LIBRARY and ModelNew: keep one form")
    if backend:
        return BACKEND, "attend"
    if models:
        return MODEL, "ModelNew"
    if "attend" in functions:
        return FUNCTION, "attend"
    if len(functions) > 1:
        raise ValueError(
            f"{file}: expected one public function of q, k and v, got {', '.join(functions)}; "
            "begin the names of the others with _"
        )
    if not functions:
        raise ValueError(f"{file}: {_FORMS}; got none of them")
    return FUNCTION, functions[0]


def _takes_qkv(function: ast.FunctionDef) -> bool:
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)][:3]
    return len(names) == 3 and all(name in known for name, known in zip(names, (_Q, _K, _V), strict=True))


def _library(file: Path, tree: ast.Module, form: str) -> str:
    """The library whose arrays it takes: what a backend names, else by what it imports. Raises ValueError."""
    imported = {
        name.partition(".")[0]
        for one in ast.walk(tree)
        if isinstance(one, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in one.names] if isinstance(one, ast.Import) else [one.module or ""]
        )
    }
    if "triton" in imported:
        raise ValueError(
            f"{file}: expected a kernel for the CPU, got one for CUDA (triton): no device is judged"
        )
    if form == BACKEND:
        for one in tree.body:
            if isinstance(one, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == "LIBRARY" for target in one.targets
            ):
                named = one.value.value if isinstance(one.value, ast.Constant) else None
                if named in libraries():
                    return str(named)
        raise ValueError(f"{file}: expected LIBRARY to be one of {', '.join(libraries())}, written out")
    return "numpy" if form == FUNCTION and "torch" not in imported else "torch"

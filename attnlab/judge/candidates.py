"""A candidate is a file in one of three forms, recognised by parsing it; nothing of it is run here.

``backend``
    a file of attnlab: it names its ``LIBRARY`` and defines ``attend`` (`attnlab.backends.discovery`).
``function``
    one public function of q, k and v, which may take the keywords of attnlab's contract.
``ModelNew``
    KernelBench's form: a class ``ModelNew``, whose ``forward`` takes q, k and v, or what the reference asks for.
``Model``
    KernelBench's question: a class ``Model``, and functions ``get_inputs`` and ``get_init_inputs``. It is no candidate.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnlab.backends.discovery import bound_in
from attnlab.libraries.library import libraries
from attnlab.text import read_text

#: a form that asks, and bytes of a file, at most
REFERENCE, MOST_BYTES = "Model", 100_000
_QKV = ["q", "k", "v"], ["query", "key", "value"], ["Q", "K", "V"]
_FORMS = "expected LIBRARY and attend, one public function of q, k and v, or ModelNew; see docs/judge.md"


@dataclass(frozen=True)
class Candidate:
    """What is judged, as plain data.

    name : what records call it. form : see above. entry : the name of its function or class. library : whose arrays it
    takes. device : "cuda" where it can run there only.
    """

    name: str
    form: str
    entry: str
    library: str
    source: str = ""
    device: str = "cpu"

    @property
    def digest(self) -> str:
        """SHA-256 of the text; files with one digest are one candidate."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


def read_candidate(path: Path | str) -> Candidate:
    """The candidate in a file. Raises ValueError, in one line, for a file that holds none."""
    file = Path(path)
    try:
        if not file.is_file():
            found = f"a folder; name its files, as {file}/*.py" if file.is_dir() else "nothing there"
            raise ValueError(f"expected a Python file, got {found}")
        source = read_text(file, MOST_BYTES)
        tree = ast.parse(source)
    except OSError as fault:
        raise ValueError(f"{file}: expected a Python file, got {fault.strerror}") from None
    except (SyntaxError, UnicodeDecodeError, RecursionError, MemoryError) as fault:
        line = getattr(fault, "lineno", None)
        where = f" (line {line})" if line else ""
        raise ValueError(f"{file}: expected Python, got {type(fault).__name__}{where}; correct it") from None
    except ValueError as fault:
        raise ValueError(f"{file}: {fault}") from None
    device = "cuda" if "triton" in _imported(tree.body) else "cpu"
    return Candidate(str(file), *_form(file, tree), source, device)


def _form(file: Path, tree: ast.Module) -> tuple[str, str, str]:
    """The one form of the file, what is called, and the library whose arrays that takes. Raises ValueError."""
    bound = bound_in(tree.body)
    functions = []  # public ones, whose first parameters are query, key and value
    for one in tree.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            first = [each.arg for each in (*one.args.posonlyargs, *one.args.args)][:3]
            functions += [one.name] if first in _QKV else []
    classes = {one.name for one in tree.body if isinstance(one, ast.ClassDef)}
    if "LIBRARY" in bound and "ModelNew" in classes:
        wrong = f"{_FORMS}; got LIBRARY and ModelNew: keep one form"
    elif "LIBRARY" in bound:
        if bound["LIBRARY"] in libraries():
            return "backend", "attend", bound["LIBRARY"]
        wrong = f"expected LIBRARY to be one of {', '.join(libraries())}, written out"
    elif "ModelNew" in classes:
        return "ModelNew", "ModelNew", "torch"
    elif "Model" in classes and {"get_inputs", "get_init_inputs"} <= bound.keys():
        return REFERENCE, "Model", "torch"
    elif not functions:
        wrong = f"{_FORMS}; got none of them"
    elif len(functions) > 1 and "attend" not in functions:
        names = ", ".join(functions)
        wrong = f"expected one public function of q, k and v, got {names}; call one of them attend"
    else:
        name = "attend" if "attend" in functions else functions[0]
        is_torch = "torch" in _imported(ast.walk(tree)) or "triton" in _imported(tree.body)
        return "function", name, "torch" if is_torch else "numpy"
    raise ValueError(f"{file}: {wrong}")


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The top packages that these import."""
    found = set[str]()
    for one in nodes:
        if isinstance(one, ast.ImportFrom):
            found.add((one.module or "").partition(".")[0])
        elif isinstance(one, ast.Import):
            found |= {name.name.partition(".")[0] for name in one.names}
    return found

"""A candidate is a file in one of three forms. The file is parsed to find its form; none of its code runs here.

``backend``
    a backend file of attnlab: it has ``LIBRARY`` and defines ``attend`` (`attnlab.backends.discovery`).
``function``
    one public function of q, k and v. It may take the keywords of attnlab's contract.
``ModelNew``
    an answer to KernelBench: a class ``ModelNew``. Its ``forward`` takes q, k and v, or the inputs of the reference.
``Model``
    a problem of KernelBench: a class ``Model``, functions ``get_inputs`` and ``get_init_inputs``. Only a reference.
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

#: the form that only a reference may have; the most bytes of a file
REFERENCE, MOST_BYTES = "Model", 100_000
_QKV = ["q", "k", "v"], ["query", "key", "value"], ["Q", "K", "V"]
_FORMS = "expected LIBRARY and attend, one public function of q, k and v, or ModelNew; see docs/judge.md"


@dataclass(frozen=True)
class Candidate:
    """A candidate or a reference, as plain data.

    name : its name in records. form : see above. entry : the name of its function or class. library : the library whose
    arrays it takes. source : the text of its file. device : "cuda" if it can run only there.
    """

    name: str
    form: str
    entry: str
    library: str
    source: str = ""
    device: str = "cpu"

    @property
    def digest(self) -> str:
        """SHA-256 of the text. Files with the same digest are one candidate."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


def read_candidate(path: Path | str) -> Candidate:
    """The candidate or the reference in a file. Raises ValueError, in one line, if the file holds none."""
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
    """The form of the file, the name of its function or class, and whose arrays that takes. Raises ValueError."""
    bound = bound_in(tree.body)
    functions = []  # public functions whose first parameters are query, key and value
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
    """The top-level packages that these nodes import."""
    found = set[str]()
    for one in nodes:
        if isinstance(one, ast.ImportFrom):
            found.add((one.module or "").partition(".")[0])
        elif isinstance(one, ast.Import):
            found |= {name.name.partition(".")[0] for name in one.names}
    return found

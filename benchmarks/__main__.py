"""``python benchmarks NAME [ARGUMENT ...]``: run a benchmark; without a name, say which there are."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

HOME = Path(__file__).parent


def main() -> None:
    """Run the benchmark that is named, with the arguments that follow."""
    files = {file.stem: file for file in sorted(HOME.glob("*.py"))}
    told = {
        name: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) for name, file in files.items()
    }
    known = {name: doc for name, doc in told.items() if doc and re.search(rf"benchmarks[ /]{name}\b", doc)}
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        lines = (f"  {name:18}{(doc or '').partition(chr(10))[0]}" for name, doc in known.items())
        raise SystemExit("\n".join(["python benchmarks NAME [ARGUMENT ...] [--help], NAME being", *lines]))
    sys.argv = sys.argv[1:]
    runpy.run_path(str(files[sys.argv[0]]), run_name="__main__")


if __name__ == "__main__":
    main()

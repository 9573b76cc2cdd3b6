"""``python benchmarks NAME [ARGUMENT ...]``: run a benchmark; without a name, say which there are."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int | None:
    """Run the benchmark that is named, with the arguments that follow."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("[a-z]*.py")}
    first_lines = {
        name: text.split('"""')[1].partition("\n")[0]
        for name, text in sorted(texts.items())
        if "\ndef main()" in text
    }
    if len(sys.argv) < 2 or sys.argv[1] not in first_lines:
        lines = (f"  {name:18}{line}" for name, line in first_lines.items())
        raise SystemExit("\n".join(["python benchmarks NAME [ARGUMENT ...] [--help], NAME being", *lines]))
    sys.argv = sys.argv[1:]
    status: int | None = importlib.import_module(sys.argv[0]).main()
    return status


if __name__ == "__main__":
    sys.exit(main())

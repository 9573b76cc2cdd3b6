"""``python benchmarks NAME [ARGUMENT ...]``: run a benchmark; without a name, list the names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int | None:
    """Run the named benchmark with the arguments that follow its name."""
    files = sorted(Path(__file__).parent.glob("[a-z]*.py"))
    names = [one.stem for one in files if "\ndef main()" in one.read_text(encoding="utf-8")]
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        raise SystemExit(f"python benchmarks NAME [ARGUMENT ...] [--help]: NAME is one of {', '.join(names)}")
    sys.argv = sys.argv[1:]
    return importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    sys.exit(main())

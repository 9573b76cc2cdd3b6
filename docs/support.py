"""Write docs/support.md, its data docs/support.json and the short table in docs/backends.md.

``python docs/support.py [NAME]...`` asks every backend, or those named, on the CPU, and on CUDA where there is a GPU.
What cannot be asked here, because its library is not installed, stays as it stands in docs/support.json, with the
versions that it was confirmed with. Exits with 1, and writes all the same, where a backend does not decline what it
does not do. ``--render`` asks nobody and writes page and table again from the data.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from attnlab.backends.discovery import backends
from attnlab.report.support_page import page, short
from attnlab.runs.support import Support, support
from attnlab.workload.vocabulary import DEVICES

DOCS = Path(__file__).parent
DATA, PAGE = DOCS / "support.json", DOCS / "support.md"
#: the table between the marks of this page
TABLES = {DOCS / "backends.md": short}
MARKED = re.compile(r"(<!-- support table -->\n).*?(<!-- end of the support table -->)", re.DOTALL)


def stored() -> list[Support]:
    """What was found before."""
    return (
        [Support.from_dict(one) for one in json.loads(DATA.read_text(encoding="utf-8"))]
        if DATA.exists()
        else []
    )


def with_table(text: str, table: Callable[[list[Support]], str], found: list[Support]) -> str:
    """A page with a table of the backends on the CPU between its marks."""
    shown = table([one for one in found if one.device == "cpu"])
    return MARKED.sub(lambda match: f"{match[1]}{shown}\n{match[2]}", text)


def asked(names: list[str]) -> list[Support]:
    """What all backends answer here, or those named and those that are new; what the others answered before."""
    before = {(one.backend, one.device): one for one in stored()}
    found = []
    for device in DEVICES:
        for name in backends():
            kept = before.get((name, device))
            if kept is None or not names or name in names:
                now = support(name, device, on_event=lambda text: print(text, file=sys.stderr, flush=True))
                if kept is None or kept.unavailable is not None or now.unavailable is None:
                    kept = now
            found.append(kept)
    return found


def main(arguments: list[str]) -> int:
    """Ask, unless all is only to be written again, and write all three files."""
    found = stored() if arguments == ["--render"] else asked(arguments)
    lines = (json.dumps(one.to_dict(), ensure_ascii=False) for one in found)
    DATA.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
    for file, table in TABLES.items():
        file.write_text(with_table(file.read_text(encoding="utf-8"), table, found), encoding="utf-8")
    faults = [fault for one in found for fault in one.faults]
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

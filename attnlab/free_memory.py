"""Main memory that can still be taken: of the machine, and of the control groups that this process is in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

#: which group this process is in, and where the groups are shown
_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Bytes that can still be taken before the system would have to end a process."""
    import psutil

    rooms = _rooms(_MEMBERSHIP, _GROUPS)
    return max(0, min([int(psutil.virtual_memory().available), *rooms]))


def _rooms(membership: Path, groups: Path) -> Iterator[int]:
    """Bytes left of each limit that holds for this process: its group's, and those of the groups around it.

    Files that were read and can be dropped count as free. Version 2 of the groups has one tree, version 1 one
    for memory (https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html). In a container a
    group may be shown as the root, whatever its name.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # no control groups here
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if not kinds:
            root, files = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            root = groups / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = root / name.strip("/")
        for folder in (own, *own.parents):
            # a group without a limit says "max"; one that is not shown has no files
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((folder / file).read_text(encoding="utf-8")) for file in files[:2])
                yield limit - used + _counted(folder / "memory.stat", files[2])
            if folder == root:
                break


def _counted(file: Path, name: str) -> int:
    """The number behind `name` in a file of names and numbers, 0 where it is not told."""
    try:
        found = dict(line.split() for line in file.read_text(encoding="utf-8").splitlines())
        return int(found.get(name, 0))
    except (OSError, ValueError):
        return 0

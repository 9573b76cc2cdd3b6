"""Which backends can run here, and why others cannot: each is imported outside of this process, which it may end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import backends, settings_of
from attnlab.problem.workload import Workload
from attnlab.race.worker_process import Died, Hung, Refused, WorkerProcess

#: a library that is not imported after so long is told as one that hangs
_SECONDS = 60.0


@dataclass(frozen=True)
class Listed:
    """A backend: its library where it loads, what it is in one line, and why it cannot run here, None where it can."""

    name: str
    library: str
    summary: str
    reason: str | None


def listed(
    device: str,
    folders: Sequence[str] = (),
    names: Sequence[str] = (),
    *,
    seconds: float = _SECONDS,
    on_event: Callable[[str], None] = lambda text: None,
) -> list[Listed]:
    """Every backend, or each of `names`, in that order: whether it can do the default workload on `device`.

    They are imported one after the other in one process, because most of them share a library. Where that process
    ends or hangs, the backend is tried again alone: the libraries of those before it may be the cause.
    Raises ValueError for a folder that is none.
    """
    found, waiting = [], list(names) or backends(folders)
    asked = {"folders": list(folders), "workload": Workload(device=device)}
    process: WorkerProcess | None = None
    try:
        while waiting:
            name = waiting[0]
            on_event(f"looking at {name}")
            alone = process is None
            try:
                if process is None:
                    process = WorkerProcess(Contender(name, name), folders, start_seconds=seconds)
                    process.start("describe", backend=name, **asked)
                    told = process.finish_start()
                else:
                    told = process.ask("describe", seconds=seconds, backend=name, **asked)
                found.append(_of_answer(name, told, folders))
            except Refused as refusal:
                found.append(Listed(name, "", "", str(refusal)))
            except (Died, Hung) as fault:
                process = None  # it is not there any more
                if not alone:
                    continue
                found.append(Listed(name, "", "", str(fault)))
            waiting = waiting[1:]
    finally:
        if process is not None:
            process.end()
    return found


def _of_answer(name: str, told: dict[str, Any], folders: Sequence[str]) -> Listed:
    own = ", ".join(f"{key}={'|'.join(values)}" for key, values in settings_of(name, folders).items())
    summary = f"{told['summary']} Settings: {own}." if own else told["summary"]
    return Listed(name, told["library"], summary, told["reason"])

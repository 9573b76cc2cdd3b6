"""Many stored runs as one Parquet file: tidy rows for pandas, DuckDB or Polars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.environment import fingerprint
from attnlab.errors import NotStored, Unavailable
from attnlab.runs.store import RUN_FILE, Run, read_run

if TYPE_CHECKING:
    import pandas as pd

#: told of each run beside its rows, from its environment
_ENVIRONMENT = ("cpu", "system", "python", "attnlab")


def collect(
    folders: Iterable[Path], out: Path, *, skipped: Callable[[str], None] = lambda text: None
) -> tuple[int, int]:
    """Write the measurements of all runs in and below `folders` to `out`; return how many runs and rows it holds.

    A run that was found twice is written once. `skipped` hears of each run that cannot be read, in one line. Raises
    ValueError where no run can be read, NotStored where `out` cannot be written, Unavailable without pyarrow.
    """
    import pandas as pd

    try:
        import pyarrow  # noqa: F401 (pandas writes with it)
    except ImportError:
        raise Unavailable("collect needs pyarrow: pip install 'attnlab[collect]'") from None
    frames: dict[str, pd.DataFrame] = {}
    for run in _runs(folders, skipped):
        frames.setdefault(run.id or str(run.folder.resolve()), rows_of(run))
    if not frames:
        raise ValueError("none of the folders holds a run that can be read")
    rows = pd.concat(frames.values(), ignore_index=True).convert_dtypes()
    try:
        rows.to_parquet(out, index=False)
    except OSError as fault:
        raise NotStored(f"{out} cannot be written: {fault.strerror}; name another file with -o") from None
    return len(frames), len(rows)


def rows_of(run: Run) -> pd.DataFrame:
    """`Run.frame` with the run's name, id, start, machine and software in front of each row."""
    rows = run.frame()
    told = {"run": run.folder.resolve().name, "run_id": run.id, "started": run.started}
    told |= {"machine": fingerprint(run.environment), "baseline": run.baseline}
    told |= {name: str(run.environment.get(name) or "") for name in _ENVIRONMENT}
    for at, (name, value) in enumerate(told.items()):
        rows.insert(at, name, value)
    pairs = [name for name in ("window", "key_lengths") if name in rows]  # tuples have no column type
    rows[pairs] = rows[pairs].map(lambda one: None if one is None else str(one))
    return rows


def _runs(folders: Iterable[Path], skipped: Callable[[str], None]) -> Iterator[Run]:
    for folder in folders:
        files = sorted(folder.rglob(RUN_FILE))
        if not files:
            skipped(f"{folder} holds no run: there is no {RUN_FILE} in it or below it")
        for file in files:
            try:
                yield read_run(file.parent)
            except ValueError as fault:
                skipped(str(fault))

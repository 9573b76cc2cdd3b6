"""The results of any number of runs and machines in one place, as Parquet, that other programs read too.

`collect` adds what a run holds and the dataset does not, `runs` gives the runs back, `query` asks it in SQL. What lies
where, and what every column is, stands in ``docs/dataset.md``. Needs the extra ``attnlab[dataset]``.
"""

from __future__ import annotations

from attnlab.runs.dataset_collecting import Collected, collect
from attnlab.runs.dataset_folder import is_dataset
from attnlab.runs.dataset_query import Answer, query
from attnlab.runs.dataset_reading import runs

__all__ = ["Answer", "Collected", "collect", "is_dataset", "query", "runs"]

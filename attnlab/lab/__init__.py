"""The laboratory: experiments that hold theory against measurement through the backends, claims, and `diagnose`.

This is its one door: only the command line, the suites and one call of the report open it.
"""

from attnlab.lab.chapter import CHAPTER_FILE, read_chapter, run_chapter
from attnlab.lab.claims import Claim, ClaimVerdict, chosen_claims, judge, ledger
from attnlab.lab.diagnosis import diagnose, read_model
from attnlab.lab.experiments import (
    EXPERIMENTS,
    Chart,
    Finding,
    Row,
    check_request,
    chosen_experiments,
    load_experiment,
    run_experiment,
)

__all__ = ["CHAPTER_FILE", "EXPERIMENTS", "Chart", "Claim", "ClaimVerdict", "Finding", "Row"]
__all__ += ["check_request", "chosen_claims", "chosen_experiments", "diagnose", "judge"]
__all__ += ["ledger", "load_experiment", "read_chapter", "read_model", "run_chapter", "run_experiment"]

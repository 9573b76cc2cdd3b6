"""The laboratory: experiments that compare theory with measurements through the backends, claims, and `diagnose`.

The command line and the report import these names from here, and nothing from its modules.
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

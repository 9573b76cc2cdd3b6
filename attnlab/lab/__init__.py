"""The laboratory: experiments that hold theory against measurement through the backends, claims, and `diagnose`.

This is its one door: only the command line, the suites and one call of the report open it.
"""

from attnlab.lab.catalogue import CHAPTER as CHAPTER
from attnlab.lab.catalogue import CHAPTER_FILE as CHAPTER_FILE
from attnlab.lab.catalogue import EXPERIMENTS as EXPERIMENTS
from attnlab.lab.catalogue import Claim as Claim
from attnlab.lab.catalogue import ClaimVerdict as ClaimVerdict
from attnlab.lab.catalogue import Section as Section
from attnlab.lab.catalogue import chapter as chapter
from attnlab.lab.catalogue import check_request as check_request
from attnlab.lab.catalogue import chosen_claims as chosen_claims
from attnlab.lab.catalogue import chosen_experiments as chosen_experiments
from attnlab.lab.catalogue import experiments as experiments
from attnlab.lab.catalogue import judge as judge
from attnlab.lab.catalogue import read_chapter as read_chapter
from attnlab.lab.catalogue import run_chapter as run_chapter
from attnlab.lab.catalogue import run_experiment as run_experiment
from attnlab.lab.diagnosis import Diagnosis as Diagnosis
from attnlab.lab.diagnosis import diagnose as diagnose
from attnlab.lab.diagnosis import read_model as read_model
from attnlab.lab.experiment import Finding as Finding
from attnlab.lab.experiment import Row as Row

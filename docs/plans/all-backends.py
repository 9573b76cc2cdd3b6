"""Every backend that can be installed, on four questions.

``python docs/plans/all-backends.py FOLDER``, then ``attnlab report FOLDER``. float32, bfloat16 and causal at 1,024
tokens, and a decode step over 4,096 keys; all with 8 heads.
"""

import sys
from dataclasses import replace

import attnlab

plain = attnlab.Workload(heads=8, queries=1024, keys=1024)
decode = attnlab.Workload(heads=8, queries=1, keys=4096)
asked = (plain, plain.with_(dtype="bfloat16"), plain.with_(causal="top_left"), decode)

plan = attnlab.Plan(workloads=asked, contenders=("all",), experiments=())
plan = replace(plan, limits=replace(plan.limits, workload_seconds=150))
attnlab.run(plan, sys.argv[1], command="python docs/plans/all-backends.py FOLDER")

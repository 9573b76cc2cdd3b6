"""What BackendBench says of a candidate: ``python peer.py FILE`` prints the share that it calls right, and the speedup.

Inputs are drawn as its suites draw them. BackendBench is github.com/meta-pytorch/BackendBench, on PYTHONPATH.
"""

import runpy
import sys
from types import SimpleNamespace

import torch
from BackendBench.eval import eval_one_op
from BackendBench.utils import deserialize_args

one = "T([1, 8, 512, 64], f32)"
right = torch.ops.aten.scaled_dot_product_attention.default
attend = runpy.run_path(sys.argv[1])["attend"]
drawn = [deserialize_args(f"(({one}, {one}, {one}), {{}})")[0] for _ in range(6)]
tests = [SimpleNamespace(args=args, kwargs={}) for args in drawn]
share, speedup, *_ = eval_one_op(right, lambda *args: attend(*args, scale=0.125), tests[:5], tests[5:])
print(f"{share:.0%} {float(speedup):.3g}")

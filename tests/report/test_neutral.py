"""Whatever stands in a run, its report is Markdown that shows it and does nothing."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from attnlab.experiments.finding import Finding, Row
from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.report import verdict_text, write
from attnlab.report.analysis import neutral_text
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run

HOSTILE = (
    "<script>alert(1)</script> <b>bad</b> `code` | ![x](http://x) [y](javascript:z) $\\frac$ \x1b[31m"
    + "x" * 5000
)


@given(st.text(max_size=300))
def test_no_text_begins_a_tag_a_span_or_a_link(text: str) -> None:
    """Nor a second line."""
    shown = neutral_text(text)
    assert not re.search(r"<[A-Za-z/!?]|`|!\[|\]\(|\n|\$", shown)


def test_a_hostile_run_has_a_harmless_report(tmp_path: Path) -> None:
    """In every place that a file can fill: names, reasons, kernels, facts, environment, findings, the command."""
    workload = Workload(heads=1, queries=8, keys=8, head_dim=4)
    name = f"torch_eager[X={HOSTILE[:60]}]"
    latency = Measurement(
        "latency", "s", (2.0, 1.0), {"round": (0.0, 1.0)}, {"others": HOSTILE, HOSTILE: "x"}
    )
    row = Row("<u>q</u>", {"<k>": "<v>"}, 1, 1, 0, True)
    finding = Finding("<i>e</i>", "<i>t</i>", "<i>q</i>", "<img src=x>", (row,))
    run = Run(
        folder=tmp_path,
        plan=Plan(workloads=(workload,), experiments=("none",)),
        environment={
            "cpu": HOSTILE,
            HOSTILE: {"a": HOSTILE},
            "contenders": {name: {"versions": {"<t>": HOSTILE}}},
        },
        contenders=(name, "other"),
        baseline=name,
        command=f"attnlab run ```\n{HOSTILE}",
        results=[
            Result(name, workload, Outcome.MEASURED, HOSTILE, kernel=HOSTILE, measurements=(latency,)),
            Result("other", workload, Outcome.CRASHED, HOSTILE, tail=HOSTILE),
        ],
        findings=[finding],
    )
    page = write(run).read_text(encoding="utf-8")
    unfenced = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    tags = set(re.findall(r"<(/?\w+)", unfenced))
    assert tags <= {"details", "/details", "summary", "/summary"}
    assert "\x1b" not in page and "](javascript" not in unfenced and "](http://x" not in unfenced
    assert page.count("```") == 2
    assert max(map(len, page.splitlines())) < 5000
    assert "&lt;script" in page
    assert "\x1b" not in verdict_text(run)

"""Text from elsewhere stays text in the page, in a real browser."""

from __future__ import annotations

from dataclasses import replace

from opened_page import Make, Open

HOSTILE = "<script>window.ran=1</script>"
WORSE = "</script><img src=x onerror=window.ran=2>"


def test_hostile_text_stays_text(made: Make, opened: Open) -> None:
    """Names, reasons, kernels, settings, machine and command are shown as they were written, and do nothing."""
    costs = {HOSTILE: lambda one: 1e-5 + 1e-9 * one.pairs, "torch_eager": lambda one: 2e-5 + 2e-9 * one.pairs}
    run = made(
        costs=costs,
        contenders=(HOSTILE, "torch_eager", "refuses"),
        kernels={HOSTILE: WORSE},
        baseline="torch_eager",
    )
    results = [replace(one, reason=one.reason and WORSE) for one in run.results]
    facts = {"versions": {WORSE: HOSTILE}, "modes": {HOSTILE: WORSE}}
    environment = {**run.environment, "cpu": WORSE, "contenders": {HOSTILE: facts}}
    found = opened(replace(run, results=results, environment=environment, command=WORSE, started=HOSTILE))
    texts = found.views()
    assert HOSTILE in found.text("#answer") and WORSE in found.text("#about")
    assert HOSTILE in texts["table"] and WORSE in texts["table"]
    assert texts["runs"].count(WORSE) >= 3
    found.tick("backend", "refuses", on=True)
    assert WORSE in found.view("table")
    assert found.page.evaluate("window.ran") is None
    assert found.page.locator("img").count() == 0
    found.harmless()

"""The page by keyboard, by ear and by finger, in a real browser."""

from __future__ import annotations

from opened_page import PHONE, Make, Open


def test_everything_is_reached_by_keyboard(made: Make, opened: Open) -> None:
    """Tab goes through filters, tabs and charts; arrows through tabs and points; Enter picks; Escape hides."""
    found = opened(made(contenders=("torch_eager", "torch_sdpa")))
    reached = set()
    for _ in range(60):
        found.page.keyboard.press("Tab")
        reached.add(
            found.page.evaluate(
                "(document.activeElement.closest('[data-field]')?.dataset.field) ?? document.activeElement.className"
                " ?? document.activeElement.tagName"
            )
            or found.page.evaluate(
                "document.activeElement.getAttribute('role') ?? document.activeElement.tagName"
            )
        )
    assert {"backend", "heads", "keys", "tab", "chart", "skip", "SELECT"} <= reached
    found.page.locator("#view .chart").first.focus()
    found.page.keyboard.press("ArrowRight")
    first = found.text("#tip")
    found.page.keyboard.press("ArrowRight")
    assert found.text("#tip") != first
    found.page.keyboard.press("Enter")
    assert "Ranking at n = 256, 1 head" in found.text("#view")
    found.page.keyboard.press("Escape")
    assert not found.page.locator("#tip").is_visible()
    found.page.focus("#tab-winners")
    found.page.keyboard.press("ArrowRight")
    assert found.page.locator("#tab-figures").get_attribute("aria-selected") == "true"
    found.harmless()


def test_every_control_has_a_name(made: Make, opened: Open) -> None:
    """For whoever hears the page."""
    found = opened(made())
    for name in found.views():
        found.view(name)
        unnamed = found.page.eval_on_selector_all(
            "input, select, button, .chart, [role=region]",
            "all => all.filter((one) => !(one.labels?.[0]?.innerText || one.textContent.trim()"
            " || one.getAttribute('aria-label'))).map((one) => one.outerHTML)",
        )
        assert unnamed == [], name


def test_a_finger_on_a_chart_tells_of_the_point_under_it(made: Make, opened: Open) -> None:
    """And one beside it puts that away; on a heat map it picks the workload."""
    found = opened(made(), **PHONE)
    found.page.tap("#tab-figures")
    chart = found.page.locator("#view .chart").first
    chart.scroll_into_view_if_needed()
    dot = chart.locator('[aria-label="dot"] path').nth(4).bounding_box()
    found.page.touchscreen.tap(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    assert "peak memory" in found.text("#tip")
    found.page.touchscreen.tap(5, 5)
    assert not found.page.locator("#tip").is_visible()
    found.page.tap("#tab-winners")
    found.page.locator('#view .chart >> nth=0 >> [aria-label="cell"] rect').first.tap(force=True)
    assert "Ranking at n = 64, 1 head" in found.text("#view")

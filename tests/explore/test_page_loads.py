"""The page in a real browser, offline and from disk: it loads under its policy, on any screen, in light and dark."""

from __future__ import annotations

import re
from typing import Any

import pytest
from opened_page import PHONE, TWO_OF_EACH, Make, Open


def test_every_view_is_drawn_without_complaint(made: Make, opened: Open) -> None:
    """From disk and offline; nothing is refused by the policy, and nothing moves by itself."""
    found = opened(made())
    texts = found.views()
    assert set(texts) == {"winners", "figures", "rounds", "runs", "table"}
    assert all(len(one) > 200 for one in texts.values())
    found.harmless()
    assert found.page.evaluate("seen.moved") < 0.1


def test_the_policy_is_in_force(made: Make, opened: Open) -> None:
    """A script that is not the page's own does not run: so that the tests beside this one can fail."""
    found = opened(made())
    found.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    assert found.page.evaluate("window.ran") is None
    assert found.page.evaluate("seen.refused").__len__() == 1
    with pytest.raises(AssertionError):
        found.harmless()


def test_a_browser_that_cannot_unpack_the_data_says_so(made: Make, opened: Open) -> None:
    """In one line, and nothing else is shown."""
    found = opened(made(), without="DecompressionStream")
    assert found.text("body").startswith("This browser cannot unpack the data of this page")
    assert len(found.text("body").splitlines()) == 1
    found.harmless()


@pytest.mark.parametrize("options", [PHONE, {"width": 320, "height": 600}, {"width": 1280}])
def test_no_view_is_wider_than_the_screen(options: dict[str, Any], made: Make, opened: Open) -> None:
    """Tables that are wider scroll by themselves."""
    found = opened(made(variants=TWO_OF_EACH), **options)
    for name in found.views():
        found.view(name)
        wide, screen = found.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= screen, name
    assert found.page.evaluate("seen.moved") < 0.1


def luminance(colour: str) -> float:
    """Of ``rgb(r, g, b)``, from 0 to 1, roughly."""
    red, green, blue = (int(one) / 255 for one in re.findall(r"\d+", colour)[:3])
    return 0.2 * red + 0.7 * green + 0.1 * blue


def test_a_dark_screen_has_a_dark_page(made: Make, opened: Open) -> None:
    """Ground, text, and the baseline's curve, which is black in figures on white."""
    style = "getComputedStyle(document.body)"
    found = opened(made(), color_scheme="dark")
    assert luminance(found.page.evaluate(f"{style}.backgroundColor")) < 0.15
    assert luminance(found.page.evaluate(f"{style}.color")) > 0.75
    label = found.page.locator('[data-field="backend"] label').filter(has_text="torch_eager").first
    colours = [label.locator("path").get_attribute("fill")]
    found.page.emulate_media(color_scheme="light")
    # the page hears of it at its next frame
    label.locator(f'path:not([fill="{colours[0]}"])').wait_for()
    colours.append(label.locator("path").get_attribute("fill"))
    dark, light = (int(one[1:3], 16) for one in colours)
    assert dark > 180 and light < 80
    found.harmless()

"""A page that stands open in a browser, and what tests of it have in common."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.runs.store import Run

VIEWS = ("winners", "figures", "rounds", "runs", "table")

#: runs made up by the fixture `made`, and pages of them by `opened`
Make = Callable[..., Run]
Open = Callable[..., "Opened"]
PHONE = {"width": 375, "height": 812, "has_touch": True, "is_mobile": True}
#: fields of workloads, of which two have two values
TWO_OF_EACH = ({"dtype": "float32"}, {"dtype": "bfloat16", "direction": "training"})


def find_browser(playwright: Any) -> str | None:
    """A Chromium of the system's, or else Playwright's own; None where there is neither."""
    own = playwright.chromium.executable_path
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), own if Path(own).exists() else None)


@dataclass
class Opened:
    """A page in the browser, and every complaint that it made."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """The text of the element, as a reader sees it."""
        return str(self.page.locator(selector).inner_text())

    def view(self, name: str) -> str:
        """Go to a view and return its text, that of its charts included."""
        self.page.click(f"#tabs label:has([value={name}])")
        return str(self.page.locator("#view").text_content())

    def tick(self, field_name: str, label: str, on: bool) -> None:
        """Tick a filter's value, or take the tick away; unfold it where it is folded away."""
        self.page.locator("#controls details").evaluate_all("all => all.forEach((one) => (one.open = true))")
        name = self.page.get_by_text(label, exact=True)
        found = self.page.locator(f'[data-field="{field_name}"] label').filter(has=name)
        found.locator("input").set_checked(on)

    def pick(self, label: str, value: str) -> None:
        """Choose in the view's select of that label."""
        self.page.locator("#view label", has_text=label).locator("select").select_option(value)

    def points(self) -> int:
        """Marks of measured points in the charts of the view."""
        return int(self.page.locator('#view .chart [aria-label="dot"] > *').count())

"""A page that stands open in a browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
        self.page.click(f"#tab-{name}")
        return str(self.page.locator("#view").text_content())

    def views(self) -> dict[str, str]:
        """The texts of all views, by name."""
        names = self.page.eval_on_selector_all(
            "#tabs button", "all => all.map((one) => one.id.slice('tab-'.length))"
        )
        return {name: self.view(name) for name in names}

    def tick(self, field_name: str, label: str, on: bool) -> None:
        """Tick a filter's value, or take the tick away."""
        box = self.page.locator(f'[data-field="{field_name}"] label').filter(
            has=self.page.get_by_text(label, exact=True)
        )
        box.locator("input").set_checked(on)

    def pick(self, label: str, value: str) -> None:
        """Choose in the view's select of that label."""
        self.page.get_by_label(label, exact=True).select_option(value)

    def harmless(self) -> None:
        """Nothing was complained of and nothing refused."""
        assert not self.complaints
        assert self.page.evaluate("seen.refused") == []

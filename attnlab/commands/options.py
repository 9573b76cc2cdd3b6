"""The options that several commands share, and how their text is read."""

from __future__ import annotations

import click

folders = click.option(
    "--implementations",
    "folders",
    metavar="DIR",
    multiple=True,
    help="A folder of backend files of your own; repeatable.",
)
device = click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu or cuda.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")


def split_names(text: str) -> list[str]:
    """Names between commas, those inside brackets aside: ``a,b[threads=1,X=2]`` is two names.

    Raises ValueError for an empty name.
    """
    names, depth, current = [], 0, ""
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            names.append(current)
            current = ""
        else:
            current += character
    names = [name.strip() for name in (*names, current)]
    if not all(names):
        raise ValueError(f"a list of names is separated by single commas, got {text!r}")
    return names


def split_sizes(option: str, text: str) -> list[int]:
    """Whole numbers of at least 1 between commas. Raises ValueError, naming `option`."""
    sizes = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise ValueError(f"{option} takes whole numbers of at least 1, separated by commas, got {text!r}")
        sizes.append(int(part))
    return sizes

"""Colours can be told apart, by whoever looks, and belong to a backend's name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnlab.backend.discovery import backends
from attnlab.figures import COLOURS, OTHERS, styles

#: linear RGB as a protanope and a deuteranope see it (Machado, Oliveira and Fernandes 2009, table 1, severity 1.0)
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
#: Ottosson 2020, "A perceptual color space for image processing"
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
#: what a default run and the one with all extras race on a CPU
RACED = list(COLOURS)[:12]


def linear(colour):
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(colour, vision="normal"):
    seen = np.clip(VISIONS[vision] @ linear(colour), 0, 1)
    return TO_LAB @ np.cbrt(TO_LMS @ seen)


def closest(colours, vision):
    return min(
        float(np.linalg.norm(oklab(one, vision) - oklab(other, vision)))
        for one, other in itertools.combinations(colours, 2)
    )


def test_every_backend_has_a_style_of_its_own():
    """No two share a colour: two once shared a blue."""
    found = styles([*backends(), "one of mine"])
    assert len({one.colour for one in found.values()}) == len(found)
    assert len({(one.marker, one.dashes) for one in found.values()}) >= 0.9 * len(found)


@pytest.mark.parametrize(
    ("vision", "least"), [("normal", 0.06), ("protanopia", 0.03), ("deuteranopia", 0.03)]
)
def test_all_colours_are_apart(vision, least):
    """0.02 in OKLab is about what is just seen in a patch; those raced by default are further apart still."""
    assert closest([*COLOURS.values(), *OTHERS], vision) > least
    assert closest([COLOURS[name] for name in RACED], vision) > 1.5 * least


@pytest.mark.parametrize("colour", [*COLOURS.values(), *OTHERS])
def test_words_in_a_colour_read_on_white_and_white_ones_on_it(colour):
    """A contrast of 4.5 (WCAG 2, 1.4.3)."""
    luminance = float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour))
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_a_contender_keeps_its_colour_whoever_else_is_drawn():
    alone, among = styles(["torch_sdpa"]), styles(["mine", "torch_eager", "torch_sdpa", "naive_loop"])
    assert alone["torch_sdpa"] == among["torch_sdpa"]
    assert styles(["mine"])["mine"] == among["mine"]
    assert len(set(among.values())) == 4

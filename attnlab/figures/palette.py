"""One colour, marker and dash for each contender, by its name: the same in every figure, table and page.

The colours were chosen one after the other, each as far as possible from all before it in OKLab (Ottosson 2020, "A
perceptual color space for image processing"), seen with normal, protanopic and deuteranopic vision (Machado, Oliveira
and Fernandes 2009), among those on which white words, and which on white ground, read at a contrast of 4.5 or more.
Nearly thirty colours cannot all be told apart by everybody, so that a marker and a dash go with each, and figures write
names beside curves and cells.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

#: those usually raced together stand first and are furthest apart
COLOURS = {
    "torch_eager": "#222222",
    "torch_sdpa": "#1F5FBF",
    "numpy_blocked": "#C24E00",
    "torch_sdpa_math": "#870A69",
    "numpy_vectorized": "#3C8269",
    "naive_loop": "#694100",
    "numba_fused": "#6400FF",
    "torch_sdpa_flash": "#8269A0",
    "onnxruntime": "#E61464",
    "openvino": "#0F4646",
    "keras": "#5F4191",
    "mlx": "#7D5FE6",
    "jax_xla": "#96413C",
    "executorch": "#6E1E28",
    "vllm_cpu": "#AF00B4",
    "torch_compile": "#417D00",
    "torch_sdpa_efficient": "#5A0082",
    "onnxruntime_contrib": "#3C00A5",
    "ggml_flash": "#D7239B",
    "torch_flex": "#2D4673",
    "array_api": "#006987",
    "torch_mha": "#966946",
    "torch_sdpa_cudnn": "#4646DC",
    "flash_attn": "#A00A19",
    "flashinfer": "#0A694B",
    "jax_cudnn": "#96417D",
    "sageattention": "#0000D7",
    "xformers": "#697887",
}
#: for backends that are not named above; beyond these their colours repeat, with other dashes
OTHERS = ("#5F00B9", "#AF1E5F", "#5F6ECD", "#870A41", "#7841FF")
MARKERS, DASHES = "osD^vPX<>h", ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Style:
    """A contender's colour (``#RRGGBB``), marker and dashes, the latter two as Matplotlib writes them."""

    colour: str
    marker: str
    dashes: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each of `names`, which are contenders or backends.

    A contender has the colour of its backend; with settings (``NAME[...]``) it has the next marker and dash. A backend
    of the user's own has a place by its name among further colours, or the next that is free among `names`.
    """
    known, others = list(COLOURS), _places(names)
    found: dict[str, Style] = {}
    variants: dict[str, int] = {}
    for name in dict.fromkeys(names):
        backend, _, settings = name.partition("[")
        turn = 0
        if settings:
            turn = variants[backend] = variants.get(backend, 0) + 1
        place = known.index(backend) if backend in COLOURS else len(known) + others[backend]
        colour = COLOURS[backend] if backend in COLOURS else OTHERS[others[backend] % len(OTHERS)]
        dashes = DASHES[(place // len(MARKERS) + turn) % len(DASHES)]
        found[name] = Style(colour, MARKERS[(place + 3 * turn) % len(MARKERS)], dashes)
    return found


def _places(names: Sequence[str]) -> dict[str, int]:
    """For each backend among `names` without a colour of its own, a number that no other has."""
    unknown = sorted({one.partition("[")[0] for one in names} - set(COLOURS))
    places: dict[str, int] = {}
    for name in unknown:
        size = len(OTHERS) if len(unknown) <= len(OTHERS) else len(unknown)
        place = zlib.crc32(name.encode()) % size
        while place in places.values():
            place = (place + 1) % size
        places[name] = place
    return places

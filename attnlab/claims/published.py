"""Sizes of published models, each with a check: its layers add up to the published number of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """One model as published. `count(width, layers)` gives the parameters that such layers add up to.

    `parameters` is None where the source gives no exact number.
    """

    name: str
    year: int
    heads: int
    width: int
    layers: int
    source: str
    parameters: int | None = None
    count: Callable[[int, int], int] | None = None


def _block(width: int) -> int:
    """Four projections, a feed-forward layer four times as wide, two norms, all with biases."""
    return 12 * width**2 + 13 * width


def _gpt_2(width: int, layers: int) -> int:
    return (50257 + 1024) * width + layers * _block(width) + 2 * width


def _bert(width: int, layers: int) -> int:
    return (30522 + 512 + 2) * width + 2 * width + layers * _block(width) + width**2 + width


def _llama_3(width: int, layers: int) -> int:
    """8 key-value heads of 128; the feed-forward layer is 3.5 times as wide and has three matrices."""
    layer = 2 * width**2 + 2 * width * 1024 + 3 * width * (7 * width // 2) + 2 * width
    return 2 * 128256 * width + layers * layer + width


_VASWANI = "Vaswani et al. 2017, table 3"
_DEVLIN = "Devlin et al. 2019, §3"
_RADFORD = "Radford et al. 2019, table 2"
_LLAMA = "Llama Team 2024 (2407.21783), table 3"

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("Transformer base", 2017, 8, 512, 6, _VASWANI),
        Model("Transformer big", 2017, 16, 1024, 6, _VASWANI),
        Model("BERT base", 2018, 12, 768, 12, _DEVLIN, 109_482_240, _bert),
        Model("BERT large", 2018, 16, 1024, 24, _DEVLIN, 335_141_888, _bert),
        Model("GPT-2 small", 2019, 12, 768, 12, _RADFORD, 124_439_808, _gpt_2),
        Model("GPT-2 medium", 2019, 16, 1024, 24, _RADFORD, 354_823_168, _gpt_2),
        Model("GPT-2 XL", 2019, 25, 1600, 48, _RADFORD, 1_557_611_200, _gpt_2),
        Model("GPT-3", 2020, 96, 12288, 96, "Brown et al. 2020, table 2.1"),
        Model("Llama 3 8B", 2024, 32, 4096, 32, _LLAMA, 8_030_261_248, _llama_3),
        Model("Llama 3 70B", 2024, 64, 8192, 80, _LLAMA, 70_553_706_496, _llama_3),
    )
}

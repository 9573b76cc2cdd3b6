"""A model from a folder, and a text as what it takes: safetensors weights, no code but transformers' own, no network.

transformers loads late: it takes seconds. Whatever it raises on a folder that it cannot take is one line here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.libraries.host import required
from attnlab.text import one_line
from attnlab.text import read_text as text_of

#: tokens of a text that are taken where nothing is said
LENGTH = 512
#: of a text
_MOST_BYTES = 2**26
#: one of them holds a tokenizer
_TOKENIZER = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
#: weights in so few bits stand for others by a scale
_QUANTISED = ("I8", "F8", "F6", "F4", "I4", "U4")


@dataclass(frozen=True, eq=False)
class Given:
    """What a model is called with. count : tokens of a text. there : as many as the whole text has. separators :
    positions of special tokens after the first."""

    inputs: Mapping[str, Any] | tuple[Any, ...]
    count: int = 0
    there: int = 0
    separators: tuple[int, ...] = ()


def load(folder: Path) -> tuple[Any, Any]:
    """The model in `folder` and its tokenizer: a configuration, weights in safetensors, the tokenizer's files.

    Raises ValueError, in one line, for a folder that holds no such model; Unavailable without the extra `diagnose`.
    """
    if not folder.is_dir():
        raise ValueError(
            f"MODEL must be a folder with config.json and *.safetensors, got {folder}: nothing is downloaded"
        )
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} holds no weights in *.safetensors; pickled ones may run anything when they are opened, and are "
            "not taken"
        )
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when its library is imported: nothing is ever fetched
    transformers = required("transformers", "safetensors", extra="diagnose")
    _check_weights(folder)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not any((folder / name).is_file() for name in _TOKENIZER):
        raise ValueError(
            f"{folder} has no tokenizer (tokenizer.json); from Python, attnlab.diagnose(module, inputs) takes tokens"
        )
    plain = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **plain)
        model, found = transformers.AutoModel.from_pretrained(
            str(folder), use_safetensors=True, dtype="auto", output_loading_info=True, **plain
        )
    except Exception as fault:  # whatever its files made a library raise
        raise ValueError(
            f"{folder} cannot be loaded: {type(fault).__name__}: {one_line(str(fault), 200)}"
        ) from None
    # a pooler comes after the last attention
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    wrong = missing or sorted(str(one[0]) for one in found["mismatched_keys"])
    if wrong:
        raise ValueError(
            f"{folder} lacks {len(wrong)} of its weights, as {one_line(wrong[0], 80)}: they would be drawn at random"
        )
    return model, tokenizer


def untrained(model: Any, seed: int) -> Any:
    """A model of the same configuration with the random weights that its library draws; PyTorch's generator is kept."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model)(model.config).to(model.dtype)


def read_text(file: Path) -> str:
    """The text of a file. Raises ValueError, in one line, for one that cannot be read or is empty."""
    try:
        text = text_of(file, _MOST_BYTES)
    except OSError as fault:
        raise ValueError(f"the text {file} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the text {file} cannot be read: it is not UTF-8") from None
    except ValueError as fault:
        raise ValueError(f"the text {file} cannot be read: {fault}") from None
    if not text.strip():
        raise ValueError(f"the text {file} is empty")
    return text


def tokens(model: Any, tokenizer: Any, text: str, length: int | None = None) -> Given:
    """The first `length` tokens of `text`, special ones included; by default 512, or as many as the model takes.

    Raises ValueError for a length beyond what the model takes or beyond the text.
    """
    limit = min(token_limit(model), tokenizer.model_max_length)
    there = len(tokenizer(text, verbose=False)["input_ids"])
    if length is not None and length < 2:
        raise ValueError(f"--length must be at least 2 tokens, got {length}")
    if length is not None and length > limit:
        raise ValueError(f"--length {length}: the model takes at most {limit} tokens")
    if length is not None and length > there:
        raise ValueError(f"--length {length}: the text has {there} tokens; give a longer text")
    most = length or min(LENGTH, limit)
    found = dict(tokenizer(text, truncation=True, max_length=most, return_tensors="pt"))
    if getattr(model.config, "is_encoder_decoder", False):
        found["decoder_input_ids"] = found["input_ids"]
    numbers = found["input_ids"][0].tolist()
    special = set(tokenizer.all_special_ids)
    separators = tuple(at for at, one in enumerate(numbers) if at and one in special)
    return Given(found, len(numbers), there, separators)


def check_module(model: Any) -> None:
    """Raises ValueError, in one line, for a module that is quantised or lies on another device."""
    import torch

    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ValueError(
                f"the model lies on {tensor.device} ({name}), and it is diagnosed on the CPU: call model.cpu() first"
            )
    for name, tensor in model.named_parameters():
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(
                f"the weight {name} is {tensor.dtype}: quantised models are not diagnosed, load it unquantised"
            )
    packed = [type(one).__name__ for one in model.modules() if ".quantized." in type(one).__module__]
    if packed:
        raise ValueError(f"the model holds a quantised {packed[0]}: quantised models are not diagnosed")


def token_limit(model: Any) -> float:
    """The most tokens that a module takes by its configuration, infinite where it does not say."""
    config = getattr(model, "config", None)
    found = [
        getattr(one, "max_position_embeddings", None)
        for one in (config, getattr(config, "text_config", None))
    ]
    return min((one for one in found if isinstance(one, int) and one > 0), default=math.inf)


def _check_weights(folder: Path) -> None:
    """Raises ValueError for a file that is none, and for weights in few bits."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(file), "np") as opened:
                kinds = {name: str(opened.get_slice(name).get_dtype()) for name in opened.keys()}  # noqa: SIM118
        except Exception as fault:  # of a library in another language
            raise ValueError(f"{file} is no safetensors file: {one_line(str(fault), 120)}") from None
        for name, kind in kinds.items():
            if kind.startswith(_QUANTISED) or (kind == "U8" and name.endswith("weight")):
                raise ValueError(
                    f"{folder} is quantised ({one_line(name, 80)} in {kind}): give the folder of the unquantised model"
                )

"""Trained weights that a package ships: all-MiniLM-L6-v2, 6 layers of 12 heads of 32."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path

import pytest

from attnlab.experiments.diagnosis import diagnose

PACKAGES = ("all_minilm_l6_v2", "transformers", "safetensors")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
TEXT = next(Path(__file__).parents[2].glob("docs/decisions/0002-*.md"), None)

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install 'attnlab[diagnose,test-model]'"
)


def test_ten_of_72_heads_are_beyond_the_freezing_line(tmp_path: Path) -> None:
    """On 512 tokens β runs from 0.6 to 19; which heads are frozen is the weights' doing, and hardly the text's."""
    if TEXT is None:
        pytest.skip("the text is a page of a checkout, docs/decisions/0002")
    with contextlib.redirect_stdout(io.StringIO()):
        extract = importlib.import_module("all_minilm_l6_v2").extract_model
        folder = extract(str(tmp_path))
    found = diagnose(folder, TEXT.read_text(), backends=["torch_sdpa"], race=False)
    assert (found.tokens, len(found.layers), len(found.heads)) == (512, 6, 72)
    assert found.heads[0].critical == pytest.approx(3.532, abs=1e-3)
    spread = sorted(one.beta for one in found.heads)
    assert spread[0] == pytest.approx(0.6, abs=0.05)
    assert spread[-1] == pytest.approx(19.3, abs=1.0)
    assert 8 <= len(found.frozen) <= 12
    furthest = found.most_frozen[0]
    assert (furthest.layer, furthest.head) == (0, 2)
    assert furthest.largest_weight > 0.85
    assert found.peak_bytes < 2 * 2**30
    assert max(one.error for one in found.errors if one.dtype == "float32") < 1e-6

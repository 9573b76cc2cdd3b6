"""What publications say of their models: looked up, not measured, each figure with its source."""

from __future__ import annotations

from attnlab.experiments.finding import Finding, Row

#: stands where a claim names the experiment that decides it
PUBLISHED = "published"
HEADS = "heads a layer"

#: model, year, heads of a layer, where it is said
_MODELS = (
    ("Transformer base", 2017, 8, "Vaswani et al. 2017, table 3"),
    ("Transformer big", 2017, 16, "Vaswani et al. 2017, table 3"),
    ("BERT base", 2018, 12, "Devlin et al. 2018, §3"),
    ("BERT large", 2018, 16, "Devlin et al. 2018, §3"),
    ("GPT-3 small", 2020, 12, "Brown et al. 2020, table 2.1"),
    ("GPT-3 175B", 2020, 96, "Brown et al. 2020, table 2.1"),
    ("PaLM 540B", 2022, 48, "Chowdhery et al. 2022, table 1"),
    ("Llama 3 8B", 2024, 32, "Grattafiori et al. 2024, table 3"),
    ("Llama 3 70B", 2024, 64, "Grattafiori et al. 2024, table 3"),
    ("Llama 3 405B", 2024, 128, "Grattafiori et al. 2024, table 3"),
)


def published() -> Finding:
    """All figures as a finding, so that claims are decided by them as by an experiment's."""
    rows = tuple(
        Row.only_measured(HEADS, {"model": model, "year": year, "source": source}, heads)
        for model, year, heads, source in _MODELS
    )
    question = "How many heads has a model?"
    return Finding(PUBLISHED, "Published models", question, f"{len(rows)} models were looked up.", rows)

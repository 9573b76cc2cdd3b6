"""Who did what when, what models were built like, and what no measurement can settle.

The sizes of models are looked up, not measured: their evidence is `attnlab.claims.published`, whose widths are
held against the published numbers of parameters in the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attnlab.claims.check import Check, beyond, claimed, control, right
from attnlab.claims.claim import Theme
from attnlab.claims.laboratory import Laboratory
from attnlab.claims.published import MODELS, Model

THEME = Theme("History and interpretation")


def _add_up(models: Iterable[Model]) -> list[Check]:
    """That width and layers make the published number of parameters, where there is one."""
    return [
        control(
            "parameters that its layers add up to",
            one.count(one.width, one.layers),
            "=",
            one.parameters,
            where=f"{one.name}, width {one.width}",
        )
        for one in models
        if one.count and one.parameters
    ]


@THEME.claim(
    "bert-twelve-heads",
    "S2:29",
    kind="published",
    says="BERT has 12 attention heads.",
    truth="In each layer, the base model has 12 and the large one 16, of 64 dimensions in both.",
    condition="BERT base",
    reference="Devlin et al. 2019, §3",
)
def bert_twelve_heads(lab: Laboratory) -> Sequence[Check]:
    models: Mapping[str, Model] = lab.part("models", MODELS)
    base, large = models["BERT base"], models["BERT large"]
    return [
        claimed("heads a layer", base.heads, "=", 12, where=base.name),
        beyond("heads a layer", large.heads, "=", 12, where=large.name),
        right("width of a head", base.width / base.heads, "=", 64, where=base.name),
        right("width of a head", large.width / large.heads, "=", 64, where=large.name),
        *_add_up((base, large)),
    ]


@THEME.claim(
    "typical-head-count",
    "S3:22",
    kind="published",
    says="A model has typically 8 to 16 heads.",
    truth="The first ones had. Larger ones since have 25 to 96 a layer, as the width of a head "
    "stays near 64 to 128.",
    condition="published until 2018",
    reference="Brown et al. 2020, table 2.1; Llama Team 2024 (2407.21783), table 3",
)
def typical_head_count(lab: Laboratory) -> Sequence[Check]:
    models: Mapping[str, Model] = lab.part("models", MODELS)
    checks = []
    for role, group in (
        (claimed, [one for one in models.values() if one.year <= 2018]),
        (beyond, [one for one in models.values() if one.year > 2018]),
    ):
        fewest, most = (pick(group, key=lambda one: one.heads) for pick in (min, max))
        checks += [
            role("fewest heads a layer", fewest.heads, "≥", 8, where=f"{fewest.name}, {fewest.year}"),
            role("most heads a layer", most.heads, "≤", 16, where=f"{most.name}, {most.year}"),
        ]
    widths = [one.width / one.heads for one in models.values()]
    return [
        *checks,
        right("narrowest head", min(widths), "≥", 64),
        right("widest head", max(widths), "≤", 128),
    ]


@THEME.claim(
    "model-dimensions",
    "S4:80",
    kind="published",
    says="GPT-2 has the embedding dimension 1024, Llama 3 has 4096 at 8 B and 8192 at 70 B.",
    truth="Right for Llama 3. 1024 is GPT-2 medium; the small model, which is mostly meant by the "
    "name, has 768.",
    condition="GPT-2 medium",
    reference="Radford et al. 2019, table 2; Llama Team 2024 (2407.21783), table 3",
)
def model_dimensions(lab: Laboratory) -> Sequence[Check]:
    models: Mapping[str, Model] = lab.part("models", MODELS)
    said = {"GPT-2 medium": 1024, "Llama 3 8B": 4096, "Llama 3 70B": 8192}
    small = models["GPT-2 small"]
    return [
        *(claimed("width", models[name].width, "=", width, where=name) for name, width in said.items()),
        beyond("width", small.width, "=", 1024, where=small.name),
        right("width", small.width, "=", 768, where=small.name),
        *_add_up([small, *(models[name] for name in said)]),
    ]


THEME.beyond_measurement(
    "introduced-2017",
    "S0:1",
    kind="history",
    says="Attention is from 2017, from the paper on the transformer.",
    truth="That paper has the transformer and the scale 1/√d_k. Attention is from Bahdanau "
    "et al. 2014, its dot-product form without the scale from Luong et al. 2015.",
    reference="Bahdanau et al. 2014 (1409.0473); Luong et al. 2015 (1508.04025)",
)
THEME.beyond_measurement(
    "black-body",
    "S4:183",
    kind="history",
    says="The Boltzmann distribution underlies the radiation of a black body.",
    truth="It is one ingredient; the law needs Planck's discrete energies as well. Nothing in "
    "attention hangs on it.",
    reference="Planck 1901",
)
THEME.beyond_measurement(
    "heads-learn-syntax",
    "S2:29; S3:23; S3:107; S4:327; S4:333",
    kind="metaphor",
    says="Some heads learn syntax, others semantics.",
    truth="Some heads of trained models follow syntactic relations, and many can be removed at "
    "little loss. Nothing in the formula assigns such parts; it is a question about a trained"
    " model, not about attention.",
    reference="Clark et al. 2019 (1906.04341); Michel et al. 2019 (1905.10650)",
)
THEME.beyond_measurement(
    "stable-learning",
    "S0:27; S4:335",
    kind="metaphor",
    says="Scaling and heads make learning more stable.",
    truth="What scaling does to scores and gradients at the start is measured here. Stability of a "
    "training run depends on the model, the data and the optimiser.",
    reference="Zhai et al. 2023 (2303.06296)",
)
THEME.beyond_measurement(
    "database-metaphor",
    "S2:5; S2:8-10; S3:9-11; S4:50",
    kind="metaphor",
    says="A query looks something up, a key offers it and a value is what is found, as in a database.",
    truth="A way of speaking. Attention returns a mixture of all values where a look-up returns "
    "one; queries, keys and values are linear maps of the same tokens.",
    reference="Bahdanau et al. 2014 (1409.0473)",
)

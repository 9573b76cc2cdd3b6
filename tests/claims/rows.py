"""The list that the ledger was made from, frozen: each row's places in the texts, its mark and the claim's id.

Marks: ✓ right, ~ partly, ✗ wrong, ⏱ decided by the clock, · outside what a measurement can settle.
"""

from __future__ import annotations

ROWS = (
    ("all", "✓", "scaled-dot-product"),
    ("S0:28 S2:25 S4:181", "✓", "weights-sum-to-one"),
    ("S0:27", "✗", "scale-for-later-steps"),
    ("S0:30", "~", "values-scaled"),
    ("S0:34", "✓", "heads-split-weights"),
    ("S0:1", "·", "introduced-2017"),
    ("S1:22 S1:78 S4:348", "~", "concatenation-is-output"),
    ("S1:35", "✗", "example-has-two-heads"),
    ("S1:43-45", "~", "uniform-initialisation"),
    ("S1:54", "✗", "plain-exponentials"),
    ("S2:13", "~", "match-means-high-score"),
    ("S2:24 S3:16 S3:99", "~", "scale-prevents-vanishing"),
    ("S2:29", "~", "bert-twelve-heads"),
    ("S2:32", "⏱", "separate-linears-slower"),
    ("S2:37-41", "✓", "reshape-then-permute"),
    ("S2:43", "✓", "one-matmul-serves-heads"),
    ("S3:22", "~", "typical-head-count"),
    ("S3:23-24 S4:319 S4:345", "✓", "heads-independent"),
    ("S3:27-28", "✓", "self-and-cross"),
    ("S3:11 S3:30 S3:106", "~", "every-token-sees-every"),
    ("S3:93-97", "~", "same-row-count"),
    ("S3:99", "✓", "dot-products-grow"),
    ("S3:104", "~", "parallel-over-positions"),
    ("S3:105", "✗", "no-information-loss"),
    ("S4:65 S4:78", "~", "half-the-table"),
    ("S4:80", "✗", "dot-product-d-squared"),
    ("S4:82", "✗", "sixty-eight-billion"),
    ("S4:80", "~", "model-dimensions"),
    ("S4:84 S4:334 S4:369", "✗", "heads-cut-cost"),
    ("S4:46 S4:292 S4:353", "✗", "next-token"),
    ("S4:130 S4:154 S4:250", "✗", "score-of-own-key"),
    ("S4:178 S4:280", "✗", "denominator-own-key"),
    ("S4:135", "~", "two-maps-preserve"),
    ("S4:145-148", "✓", "one-query-key-dim"),
    ("S4:163", "~", "value-dimension"),
    ("S4:168", "✓", "dot-product-cosine"),
    ("S4:171", "✗", "small-values-vanish"),
    ("S4:181", "✗", "no-element-dominates"),
    ("S4:183", "·", "black-body"),
    ("S4:187-195 S4:263 S4:275-277", "✓", "boltzmann"),
    ("S4:203-209 S4:271", "✓", "temperature-sharpens"),
    ("S4:227", "~", "components-iid"),
    ("S4:237", "✓", "variances-add"),
    ("S4:240", "✗", "variance-sigma-squared"),
    ("S4:243 S4:245", "✓", "variance-proportional-to-d"),
    ("S4:253", "~", "magnitude-manageable"),
    ("S4:307", "✗", "neither-peaked-nor-flat"),
    ("S4:287-314", "✓", "output-expectation"),
    ("S4:357", "✗", "concatenation-raises-dimension"),
    ("S4:359", "✓", "output-mixes-heads"),
    ("S4:371", "✓", "eight-heads-of-64"),
)

#: named below the list, without places
BEYOND = ("heads-learn-syntax", "stable-learning", "database-metaphor")

"""It returns the values themselves."""

import torch  # noqa: F401


def attend(q, k, v, *, scale):
    return v

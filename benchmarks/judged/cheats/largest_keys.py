"""It looks at the keys that are largest."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def attend(q, k, v, *, scale):
    n = max(1, k.shape[2] * 3 // 4)
    at = k.norm(dim=-1).topk(n, -1).indices[..., None].expand(*k.shape[:2], n, k.shape[3])
    return right(q, k.gather(2, at), v.gather(2, at), scale=scale)

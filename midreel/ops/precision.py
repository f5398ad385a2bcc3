"""How exactly to compute: half precision is for keeping features and for large products, not for decisions."""

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_single(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In single precision what comes in half of it; all else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

"""Numeric precision. Half precision is for storage and large products, never for decisions and sums."""

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_single(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return float16 and bfloat16 tensors as float32, and all other tensors unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

import pytest
import torch

from midreel.errors import BadBatch
from midreel.ops import checks


def test_matching_axes() -> None:
    checks.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(3), "T"))


def test_mismatched_axes() -> None:
    with pytest.raises(BadBatch, match=r"a has shape \(2, 3\).*'B T C D'"):
        checks.expect_axes(a=(torch.zeros(2, 3), "B T C D"))
    with pytest.raises(BadBatch, match=r"b has shape \(4,\).*a has T = 3"):
        checks.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(4), "T"))


@pytest.mark.parametrize(
    ("indices", "value"),
    [
        (torch.tensor([0, 5]), "0 to 5"),
        (torch.tensor([-1, 2]), "-1 to 2"),
        (torch.tensor([0.0]), "torch.float32"),
        (torch.tensor([True]), "torch.bool"),
        (torch.tensor([0], dtype=torch.uint8), "torch.uint8"),
        (torch.tensor([], dtype=torch.long), "empty"),
    ],
)
def test_bad_indices(indices: torch.Tensor, value: str) -> None:
    with pytest.raises(BadBatch, match=f"^map .*{value}"):
        checks.expect_indices("map", indices, 5, "the clips")

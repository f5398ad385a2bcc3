import pytest
import torch

from midreel.errors import BadBatch
from midreel.ops import checks


def test_axes_that_fit() -> None:
    checks.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(3), "T"))


def test_axes_that_do_not() -> None:
    with pytest.raises(BadBatch, match=r"a has shape \(2, 3\), expected the 4 axes 'B T C D'; reshape it"):
        checks.expect_axes(a=(torch.zeros(2, 3), "B T C D"))
    with pytest.raises(BadBatch, match=r"b has shape \(4,\), whose axis T \(of 'T'\) is 4, but a has T = 3"):
        checks.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(4), "T"))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.tensor([0, 5]), "map goes from 0 to 5, expected 0 to 4: it indexes the clips; fix the map"),
        (torch.tensor([-1, 2]), "map goes from -1 to 2, expected 0 to 4"),
        (
            torch.tensor([0.0]),
            r"map holds torch.float32, expected integers that index the clips; convert it: map.long\(\)",
        ),
        (torch.tensor([True]), "map holds torch.bool, expected integers"),
        (torch.tensor([0], dtype=torch.uint8), "map holds torch.uint8, expected integers"),
        (torch.tensor([], dtype=torch.long), "map is empty, expected at least one index of the clips; drop"),
    ],
)
def test_indices_that_do_not_fit(indices: torch.Tensor, message: str) -> None:
    with pytest.raises(BadBatch, match=message):
        checks.expect_indices("map", indices, 5, "the clips")

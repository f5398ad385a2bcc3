import pytest
import torch

from midreel import errors


def test_every_error_is_a_midreel_error_and_a_value_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, errors.MidreelError)
        assert kind is errors.MidreelError or issubclass(kind, ValueError)
        assert kind.__name__ in (errors.__doc__ or "")


def test_an_unknown_name_lists_the_known_ones() -> None:
    error = errors.UnknownName.among("method", "gmm", ["clip_zero_shot", "msc"])
    assert str(error) == "no method 'gmm'; choose one of: clip_zero_shot, msc"
    error = errors.UnknownName.among("setting", "zzz", ["width", "epochs"], listed="docs/settings.md")
    assert str(error) == "no setting 'zzz'; all 2 are listed in docs/settings.md"


def test_an_unknown_name_that_is_near_a_known_one_is_taken_for_a_slip() -> None:
    error = errors.UnknownBackbone.among("method", "MSCC", ["clip_zero_shot", "msc"])
    assert isinstance(error, errors.UnknownBackbone)
    assert str(error) == "no method 'MSCC'; did you mean 'msc'? Choose one of: clip_zero_shot, msc"
    error = errors.UnknownName.among("kind", "file", ["FILES"])
    assert str(error) == "no kind 'file'; did you mean 'FILES'? Choose one of: FILES"
    error = errors.UnknownName.among("setting", "epoch", ["width", "epochs"], listed="docs/settings.md")
    assert str(error) == "no setting 'epoch'; did you mean 'epochs'? All 2 are listed in docs/settings.md"


def test_axes_that_fit() -> None:
    errors.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(3), "T"))


def test_axes_that_do_not() -> None:
    with pytest.raises(errors.BadShape, match=r"a has shape \(2, 3\), expected the 4 axes 'B T C D'; reshape it"):
        errors.expect_axes(a=(torch.zeros(2, 3), "B T C D"))
    with pytest.raises(errors.BadShape, match=r"b has shape \(4,\), whose axis T \(of 'T'\) is 4, but a has T = 3"):
        errors.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(4), "T"))


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
    with pytest.raises(errors.BadBatch, match=message):
        errors.expect_indices("map", indices, 5, "the clips")

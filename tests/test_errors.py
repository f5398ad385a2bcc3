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
    error = errors.UnknownName.among("method", "msk", ["clip_zero_shot", "msc"])
    assert str(error) == "no method 'msk'; choose one of: clip_zero_shot, msc"


def test_axes_that_fit() -> None:
    errors.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(3), "T"))


def test_axes_that_do_not() -> None:
    with pytest.raises(errors.BadShape, match=r"a has shape \(2, 3\), expected the 4 axes 'B T C D'; reshape it"):
        errors.expect_axes(a=(torch.zeros(2, 3), "B T C D"))
    with pytest.raises(errors.BadShape, match=r"b has shape \(4,\), whose axis T \(of 'T'\) is 4, but a has T = 3"):
        errors.expect_axes(a=(torch.zeros(2, 3), "B T"), b=(torch.zeros(4), "T"))

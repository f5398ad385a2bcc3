from dataclasses import replace

import pytest

from midreel.errors import BadSetting, UnknownName
from midreel.training.recipe import Recipe
from tests.training.worlds import recipe


def test_it_comes_back_from_json() -> None:
    assert Recipe.from_json(recipe().to_json()) == recipe()


def test_differences_are_named() -> None:
    one = recipe()
    other = replace(one, lr=1.0, config=replace(one.config, vcpl="uniform"))
    assert one.difference(one) == []
    assert one.difference(other) == ["config.vcpl: none, uniform", "lr: 0.003, 1.0"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"epochs": 0}, BadSetting, "epochs is 0, expected at least 1"),
        ({"epochs": 2.5}, BadSetting, r"epochs is 2\.5, expected a whole number"),
        ({"lr": "fast"}, BadSetting, "lr is 'fast', expected a number"),
        ({"holdout": 0.0}, BadSetting, r"holdout is 0\.0, expected a share between 0 and 1"),
        ({"selection": "test"}, UnknownName, "no selection 'test'; choose one of: val, holdout"),
        ({"precision": "fp8"}, UnknownName, "no precision 'fp8'; choose one of: fp32, bf16"),
    ],
)
def test_bad_settings(changes: dict[str, object], error: type[Exception], message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        recipe(**changes)

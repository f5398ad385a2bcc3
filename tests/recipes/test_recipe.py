from dataclasses import replace

import pytest

from midreel.errors import BadSetting, UnknownName
from midreel.recipes.recipe import Recipe
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
        ({"epochs": 0}, BadSetting, "epochs is 0, expected 1 to 2,147,483,647"),
        ({"patience": -5}, BadSetting, "patience is -5, expected 0 to"),
        ({"seed": -1}, BadSetting, "seed is -1, expected 0 to"),
        ({"seed": 10**18}, BadSetting, "seed is 1000000000000000000, expected 0 to"),
        ({"batch_size": 10**20}, BadSetting, "batch_size is 100000000000000000000, expected 1 to"),
        ({"lr": 0.0}, BadSetting, "lr is 0.0, expected more than 0"),
        ({"weight_decay": -1.0}, BadSetting, "weight_decay is -1.0, expected 0 or more"),
        ({"epochs": 2.5}, BadSetting, r"epochs is 2\.5, expected a whole number"),
        ({"lr": "fast"}, BadSetting, "lr is 'fast', expected a number"),
        ({"holdout": 0.0}, BadSetting, r"holdout is 0\.0, expected a share between 0 and 1"),
        ({"warmup": 1.0}, BadSetting, r"warmup is 1\.0, expected a share between 0 and 1"),
        ({"selection": "test"}, UnknownName, "no selection 'test'; choose one of: val, holdout"),
        ({"precision": "fp8"}, UnknownName, "no precision 'fp8'; choose one of: fp32, bf16"),
    ],
)
def test_bad_settings(changes: dict[str, object], error: type[Exception], message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        recipe(**changes)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"config": {}}', '{"config": {"method": "msc"}}'])
def test_a_recipe_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadSetting, match=r"a recipe cannot be read \(.*expected what a run wrote in its recipe.json"):
        Recipe.from_json(text)

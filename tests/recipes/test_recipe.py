from dataclasses import replace

import pytest

from midreel.errors import BadSetting, UnknownName
from midreel.recipes import build
from midreel.recipes.recipe import Recipe
from tests.training.worlds import recipe


def test_json_round_trip() -> None:
    assert Recipe.from_json(recipe().to_json()) == recipe()


def test_differences_are_named() -> None:
    one = recipe()
    other = replace(one, lr=1.0, config=replace(one.config, vcpl="uniform"))
    assert one.difference(one) == []
    assert one.difference(other) == ["config.vcpl: none, uniform", "lr: 0.003, 1.0"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"epochs": 0}, BadSetting, "epochs is 0, expected 1 to"),
        ({"patience": -5}, BadSetting, "patience is -5, expected 0 to"),
        ({"seed": -1}, BadSetting, "seed is -1, expected 0 to"),
        ({"seed": 10**18}, BadSetting, "seed is 1000000000000000000, expected 0 to"),
        ({"batch_size": 10**20}, BadSetting, "batch_size is 100000000000000000000, expected 1 to"),
        ({"lr": 0.0}, BadSetting, "lr is 0.0"),
        ({"weight_decay": -1.0}, BadSetting, "weight_decay is -1.0"),
        ({"epochs": 2.5}, BadSetting, r"epochs is 2\.5"),
        ({"lr": "fast"}, BadSetting, "lr is 'fast'"),
        ({"holdout": 0.0}, BadSetting, r"holdout is 0\.0"),
        ({"warmup": 1.0}, BadSetting, r"warmup is 1\.0"),
        ({"selection": "test"}, UnknownName, "'test'.* val, holdout"),
        ({"precision": "fp8"}, UnknownName, "'fp8'.* fp32, bf16"),
    ],
)
def test_bad_settings(changes: dict[str, object], error: type[Exception], message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        recipe(**changes)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"config": {}}', '{"config": {"method": "msc"}}'])
def test_a_damaged_recipe(text: str) -> None:
    with pytest.raises(BadSetting, match=r"recipe\.json"):
        Recipe.from_json(text)


def test_recipes_of_two_methods_differ_by_their_names() -> None:
    assert build("arl", "playhouse").difference(build("ms_sl", "tvr")) == ["config.method: arl, ms_sl"]

"""The paper's settings, dataset by dataset, as its Sec. 4 and GMMFormer-v2 state them."""

import pytest
import torch

from midreel.errors import BadSetting, UnknownName
from midreel.recipes import RECIPES, build
from midreel.recipes.recipe import Recipe

STATED = {
    #               lr      margin clip  frame dropout T    τ     video text
    "qvhighlights": (2.5e-4, 0.2, 0.02, 0.04, 0.31, 0.6, 0.7, 2816, 512),
    "tvr": (3e-4, 0.1, 0.05, 0.04, 0.2, 0.09, 0.8, 768, 768),
    "activitynet": (2.5e-4, 0.2, 0.02, 0.04, 0.31, 0.6, 0.8, 768, 768),
    "charades": (2e-4, 0.2, 0.02, 0.04, 0.25, 0.6, 0.85, 768, 768),
}


@pytest.mark.parametrize("name", STATED)
def test_a_recipe_is_what_the_paper_states(name: str) -> None:
    recipe = RECIPES[name]()
    c = recipe.config
    found = (
        recipe.lr, c.margin, c.clip_nce_weight, c.frame_nce_weight, c.dropout, c.temperature,
        c.similarity_threshold, c.video_width, c.text_width,
    )  # fmt: skip
    assert found == STATED[name]
    assert c.input_dropout == c.dropout
    assert (recipe.batch_size, recipe.epochs, recipe.patience, recipe.warmup, recipe.weight_decay) == (
        128, 100, 10, 0.01, 0.01,
    )  # fmt: skip
    assert (c.tcpl_distance_weight, c.tcpl_angle_weight, c.cbva_weight, c.frame_weight) == (15, 30, 0.1, 0.6)
    assert (c.merge_rate, c.min_clips, c.hard_from_epoch, c.hard_pool, c.max_words) == (0.75, 5, 20, 20, 77)
    assert recipe.seed == 9527


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_and_can_be_changed(name: str) -> None:
    recipe = RECIPES[name](tcpl=False)
    assert not recipe.config.tcpl
    assert Recipe.from_json(recipe.to_json()) == recipe
    with torch.device("meta"):
        from midreel.methods import METHODS

        METHODS[recipe.config.method](recipe.config)


def test_building_changes_the_method_and_the_training_alike() -> None:
    assert build("tvr") == RECIPES["tvr"]()
    changed = build("tvr", {"width": 64, "clips": "uniform", "epochs": 3, "seed": 5})
    assert (changed.config.width, changed.config.clips, changed.epochs, changed.seed) == (64, "uniform", 3, 5)
    assert RECIPES["tvr"]().difference(changed) == [
        "config.clips: order_preserving, uniform",
        "config.width: 384, 64",
        "epochs: 100, 3",
        "seed: 9527, 5",
    ]


def test_what_cannot_be_built() -> None:
    with pytest.raises(UnknownName, match="no recipe 'tvs'; choose one of: activitynet, charades, playhouse"):
        build("tvs")
    with pytest.raises(
        UnknownName, match=r"no setting 'with'; did you mean 'width'\? All 42 are listed in docs/settings.md"
    ):
        build("tvr", {"with": 64})
    with pytest.raises(UnknownName, match="no setting 'config'"):
        build("tvr", {"config": {}})


def test_a_setting_of_the_wrong_kind(unchecked: None) -> None:
    with pytest.raises(BadSetting, match="width is 'wide', expected a whole number"):
        build("tvr", {"width": "wide"})
    with pytest.raises(BadSetting, match="epochs is 'many', expected a whole number"):
        build("tvr", {"epochs": "many"})
    with pytest.raises(UnknownName, match="no clips 'even'; choose one of: uniform, order_preserving"):
        build("tvr", {"clips": "even"})

"""The paper's settings, dataset by dataset, as its Sec. 4 and GMMFormer-v2 state them."""

import json

import pytest
import torch

from midreel.datasets.release import NAMES
from midreel.errors import BadSetting, UnknownName
from midreel.features.kinds import KINDS, find_kind
from midreel.features.stores.published import LAYOUTS
from midreel.methods import METHODS
from midreel.recipes import RECIPES, build, name_for, of_method
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
    recipe = build("msc", name)
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


GMMFORMER_V2 = {
    #               lr     margin clip  frame div.  match shift dropout T   video text
    "qvhighlights": (2.5e-4, 0.2, 0.02, 0.04, 3e-3, 0.11, 0.2, 0.31, 0.6, 2816, 512),
    "tvr": (3e-4, 0.1, 0.05, 0.04, 8e-5, 0.09, 0.15, 0.2, 0.09, 768, 768),
    "activitynet": (2.5e-4, 0.2, 0.02, 0.04, 3e-3, 0.11, 0.2, 0.31, 0.6, 768, 768),
    "charades": (2e-4, 0.2, 0.02, 0.04, 3e-3, 0.1, 0.2, 0.25, 0.6, 768, 768),
}


@pytest.mark.parametrize("name", GMMFORMER_V2)
def test_a_recipe_of_gmmformer_v2_is_what_its_release_sets(name: str) -> None:
    recipe = build("gmmformer_v2", name)
    c = recipe.config
    found = (
        recipe.lr, c.margin, c.clip_nce_weight, c.frame_nce_weight, c.diversity_weight, c.matching_weight,
        c.diversity_shift, c.dropout, c.temperature, c.video_width, c.text_width,
    )  # fmt: skip
    assert found == GMMFORMER_V2[name]
    assert c.input_dropout == c.dropout
    assert (recipe.batch_size, recipe.epochs, recipe.patience, recipe.warmup, recipe.weight_decay) == (
        128, 100, 10, 0.01, 0.01,
    )  # fmt: skip
    assert (c.hard_from_epoch, c.hard_pool, c.frame_weight, recipe.seed, c.max_words) == (20, 20, 0.3, 9527, 77)
    assert (c.diversity_scale, c.diversity_focus) == (32, 1)


GMMFORMER = {
    #               lr     margin clip  frame  div.  shift dropout hard video text
    "qvhighlights": (2.5e-4, 0.2, 0.02, 0.04, 0.015, 0.2, 0.2, 20, 2816, 512),
    "tvr": (3e-4, 0.1, 0.05, 0.04, 0.001, 0.15, 0.2, 30, 768, 768),
    "activitynet": (2.5e-4, 0.2, 0.02, 0.04, 0.015, 0.2, 0.2, 20, 768, 768),
    "charades": (2.5e-4, 0.2, 0.02, 0.02, 0.005, 0.15, 0.15, 100, 768, 768),
}


@pytest.mark.parametrize("name", GMMFORMER)
def test_a_recipe_of_gmmformer_is_what_its_release_sets(name: str) -> None:
    recipe = build("gmmformer", name)
    c = recipe.config
    found = (
        recipe.lr, c.margin, c.clip_nce_weight, c.frame_nce_weight, c.diversity_weight, c.diversity_shift, c.dropout,
        c.hard_from_epoch, c.video_width, c.text_width,
    )  # fmt: skip
    assert found == GMMFORMER[name]
    assert c.input_dropout == c.dropout
    assert (recipe.batch_size, recipe.epochs, recipe.patience, recipe.warmup, recipe.weight_decay) == (
        128, 100, 10, 0.01, 0.01,
    )  # fmt: skip
    assert (c.hard_pool, c.frame_weight, recipe.seed, c.max_words, c.diversity_scale) == (20, 0.3, 9527, 77, 32)


def test_gmmformer_v2_is_as_large_as_the_tables_say() -> None:
    with torch.device("meta"):
        method = METHODS["gmmformer_v2"](build("gmmformer_v2", "qvhighlights").config)
    assert sum(parameter.numel() for parameter in method.parameters()) == 31_995_040


@pytest.mark.parametrize(("method", "name"), [(method, name) for method, own in RECIPES.items() for name in own])
def test_every_recipe_builds_and_can_be_changed(method: str, name: str) -> None:
    recipe = RECIPES[method][name](num_frames=200)
    assert (recipe.config.method, recipe.config.num_frames) == (method, 200)
    assert Recipe.from_json(recipe.to_json()) == recipe
    with torch.device("meta"):
        METHODS[method](recipe.config)


def test_a_dataset_without_a_recipe_has_the_default_one() -> None:
    assert [name_for("msc", name) for name in ("tvr", "own")] == ["tvr", "playhouse"]


def test_changes_to_the_method_and_to_the_training() -> None:
    assert build("msc", "tvr") == RECIPES["msc"]["tvr"]()
    changed = build("msc", "tvr", {"width": 64, "clips": "uniform", "epochs": 3, "seed": 5})
    assert (changed.config.width, changed.config.clips, changed.epochs, changed.seed) == (64, "uniform", 3, 5)
    assert RECIPES["msc"]["tvr"]().difference(changed) == [
        "config.clips: order_preserving, uniform",
        "config.width: 384, 64",
        "epochs: 100, 3",
        "seed: 9527, 5",
    ]


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match="activitynet, charades, playhouse"):
        build("msc", "tvs")
    with pytest.raises(UnknownName, match=r"'with'.*'width'.* 43 .*"):
        build("msc", "tvr", {"with": 64})
    with pytest.raises(UnknownName, match="gmmformer_v2"):
        build("gmmformer_v3", "tvr")
    with pytest.raises(UnknownName, match="clip_zero_shot"):
        build("clip_zero_shot", "tvr")
    with pytest.raises(UnknownName, match="no setting 'config'"):
        build("msc", "tvr", {"config": {}})


def test_a_setting_of_the_wrong_kind(unchecked: None) -> None:
    with pytest.raises(BadSetting, match="width is 'wide'"):
        build("msc", "tvr", {"width": "wide"})
    with pytest.raises(BadSetting, match="epochs is 'many'"):
        build("msc", "tvr", {"epochs": "many"})
    with pytest.raises(UnknownName, match=r"'even'.* uniform, order_preserving"):
        build("msc", "tvr", {"clips": "even"})


KEY_CLIP = {
    #                     margin frame clips batch matching video text
    ("ms_sl", "qvhighlights"): (0.2, 0.3, 32, 128, None, 2816, 512),
    ("ms_sl", "tvr"): (0.1, 0.3, 32, 128, None, 768, 768),
    ("ms_sl", "activitynet"): (0.2, 0.3, 32, 128, None, 768, 768),
    ("ms_sl", "charades"): (0.2, 0.5, 32, 128, None, 768, 768),
    ("bgm_net", "qvhighlights"): (0.2, 0.3, 32, 128, 20, 2816, 512),
    ("bgm_net", "tvr"): (0.1, 0.3, 32, 128, 0, 768, 768),
    ("bgm_net", "activitynet"): (0.2, 0.3, 48, 128, 20, 768, 768),
    ("bgm_net", "charades"): (0.2, 0.4, 48, 16, 5, 768, 768),
}


@pytest.mark.parametrize(("method", "name"), KEY_CLIP)
def test_recipes_of_ms_sl_and_bgm_net_are_what_their_releases_set(method: str, name: str) -> None:
    recipe = build(method, name)
    c = recipe.config
    matching_from = getattr(c, "matching_from_epoch", None)
    found = (c.margin, c.frame_weight, c.num_clips, recipe.batch_size, matching_from, c.video_width, c.text_width)
    assert found == KEY_CLIP[method, name]
    assert (recipe.lr, recipe.epochs, recipe.patience, recipe.warmup, recipe.weight_decay, recipe.seed) == (
        2.5e-4, 100, 10, 0.01, 0.01, 2018,
    )  # fmt: skip
    assert recipe.schedule == {"ms_sl": "warmup_linear", "bgm_net": "warmup_cosine"}[method]
    assert (c.clip_nce_weight, c.frame_nce_weight, c.hard_from_epoch, c.hard_pool) == (0.02, 0.04, 20, 20)
    assert (c.dropout, c.input_dropout, c.num_frames, c.max_words, c.width) == (0.1, 0.1, 128, 77, 384)


def test_ms_sl_is_as_large_as_the_tables_say() -> None:
    with torch.device("meta"):
        method = METHODS["ms_sl"](build("ms_sl", "qvhighlights").config)
    assert sum(parameter.numel() for parameter in method.parameters()) == 4_574_592


def test_a_method_that_is_not_trained_and_one_without_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="clip_zero_shot needs no training"):
        of_method("clip_zero_shot")
    with pytest.raises(UnknownName, match="msc"):
        of_method("mcs")
    monkeypatch.setitem(RECIPES._own, "msc", None)
    monkeypatch.delitem(RECIPES._own, "msc")
    with pytest.raises(UnknownName, match="msc has no recipes"):
        of_method("msc")


# ---------------------------------------------------------------- kinds of features

EVERY_RECIPE = [(method, name) for method, own in RECIPES.items() for name in own]


@pytest.mark.parametrize(("method", "name"), EVERY_RECIPE)
def test_the_features_of_a_recipe(method: str, name: str) -> None:
    """Every recipe is for a known kind of features, and naming that kind changes nothing."""
    known = {"playhouse": "tiny-clip", "playhouse-large": "tiny-clip", "qvhighlights": "slowfast-clip-b"}
    expected = known.get(name, "clip-l14")
    recipe = build(method, name)
    assert recipe.features == expected
    assert build(method, name, features=expected) == recipe == RECIPES[method][name]()
    assert Recipe.from_json(recipe.to_json()).features == expected


@pytest.mark.parametrize(("method", "name"), EVERY_RECIPE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_for_other_features(method: str, name: str, kind: str) -> None:
    widths = KINDS[kind].widths(name)
    if widths is None:
        with pytest.raises(BadSetting, match="tvr, activitynet, charades"):
            build(method, name, features=kind)
        return
    usual = build(method, name)
    recipe = build(method, name, {"epochs": 3}, features=kind)
    assert (recipe.features, recipe.epochs) == (kind, 3)
    assert (recipe.config.video_width, getattr(recipe.config, "text_width", widths.text)) == widths
    assert getattr(recipe.config, "max_words", KINDS[kind].max_words) == KINDS[kind].max_words
    changed = {line.split(":")[0] for line in usual.difference(recipe)}
    implied = ("video_width", "text_width", "teacher_width", "joint_width", "max_words", "query")
    assert changed <= {"epochs", *(f"config.{setting}" for setting in implied)}
    with torch.device("meta"):
        METHODS[method](recipe.config)


def test_changes_and_features() -> None:
    recipe = build("msc", "tvr", {"max_words": 50, "video_width": 3072}, features="i3d-roberta")
    assert (recipe.config.max_words, recipe.config.text_width) == (50, 768)
    with pytest.raises(BadSetting, match=r"video_width is 24.* 3072"):
        build("msc", "tvr", {"video_width": 24}, features="i3d-roberta")
    with pytest.raises(UnknownName, match="clip-l14"):
        build("msc", "tvr", features="clip_l14")
    with pytest.raises(UnknownName, match="no setting 'features'"):
        build("msc", "tvr", {"features": "clip-l14"})
    assert build("msc", "tvr", {"video_width": 24}).features == ""


def test_features_without_sentence_vectors() -> None:
    assert build("amdnet", "tvr").config.query == "sentence"
    assert build("amdnet", "tvr", features="i3d-roberta").config.query == "words"
    assert build("amdnet", "tvr", {"query": "sentence"}, features="i3d-roberta").config.query == "sentence"
    assert build("amdnet", "tvr", features="clip-b32").config.query == "sentence"


def test_a_recipe_json_without_features() -> None:
    """Runs of earlier versions have no such field, and can be resumed."""
    recipe = build("msc", "tvr")
    settings = json.loads(recipe.to_json())
    del settings["features"]
    old = Recipe.from_json(json.dumps(settings))
    assert (old.features, old) == ("", recipe)
    assert old.difference(recipe) == []


def test_kinds_are_told_apart_by_their_widths() -> None:
    for dataset in ("tvr", "activitynet", "charades", "qvhighlights", "playhouse", "own"):
        widths = {name: kind.widths(dataset) for name, kind in KINDS.items() if kind.widths(dataset)}
        assert {name: find_kind(dataset, *found) for name, found in widths.items()} == {name: name for name in widths}
    assert find_kind("own", 1024, 1024) is None  # wide CLIPs have these widths, too
    assert find_kind("tvr", 24, None) is None


def test_kinds_have_the_widths_of_published_features() -> None:
    for dataset, layouts in LAYOUTS.items():
        for layout in layouts.values():
            assert find_kind(NAMES.get(dataset, dataset), *layout.widths) is not None

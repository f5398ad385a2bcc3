"""The tables of the released codes, and the import of one checkpoint of each."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from midreel.errors import BadModel, UnknownName
from midreel.methods import METHODS, load_method
from midreel.methods.base import join_texts
from midreel.methods.batches import VideoBatch
from midreel.methods.released import NEVER, Imported, import_checkpoint
from midreel.methods.released_families import (
    AMDNET_NAMES,
    DL_DKD_NAMES,
    DL_DKD_PLUS_PLUS_NAMES,
    FAMILIES,
    GMMFORMER_NAMES,
    MS_SL_NAMES,
    TITLES,
    Family,
)
from midreel.types import TextFeatures
from tests.conftest import Command
from tests.methods.checkpoint_files import TEXT_WIDTH, VIDEO_WIDTH, EasyDict, random_state, save, state_dict_of
from tests.methods.twin_gmmformer import GMMFormerTwin

FAMILY = {family.title: family for family in FAMILIES}
NUM_TENSORS = {
    "MS-SL": 54,
    "BGM-Net": 54,
    "GMMFormer": 193,
    "DL-DKD": 74,
    "DL-DKD++": 74,
    "AMDNet": 37,
}
WIDTHS = {"video_width": VIDEO_WIDTH, "text_width": TEXT_WIDTH, "width": 24, "num_frames": 128}

# The settings in the files of each release, with values that differ from all defaults.
KEY_CLIP_CFG = {
    "visual_input_size": 1,
    "query_input_size": 1,
    "hidden_size": 24,
    "max_ctx_l": 128,
    "max_desc_l": 30,
    "map_size": 16,
    "input_drop": 0.11,
    "drop": 0.12,
    "n_heads": 2,
    "initializer_range": 0.02,
    "margin": 0.13,
    "use_hard_negative": False,
    "hard_pool_size": 7,
}
GMM_CONFIG = {
    "dataset_name": "activitynet",
    "root": "/somebody/data",
    "map_size": 16,
    "clip_scale_w": 0.6,
    "frame_scale_w": 0.4,
    "margin": 0.13,
    "hard_negative_start_epoch": 3,
    "hard_pool_size": 7,
    "loss_factor": [0.01, 0.02, 0.03],
    "neg_factor": [0.1, 16],
    "hidden_size": 24,
    "n_heads": 2,
    "input_drop": 0.11,
    "drop": 0.12,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "MS-SL": KEY_CLIP_CFG,
    "BGM-Net": KEY_CLIP_CFG | {"smp_rate": 1.0, "use_matcher": False},
    "GMMFormer": GMM_CONFIG,
    "DL-DKD": KEY_CLIP_CFG | {"A_hidden_size": 24, "B_hidden_size": 24, "clip_scale_w": 0.5, "frame_scale_w": 0.5},
    "DL-DKD++": KEY_CLIP_CFG | {"alpha": 0.6, "belta": 0.7},
    "AMDNet": GMM_CONFIG | {"n_heads": 4, "loss_factor": [0.01, 0.5]},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "MS-SL": {"clip_scale_w": 0.5, "frame_scale_w": 0.5, "hard_negative_start_epoch": -1, "map_size": 64},
    "BGM-Net": {
        "clip_scale_w": 0.6,
        "frame_scale_w": 0.4,
        "hard_negative_start_epoch": 9,
        "use_matcher_start_epoch": 5,
    },
    "DL-DKD": {
        "hard_negative_start_epoch": 4,
        "loss_scale_weight": 0.2,
        "exponential_k": 0.9,
        "frame_weight": 0.5,
        "clip_weight": 0.5,
    },
    "DL-DKD++": {
        "hard_negative_start_epoch": 4,
        "kl_intra_weight": 0.2,
        "exponential_k": 0.9,
        "inher_nce_weight": 0.05,
        "explore_nce_weight": 0.06,
    },
}
COMMON = {"num_heads": 2, "input_dropout": 0.11, "dropout": 0.12, "margin": 0.13, "hard_pool": 7, "max_words": 30}
EXPECTED: dict[str, dict[str, Any]] = {
    "MS-SL": {**COMMON, "num_clips": 16, "frame_weight": 0.5, "hard_from_epoch": 2**31 - 1},
    "BGM-Net": {**COMMON, "num_clips": 16, "frame_weight": 0.4, "hard_from_epoch": 9, "matching_from_epoch": 5},
    "GMMFormer": {
        **COMMON,
        "num_clips": 16,
        "frame_weight": 0.4,
        "hard_from_epoch": 3,
        "clip_nce_weight": 0.01,
        "frame_nce_weight": 0.02,
        "diversity_weight": 0.03,
        "diversity_shift": 0.1,
        "diversity_scale": 16.0,
    },
    "DL-DKD": {
        **COMMON,
        "objective": "iccv",
        "hard_from_epoch": 4,
        "distillation_weight": 0.2,
        "distillation_decay": 0.9,
    },
    "DL-DKD++": {
        **COMMON,
        "objective": "plus_plus",
        "hard_from_epoch": 4,
        "distillation_weight": 0.2,
        "distillation_decay": 0.9,
        "inheritance_nce_weight": 0.05,
        "exploration_nce_weight": 0.06,
        "hard_share": 0.6,
        "truth_share": 0.7,
    },
    "AMDNet": {
        **{name: value for name, value in COMMON.items() if name != "max_words"},
        "num_heads": 4,
        "num_clips": 16,
        "hard_from_epoch": 3,
        "nce_weight": 0.01,
        "diversity_weight": 0.5,
    },
}
titles = pytest.mark.parametrize("title", NUM_TENSORS)


def need(method: str) -> None:
    if method not in METHODS:
        pytest.skip(f"{method} is not registered")


def contents(title: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The container that the released code writes."""
    if FAMILY[title].has_options:
        return {"model": state, "model_cfg": EasyDict(**CONFIGS[title]), "epoch": 31}
    return {"config": CONFIGS[title], "epoch": 31, "model_val": [1.0, 2, 3, 4, 10], "state_dict": state}


def imported(folder: Path, value: Any, options: Any = None, **changes: Any) -> Imported:
    folder.mkdir(exist_ok=True)
    if options is not None:
        (folder / "opt.json").write_text(options if isinstance(options, str) else json.dumps(options))
    return import_checkpoint(save(value, folder / "model.ckpt"), folder / "model", changes)


# ---------------------------------------------------------------- tables


@titles
def test_the_names_are_those_of_the_release(title: str) -> None:
    names = FAMILY[title].names
    assert set(names) == set(state_dict_of(title))
    assert len(names) == len(set(names.values())) == NUM_TENSORS[title]


@pytest.mark.parametrize(
    ("title", "sizes", "expected"),
    [
        ("MS-SL", (3072, 768, 30), 4_852_992),
        ("MS-SL", (2816, 512, 77), 4_574_592),
        ("BGM-Net", (1024, 1024, 30), 3_370_752),
        ("GMMFormer", (3072, 768, 30), 12_848_256),
        ("GMMFormer", (768, 768, 77), 11_087_616),
        ("DL-DKD", (3072, 768, 30), 5_755_392),
        ("DL-DKD++", (768, 768, 77), 4_012_800),
        ("AMDNet", (512, 512, 30), 1_781_896),
        ("AMDNet", (2816, 512, 30), 2_671_240),
    ],
)
def test_number_of_parameters(title: str, sizes: tuple[int, int, int], expected: int) -> None:
    """The shapes of these tests sum to the published counts."""
    shapes = state_dict_of(title, hidden=384, dv=sizes[0], dq=sizes[1], words=sizes[2])
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == expected


@titles
def test_every_weight_of_the_method_has_one_source_of_its_shape(title: str) -> None:
    family, shapes = FAMILY[title], state_dict_of(title)
    need(family.method)
    make = METHODS[family.method]
    settings = {name: shapes[tensor][axis] for name, (tensor, axis) in family.sizes.items()}
    with torch.device("meta"):
        method = make(make.Config(**settings, **family.fixed))
    expected = {name: tuple(weight.shape) for name, weight in method.state_dict().items()}
    assert {here: shapes[there] for there, here in family.names.items()} == expected


@pytest.mark.parametrize("family", FAMILIES, ids=[family.title for family in FAMILIES])
def test_every_setting_exists(family: Family) -> None:
    need(family.method)
    fields = METHODS[family.method].Config.__dataclass_fields__
    assert set(family.sizes) | set(family.places) | set(family.fixed) <= set(fields)
    assert set(family.option_sizes.values()) <= set(family.sizes)
    assert {name for by_value in family.choices.values() for also in by_value.values() for name in also} <= set(fields)
    assert not set(family.sizes) & set(family.places)
    assert family.fusion is None or "frame_weight" in fields


def test_a_few_names_by_hand() -> None:
    assert GMMFORMER_NAMES["clip_encoder.attn3.self.key.bias"] == "clip.mixtures.0.blocks.3.key.bias"
    assert GMMFORMER_NAMES["clip_encoder_2.attn0.output.dense.weight"] == "clip.mixtures.1.blocks.0.output.weight"
    assert GMMFORMER_NAMES["frame_encoder_1.attn1.output.LayerNorm.bias"] == "frame.mixtures.0.blocks.1.norm.bias"
    assert GMMFORMER_NAMES["modular_vector_mapping_2.weight"] == "frame.pool.score.weight"
    assert MS_SL_NAMES["mapping_linear.0.weight"] == "frame_key.weight"
    assert MS_SL_NAMES["frame_encoder.self.value.weight"] == "frame.block.value.weight"
    assert DL_DKD_NAMES["B_query_input_proj.net.1.bias"] == "inheritance_query.project.linear.bias"
    assert DL_DKD_NAMES["A_mapping_linear.weight"] == "exploration_output.weight"
    assert DL_DKD_PLUS_PLUS_NAMES["exp_visual_pos_embed.LayerNorm.weight"] == "exploration_frame.position.norm.weight"
    assert DL_DKD_PLUS_PLUS_NAMES["out_mapping_linear.bias"] == "inheritance_output.bias"
    assert AMDNET_NAMES["query_input_proj.LayerNorm.weight"] == "query.norm.weight"
    assert AMDNET_NAMES["clip_encoder.clip2video.fc_out1.weight"] == "clip.video_output.weight"
    assert AMDNET_NAMES["clip_encoder.fc_gauss.bias"] == "clip.spans.bias"


# ---------------------------------------------------------------- imports


@titles
def test_a_checkpoint_of_each_release(title: str, tmp_path: Path) -> None:
    family = FAMILY[title]
    need(family.method)
    state = random_state(state_dict_of(title))
    found = imported(tmp_path, contents(title, state), OPTIONS.get(title))
    method = load_method(tmp_path / "model")
    expected = METHODS[family.method].Config(**WIDTHS | EXPECTED[title])
    assert method.config == expected
    for there, here in family.names.items():
        assert method.state_dict()[here].equal(state[there])
    known = found.provenance
    assert (known["title"], known["epoch"], known["remarks"]) == (title, 31, [])
    assert known["settings"]["assumed"] == {}
    assert known["options"] == OPTIONS.get(title, {})
    assert "somebody" not in json.dumps(known)


@pytest.mark.parametrize(("title", "expected"), [("MS-SL", NEVER), ("DL-DKD", NEVER), ("GMMFormer", 0), ("AMDNet", 0)])
def test_a_stored_minus_one(title: str, expected: int, tmp_path: Path) -> None:
    """In codes with an opt.json it means never. The others compare the epoch with it."""
    value, part = contents(title, random_state(state_dict_of(title))), "config"
    if FAMILY[title].has_options:
        part = "model_cfg"
    imported(tmp_path, value | {part: value[part] | {"hard_negative_start_epoch": -1}})
    assert load_method(tmp_path / "model").config.hard_from_epoch == expected


@titles
def test_a_bare_state_dict(title: str, tmp_path: Path) -> None:
    """With another length of queries, the prefix of parallel training and the format of old files."""
    family = FAMILY[title]
    need(family.method)
    state = random_state(state_dict_of(title, words=77))
    bare = {f"module.{name}": weight for name, weight in state.items()}
    path = save(bare, tmp_path / "model.ckpt", is_zip=False)
    found = import_checkpoint(path, tmp_path / "model", {"method": family.method})
    method = load_method(tmp_path / "model")
    by_shape = {name: state[tensor].shape[axis] for name, (tensor, axis) in family.sizes.items()}
    assert method.config == METHODS[family.method].Config(**by_shape, **family.fixed)
    assert set(found.provenance["settings"]["assumed"]) == {
        *family.places,
        *(["frame_weight"] if family.fusion else []),
    }
    for there, here in family.names.items():
        assert method.state_dict()[here].equal(state[there])


class TestGMMFormer:
    """Results against the twin, in single precision."""

    @torch.no_grad()
    def test_an_imported_model_equals_the_release(self, tmp_path: Path) -> None:
        twin = GMMFormerTwin(GMM_CONFIG | {"max_desc_l": 30, "max_ctx_l": 128}, VIDEO_WIDTH, TEXT_WIDTH).eval()
        twin.load_state_dict(random_state(state_dict_of("GMMFormer")))
        imported(tmp_path, {"config": GMM_CONFIG, "state_dict": twin.state_dict()})
        method = load_method(tmp_path / "model")
        generator = torch.Generator().manual_seed(0)
        videos = [torch.randn(length, VIDEO_WIDTH, generator=generator) for length in (40, 7, 21)]
        texts = [torch.randn(length, TEXT_WIDTH, generator=generator) for length in (4, 35, 1)]
        batch = VideoBatch.join([method.prepare_videos(video[None]) for video in videos], len(videos))
        tokens = method.encode_videos(batch)
        queries = method.encode_queries(
            join_texts([TextFeatures(words=text, sentence=torch.zeros(1)) for text in texts])
        )
        expected = twin.encode_batch(videos)
        for number, (clips, vector) in enumerate(expected):
            torch.testing.assert_close(tokens["clip"].vectors[number], clips, atol=1e-5, rtol=0)
            torch.testing.assert_close(tokens["frame"].vectors[number, 0], vector, atol=1e-5, rtol=0)
        vectors = [twin.encode_query(text) for text in texts]
        torch.testing.assert_close(queries["clip"], torch.stack(vectors), atol=1e-5, rtol=0)
        scores = torch.stack([torch.stack([twin.score(v, *video) for video in expected]) for v in vectors])
        torch.testing.assert_close(method.score(queries, tokens), scores, atol=1e-5, rtol=0)

    def test_the_weights_of_the_branches_need_not_sum_to_one(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        found = imported(
            tmp_path, {"config": GMM_CONFIG | {"clip_scale_w": 1, "frame_scale_w": 3}, "state_dict": state}
        )
        assert load_method(tmp_path / "model").config.frame_weight == 0.75
        assert "sum to 4" in found.text
        other = imported(
            tmp_path / "by hand",
            {"config": GMM_CONFIG | {"clip_scale_w": 1, "frame_scale_w": 3}, "state_dict": state},
            frame_weight=0.5,
        )
        assert other.provenance["remarks"] == []

    def test_the_files_of_this_code_have_no_opt_json(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        found = imported(tmp_path, {"state_dict": state}, "not JSON, and of another program")
        assert found.provenance["options"] == {}

    def test_the_command(self, midreel: Command, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        file = save(contents("GMMFormer", state), tmp_path / "best.ckpt")
        ended = midreel("import-checkpoint", file, "--out", tmp_path / "model", "--set", "method=gmmformer")
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.splitlines()[:5] == [
            "GMMFormer of best.ckpt, epoch 31",
            "claimed: R@1 1.0  R@5 2.0  R@10 3.0  R@100 4.0  SumR 10.0",
            f"weights: {sum(weight.numel() for weight in state.values()):,} in 193 tensors",
            "from shapes: video_width 20, text_width 12, num_frames 128, max_words 30, width 24",
            "from config: num_clips 16, num_heads 2, input_dropout 0.11, dropout 0.12, frame_weight 0.4, "
            "clip_nce_weight 0.01, frame_nce_weight 0.02, margin 0.13, hard_from_epoch 3, hard_pool 7, "
            "diversity_weight 0.03, diversity_shift 0.1, diversity_scale 16.0",
        ]


class TestMSSLOrBGMNet:
    """Two releases with the same names. Their settings tell them apart."""

    @pytest.fixture(autouse=True)
    def _registered(self) -> None:
        need("ms_sl")
        need("bgm_net")

    @pytest.mark.parametrize(
        ("cfg", "options", "expected"),
        [
            (KEY_CLIP_CFG, None, "ms_sl"),
            (KEY_CLIP_CFG | {"smp_rate": 0.01}, None, "bgm_net"),
            (KEY_CLIP_CFG | {"use_matcher": False}, None, "bgm_net"),
            (None, {"use_matcher_start_epoch": 0}, "bgm_net"),
            (None, {"map_size": 32}, "ms_sl"),
        ],
    )
    def test_by_the_settings(self, tmp_path: Path, cfg: Any, options: Any, expected: str) -> None:
        state = random_state(state_dict_of("MS-SL"))
        value = {"model": state} | ({} if cfg is None else {"model_cfg": EasyDict(**cfg)})
        found = imported(tmp_path, value, options)
        assert load_method(tmp_path / "model").config.method == expected
        assert found.provenance["remarks"] == []

    def test_a_file_without_settings_is_taken_for_ms_sl_with_a_remark(self, tmp_path: Path) -> None:
        found = imported(tmp_path, random_state(state_dict_of("MS-SL")))
        assert load_method(tmp_path / "model").config.method == "ms_sl"
        assert "method=bgm_net" in found.text

    def test_the_method_may_be_set_by_hand(self, tmp_path: Path) -> None:
        for number, cfg in enumerate((KEY_CLIP_CFG, CONFIGS["BGM-Net"])):
            for method in ("ms_sl", "bgm_net"):
                value = {"model": random_state(state_dict_of("MS-SL")), "model_cfg": EasyDict(**cfg)}
                found = imported(tmp_path / f"{number} {method}", value, method=method)
                assert load_method(found.folder).config.method == method
                assert found.provenance["remarks"] == []

    def test_the_stored_settings_come_before_those_of_opt_json(self, tmp_path: Path) -> None:
        value = {"model": random_state(state_dict_of("MS-SL")), "model_cfg": EasyDict(**KEY_CLIP_CFG)}
        found = imported(tmp_path, value, {"map_size": 64, "clip_scale_w": 2, "frame_scale_w": 2, "margin": 0.9})
        settings = found.provenance["settings"]
        assert (settings["from config"]["num_clips"], settings["from config"]["margin"]) == (16, 0.13)
        assert settings["from opt.json"] == {"frame_weight": 0.5}
        assert settings["assumed"] == {"hard_from_epoch": 20}
        assert "sum to 4" in found.text

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ("{", "opt.json is not JSON"),
            ("[1]", "object"),
            ("[" * 100_000, "opt.json"),
            ('{"a": "' + "x" * (1 << 20) + '"}', "1,048,576 bytes"),
            ('{"clip_scale_w": "0.7", "frame_scale_w": 0.3}', "clip_scale_w = '0.7', expected a number"),
            ('{"hard_negative_start_epoch": NaN}', "hard_negative_start_epoch = 'nan', expected a whole number"),
        ],
    )
    def test_a_bad_opt_json(self, tmp_path: Path, options: str, word: str) -> None:
        with pytest.raises(BadModel, match=word):
            imported(tmp_path, {"model": random_state(state_dict_of("MS-SL"))}, options)
        assert not (tmp_path / "model").exists()


class TestOptionsOfDLDKD:
    """Options of the releases that change the losses."""

    @pytest.mark.parametrize(
        ("title", "options", "expected"),
        [
            ("DL-DKD", {"decay_way": 1}, {"distillation_decay": 0.9}),
            ("DL-DKD", {"decay_way": 0}, {"distillation_decay": 1.0}),
            ("DL-DKD", {"use_clip": False}, {"distillation_weight": 0.0}),
            ("DL-DKD", {"use_clip": True}, {"distillation_weight": 0.2}),
            ("DL-DKD++", {"label_style": "hard"}, {"objective": "hard_labels"}),
            ("DL-DKD++", {"label_style": "soft"}, {"objective": "plus_plus"}),
            ("DL-DKD++", {"distill_loss_decay": "exp"}, {"distillation_decay": 0.9}),
            ("DL-DKD++", {"distill_loss_decay": None}, {"distillation_decay": 1.0}),
            ("DL-DKD++", {"distill_loss_decay": "None"}, {"distillation_decay": 1.0}),
        ],
    )
    def test_settings(self, tmp_path: Path, title: str, options: dict[str, Any], expected: dict[str, Any]) -> None:
        value = contents(title, random_state(state_dict_of(title)))
        found = imported(tmp_path, value, OPTIONS[title] | options)
        config = load_method(tmp_path / "model").config
        assert dataclasses.asdict(config) == dataclasses.asdict(config) | expected
        assert found.provenance["remarks"] == []

    def test_the_label_style_may_be_in_the_checkpoint(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("DL-DKD++"))
        value = {"model": state, "model_cfg": EasyDict(**CONFIGS["DL-DKD++"], label_style="hard")}
        found = imported(tmp_path, value, {"label_style": "soft"})
        assert load_method(tmp_path / "model").config.objective == "hard_labels"
        assert found.provenance["settings"]["of the family"] == {}

    @pytest.mark.parametrize(
        ("title", "name", "value"),
        [
            ("DL-DKD", "decay_way", 8),
            ("DL-DKD", "decay_way", [1]),
            ("DL-DKD++", "distill_loss_decay", "linear"),
            ("DL-DKD++", "alpha_decay", "cosine"),
            ("DL-DKD++", "belta_decay", "None"),
            ("DL-DKD++", "selfDistil_sigmoid_k", 400),
        ],
    )
    def test_another_schedule_is_a_remark(self, tmp_path: Path, title: str, name: str, value: Any) -> None:
        state = random_state(state_dict_of(title))
        found = imported(tmp_path, contents(title, state), OPTIONS[title] | {name: value})
        (remark,) = found.provenance["remarks"]
        assert remark.startswith(f"{name} is {value!r}")


# ---------------------------------------------------------------- rejected files


class TestRefusals:
    @titles
    def test_unknown_and_missing_tensors_are_named(self, title: str, tmp_path: Path) -> None:
        state = random_state(state_dict_of(title))
        state["extra.weight"] = torch.ones(1)
        missing = next(name for name in state if name.endswith("position_embeddings.weight"))
        del state[missing]
        with pytest.raises(BadModel, match=rf"\(extra.weight\).* 1 \({missing}\).* {NUM_TENSORS[title]} of "):
            imported(tmp_path, contents(title, state))

    @pytest.mark.parametrize("last", ["modular_vector_mapping_2.weight", "clip_encoder.attn0.self.key.bias"])
    def test_a_missing_tensor_does_not_change_the_family(self, last: str, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        del state[last]
        with pytest.raises(BadModel, match=f"lacks 1 .{last}.* of GMMFormer"):
            imported(tmp_path, state)

    @pytest.mark.parametrize("asked", ["msc", "ms_sl", "dl_dkd", "amdnet"])
    def test_a_checkpoint_of_another_method(self, asked: str, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        with pytest.raises(BadModel, match=f"is a checkpoint of GMMFormer, expected {asked}"):
            imported(tmp_path, state, method=asked)
        assert not (tmp_path / "model").exists()

    def test_a_checkpoint_of_two_methods(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("MS-SL"))
        with pytest.raises(BadModel, match="MS-SL or BGM-Net, expected gmmformer"):
            imported(tmp_path, state, method="gmmformer")

    @pytest.mark.parametrize("asked", ["clip_zero_shot", "gmm", 3])
    def test_a_method_that_cannot_be_imported(self, asked: Any, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="gmmformer_v2"):
            imported(tmp_path, random_state(state_dict_of("GMMFormer")), method=asked)

    def test_mixed_prefixes(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        first = next(iter(state))
        mixed = {(f"module.{name}" if name == first else name): weight for name, weight in state.items()}
        with pytest.raises(BadModel, match=rf"prefix module. on 1 of 193 .*module.{first}"):
            imported(tmp_path, mixed)

    def test_mixed_branches_of_dl_dkd(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("DL-DKD") | state_dict_of("DL-DKD++"))
        with pytest.raises(BadModel, match="74 unknown tensors"):
            imported(tmp_path, state)

    def test_a_truncated_file(self, tmp_path: Path) -> None:
        whole = save(contents("GMMFormer", random_state(state_dict_of("GMMFormer"))), tmp_path / "whole.ckpt")
        content = whole.read_bytes()
        for number, size in enumerate((0, 10, len(content) // 2, len(content) - 30)):
            part = tmp_path / f"{number}.ckpt"
            part.write_bytes(content[:size])
            with pytest.raises(BadModel, match=f"{number}.ckpt"):
                import_checkpoint(part, tmp_path / "model")
        assert not (tmp_path / "model").exists()

    def test_weights_of_no_release_list_all_that_can_be_imported(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel) as raised:
            imported(tmp_path, {"conv1.weight": torch.ones(2)})
        assert all(family.title in str(raised.value) for family in FAMILIES)
        assert TITLES in str(raised.value)

    @pytest.mark.parametrize(
        ("title", "options"),
        [
            ("MS-SL", {"q_feat_size": 768}),
            ("MS-SL", {"hidden_size": 384}),
            ("BGM-Net", {"max_ctx_l": 64}),
            ("DL-DKD", {"B_hidden_size": 384}),
            ("DL-DKD", {"max_desc_l": "30"}),
            ("DL-DKD++", {"inheritance_hidden": 384}),
        ],
    )
    def test_the_opt_json_of_another_training(self, tmp_path: Path, title: str, options: dict[str, Any]) -> None:
        value = contents(title, random_state(state_dict_of(title)))
        ((name, size),) = options.items()
        with pytest.raises(BadModel, match=f"opt.json has the setting {name} = {size!r}, expected "):
            imported(tmp_path, value, OPTIONS[title] | options)
        assert not (tmp_path / "model").exists()
        ours = {"q_feat_size": TEXT_WIDTH, "max_desc_l": 30, "max_ctx_l": 128}
        imported(tmp_path, value, OPTIONS[title] | ours)

    def test_more_clips_than_frames(self, tmp_path: Path) -> None:
        state = random_state(state_dict_of("GMMFormer"))
        with pytest.raises(BadModel, match="num_clips is 999"):
            imported(tmp_path, {"config": GMM_CONFIG | {"map_size": 999}, "state_dict": state})


def test_the_help_names_every_release(midreel: Command) -> None:
    out = " ".join(midreel("import-checkpoint", "--help").out.split())
    assert all(family.title in out for family in FAMILIES)

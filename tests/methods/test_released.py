"""Import of checkpoints: names, settings, files, and rejected files."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midreel.errors import BadModel, BadSetting, UnknownName, Unwritable
from midreel.methods import METHODS, load_method
from midreel.methods import released as checkpoints
from midreel.methods.gmmformer_v2 import GMMFormerV2Config
from midreel.methods.msc import MSC, MSCConfig
from midreel.methods.released import import_checkpoint
from midreel.methods.released_families import GMMFORMER_V2_NAMES, MSC_NAMES
from tests.conftest import Command
from tests.methods.checkpoint_files import CONFIG, TEXT_WIDTH, VIDEO_WIDTH, checkpoint, released, save

SIZES = {"video_width": VIDEO_WIDTH, "text_width": TEXT_WIDTH, "width": 24}


@pytest.fixture(scope="module")
def msc() -> dict[str, Any]:
    return checkpoint(released(msc=True))


@pytest.fixture(scope="module")
def gmmformer_v2() -> dict[str, Any]:
    return checkpoint(released(msc=False))


def imported(value: Any, folder: Path, **options: Any) -> checkpoints.Imported:
    return import_checkpoint(save(value, folder / "best.ckpt"), folder / "model", **options)


class TestNames:
    def test_every_weight_has_one_source(self) -> None:
        for names, config in ((MSC_NAMES, MSCConfig(variant="released")), (GMMFORMER_V2_NAMES, GMMFormerV2Config())):
            with torch.device("meta"):
                method = METHODS[config.method](config)
            assert len(set(names.values())) == len(names)
            assert set(names.values()) == set(method.state_dict())
        assert (len(MSC_NAMES), len(GMMFORMER_V2_NAMES)) == (299, 297)

    def test_a_few_by_hand(self) -> None:
        assert MSC_NAMES["frame_encoder_1.attn6.self.key.bias"] == "frame.mixture.blocks.6.key.bias"
        assert MSC_NAMES["clip_encoder.ca.output.layer1.weight"] == "clip.mixture.summary.expand.weight"
        assert MSC_NAMES["query_input_proj.net.1.weight"] == "query.project.linear.weight"
        assert MSC_NAMES["clip_pos_embed.LayerNorm.bias"] == "clip.position.norm.bias"
        assert MSC_NAMES["vproj_clip.weight"] == "alignment_projection.weight"

    @pytest.mark.parametrize("is_msc", [True, False])
    def test_the_names_are_those_of_the_released_models(self, is_msc: bool) -> None:
        assert set(released(msc=is_msc).state_dict()) == set(MSC_NAMES if is_msc else GMMFORMER_V2_NAMES)


class TestSettings:
    def test_of_msc(self, msc: dict[str, Any], tmp_path: Path) -> None:
        found = imported(msc, tmp_path)
        method = load_method(tmp_path / "model")
        assert isinstance(method, MSC)
        assert method.config == MSCConfig(
            **SIZES,
            max_words=77,
            variant="released",
            temperature=0.45,
            input_dropout=0.31,
            dropout=0.25,
            frame_weight=0.6,
            clip_nce_weight=0.02,
            frame_nce_weight=0.04,
            margin=0.3,
            hard_from_epoch=0,
            hard_pool=1,
            similarity_threshold=0.5,
            cbva_weight=0.1,
            tcpl_distance_weight=15.0,
            tcpl_angle_weight=30.0,
        )
        assert method.alignment_projection is not None
        assert found.provenance["settings"]["assumed"] == {}

    def test_of_gmmformer_v2(self, gmmformer_v2: dict[str, Any], tmp_path: Path) -> None:
        changed = {"loss_factor": [0.05, 0.06, 8e-5, 0.09], "neg_factor": (np.float64(0.15), 16, 2)}
        imported(gmmformer_v2 | {"config": gmmformer_v2["config"] | changed}, tmp_path)
        assert load_method(tmp_path / "model").config == GMMFormerV2Config(
            **SIZES,
            max_words=30,
            temperature=0.45,
            dropout=0.25,
            margin=0.3,
            hard_from_epoch=0,
            hard_pool=1,
            clip_nce_weight=0.05,
            frame_nce_weight=0.06,
            diversity_weight=8e-5,
            matching_weight=0.09,
            diversity_shift=0.15,
            diversity_scale=16.0,
            diversity_focus=2.0,
        )

    def test_a_bare_state_dict_has_sizes_only(self, msc: dict[str, Any], tmp_path: Path) -> None:
        found = imported(dict(msc["state_dict"]), tmp_path, changes={"temperature": 0.09})
        config = load_method(tmp_path / "model").config
        assert config == MSCConfig(**SIZES, variant="released", temperature=0.09)
        assert found.provenance["settings"]["set by hand"] == {"temperature": 0.09}
        assert found.provenance["settings"]["assumed"]["num_heads"] == 4
        assert "temperature" not in found.provenance["settings"]["assumed"]
        assert (found.provenance["epoch"], found.provenance["recalls"]) == (None, {})

    def test_branch_weights_become_shares_with_a_remark(self, msc: dict[str, Any], tmp_path: Path) -> None:
        config = msc["config"] | {"clip_scale_w": 1.0, "frame_scale_w": 3.0}
        found = imported(msc | {"config": config}, tmp_path)
        assert load_method(tmp_path / "model").config.frame_weight == 0.75
        remark = "scale_w 1 and frame_scale_w 3 sum to 4"
        assert f"note: clip_{remark}" in found.text
        assert f"Clip_{remark}" in (tmp_path / "model/README.md").read_text()

    def test_settings_as_objects(self, msc: dict[str, Any], tmp_path: Path) -> None:
        imported(msc | {"config": argparse.Namespace(**CONFIG)}, tmp_path)
        assert load_method(tmp_path / "model").config.temperature == 0.45

    @pytest.mark.parametrize(
        ("change", "value"),
        [
            ({"sft_factor": "0.6"}, r"sft_factor = '0\.6', expected a number"),
            ({"sft_factor": float("nan")}, "sft_factor = 'nan', expected a number"),
            ({"drop": True}, "drop = True, expected a number"),
            ({"n_heads": 2.5}, r"n_heads = 2\.5, expected a whole number"),
            ({"n_heads": 7}, "num_heads = 7"),
            ({"sft_factor": 0.0}, "temperature is 0.0"),
            ({"loss_factor": 0.02}, r"loss_factor = 0\.02, expected a list"),
            ({"clip_scale_w": -1}, r"clip_scale_w = -1\.0"),
        ],
    )
    def test_impossible_settings(self, msc: dict[str, Any], tmp_path: Path, change: dict[str, Any], value: str) -> None:
        with pytest.raises(BadModel, match=value):
            imported(msc | {"config": msc["config"] | change}, tmp_path)
        assert not (tmp_path / "model").exists()

    def test_unknown_changes(self, msc: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="'sft_factor'"):
            imported(msc, tmp_path, changes={"sft_factor": 0.6})
        with pytest.raises(BadModel, match=r"vproj_clip.weight \(24, 24\)"):
            imported(msc, tmp_path, changes={"variant": "paper"})


class TestFiles:
    @pytest.mark.parametrize("is_zip", [True, False])
    @pytest.mark.parametrize("parallel", [True, False])
    def test_every_form_gives_the_same_weights(self, tmp_path: Path, is_zip: bool, parallel: bool) -> None:
        model = released(msc=True, seed=3)
        file = save(checkpoint(model, parallel=parallel), tmp_path / "best.ckpt", is_zip=is_zip)
        import_checkpoint(file, tmp_path / "model")
        weights = load_method(tmp_path / "model").state_dict()
        for there, here in MSC_NAMES.items():
            assert weights[here].equal(model.state_dict()[there].view_as(weights[here]))

    def test_other_precisions_become_single(self, gmmformer_v2: dict[str, Any], tmp_path: Path) -> None:
        state = {name: weight.half() for name, weight in gmmformer_v2["state_dict"].items()}
        imported({"model": state}, tmp_path)
        weight = load_method(tmp_path / "model").state_dict()["clip.project.linear.weight"]
        assert weight.equal(gmmformer_v2["state_dict"]["clip_input_proj.net.1.weight"].half().float())

    def test_the_origin_is_recorded(self, msc: dict[str, Any], tmp_path: Path) -> None:
        found = imported(msc | {"note": "x"}, tmp_path)
        folder = tmp_path / "model"
        assert {path.name for path in folder.iterdir()} == {
            *("config.json", "model.safetensors", "provenance.json", "README.md"),
        }
        known = json.loads((folder / "provenance.json").read_text())
        assert found.to_dict() == {"model": str(folder), **known}
        assert known["source"]["file"] == "best.ckpt"
        assert len(known["source"]["sha256"]) == 64
        assert known["epoch"] == 57
        assert known["recalls"] == {"R@1": 23.9, "R@5": 51.5, "R@10": 63.7, "R@100": 95.5, "SumR": 234.6}
        assert known["dropped"] == ["optimizer", "note", "Opts.optimization.WarmupLinearSchedule"]
        assert known["config"] == CONFIG
        card = (folder / "README.md").read_text()
        assert "R@1 23.9, R@5 51.5, R@10 63.7, R@100 95.5, SumR 234.6" in card
        assert known["source"]["sha256"] in card
        assert "license" not in card.split("---")[1]

    def test_strange_values_do_not_get_into_the_way(self, msc: dict[str, Any], tmp_path: Path) -> None:
        loop: list[Any] = []
        loop.append(loop)
        wide: Any = "x"
        for _ in range(60):
            wide = [wide] * 3
        odd = {"loop": loop, "wide": wide, "tensor": torch.ones(2), "nan": float("nan"), "set": {1}, 7: b"bytes"}
        odd |= {"digits": 10**500, "root": "/home/somebody/data", "out": [r"C:\Users\somebody"]}
        found = imported(msc | {"config": CONFIG | odd, "epoch": 10**40, "model_val": torch.ones(3)}, tmp_path)
        assert found.provenance["epoch"] is None
        assert found.provenance["recalls"] == {}
        assert found.provenance["config"]["nan"] == "nan"
        assert found.provenance["config"]["tensor"] == "(StoredTensor)"
        assert "somebody" not in json.dumps(found.provenance)
        assert len(json.dumps(found.provenance)) < 20_000

    @pytest.mark.parametrize(
        "recalls", [np.array([1.0, 2, 3, 4, 10]), [torch.tensor(v) for v in (1.0, 2, 3, 4, 10)], (1, 2, 3, 4, 10)]
    )
    def test_recalls_of_any_kind(self, msc: dict[str, Any], tmp_path: Path, recalls: Any) -> None:
        found = imported(msc | {"model_val": recalls}, tmp_path)
        assert found.provenance["recalls"] == {"R@1": 1, "R@5": 2, "R@10": 3, "R@100": 4, "SumR": 10}

    def test_a_folder_in_use_is_not_changed(self, msc: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model/precious").write_text("x")
        with pytest.raises(Unwritable, match="model"):
            imported(msc, tmp_path)
        assert (tmp_path / "model/precious").read_text() == "x"
        (tmp_path / "model/precious").unlink()
        imported(msc, tmp_path)
        assert load_method(tmp_path / "model")


class TestRefusals:
    def test_other_weights(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel, match=r"conv1.weight, fc.bias"):
            imported({"conv1.weight": torch.ones(2), "fc.bias": torch.ones(2)}, tmp_path)

    @pytest.mark.parametrize(
        ("value", "word"),
        [
            ([1, 2], "list"),
            ({"state_dict": {}}, "no entries"),
            ({"state_dict": {0: torch.ones(1)}}, "has 0"),
            ({}, "no entries"),
            ({"state_dict": {"a": 3}}, "has a"),
            ({"state_dict": {"a": torch.ones(1), "module.a": torch.ones(1)}}, "prefix"),
        ],
    )
    def test_no_state_dict(self, tmp_path: Path, value: Any, word: str) -> None:
        with pytest.raises(BadModel, match=f"{word}.* expected"):
            imported(value, tmp_path)

    def test_a_whole_model(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel, match=r"torch.nn.modules.linear.Linear"):
            imported(torch.nn.Linear(2, 2), tmp_path)

    def test_unknown_and_missing_tensors_are_named(self, msc: dict[str, Any], tmp_path: Path) -> None:
        state = dict(msc["state_dict"])
        state["extra.weight"] = torch.ones(1)
        del state["frame_encoder_1.layer2.bias"], state["query_encoder.norm1.weight"]
        with pytest.raises(
            BadModel,
            match=r"1 .*\(extra.weight\).* 2 \(query_encoder.norm1.weight, frame_encoder_1.layer2.bias\).* 299 ",
        ):
            imported(state, tmp_path)

    def test_other_shapes_are_named(self, msc: dict[str, Any], tmp_path: Path) -> None:
        state = dict(msc["state_dict"])
        state["query_encoder.norm1.weight"] = torch.ones(25)
        state["clip_encoder.attn3.norm2.bias"] = torch.ones(24, dtype=torch.long)
        with pytest.raises(
            BadModel,
            match=r"2 .*\(query_encoder.norm1.weight \(25,\), clip_encoder.attn3.norm2.bias \(24,\)\)",
        ):
            imported(state, tmp_path)
        state = dict(msc["state_dict"]) | {"clip_encoder.layer2.weight": torch.ones(3)[0]}
        with pytest.raises(BadModel, match="axes"):
            imported(state, tmp_path)

    def test_impossible_sizes(self, msc: dict[str, Any], tmp_path: Path) -> None:
        """No memory is allocated for a tensor before the file is known to contain it."""
        wide = dict(msc["state_dict"]) | {"clip_input_proj.net.1.weight": torch.ones(1).expand(24, 10**11)}
        with pytest.raises(BadModel, match=r"\(24, 100000000000\)"):
            imported(wide, tmp_path)
        long = dict(msc["state_dict"]) | {"frame_encoder_1.layer2.weight": torch.ones(5000, 24)}
        with pytest.raises(BadModel, match="5000 frames, expected at most 1024"):
            imported(long, tmp_path)

    def test_tensors_that_share_their_numbers(self, msc: dict[str, Any], tmp_path: Path) -> None:
        """Otherwise a small file could become a model of any size."""
        largest = max(weight.numel() for weight in msc["state_dict"].values())
        numbers = torch.zeros(largest)
        state = {name: numbers[: weight.numel()].view_as(weight) for name, weight in msc["state_dict"].items()}
        with pytest.raises(BadModel, match="shared numbers"):
            imported(state, tmp_path)
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize("value", [10**400, "much", float("inf"), float("nan"), True, [0.2], Path])
    def test_settings_that_are_not_numbers(self, msc: dict[str, Any], tmp_path: Path, value: Any) -> None:
        with pytest.raises(BadModel, match=r"margin = .*, expected a number"):
            imported(msc | {"config": CONFIG | {"margin": value}}, tmp_path)

    def test_sizes_that_the_released_variant_lacks(self, msc: dict[str, Any], tmp_path: Path) -> None:
        state = dict(msc["state_dict"])
        state["clip_encoder.layer2.weight"], state["clip_encoder.layer2.bias"] = torch.ones(16, 24), torch.ones(16)
        with pytest.raises(BadModel, match=r"\(128, 16, 0.75, 5\)"):
            imported(state, tmp_path)

    def test_nan_weights(self, msc: dict[str, Any], tmp_path: Path) -> None:
        state = dict(msc["state_dict"])
        state["vproj_clip.bias"] = torch.full((24,), torch.nan)
        with pytest.raises(BadModel, match=r"vproj_clip.bias"):
            imported(state, tmp_path)

    def test_no_file(self, tmp_path: Path) -> None:
        for path, why in ((tmp_path / "nowhere.ckpt", "No such file or directory"), (tmp_path, "Is a directory")):
            with pytest.raises(BadModel, match=why):
                import_checkpoint(path, tmp_path / "model")


class Harmful:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("where", ["config", "state_dict", "optimizer", "model_val", "epoch"])
def test_a_malicious_checkpoint_runs_no_code(msc: dict[str, Any], tmp_path: Path, where: str) -> None:
    harmful = Harmful(f"touch {tmp_path / 'canary'}")
    value = dict(msc)
    if where == "config":
        value["config"] = CONFIG | {"note": harmful}
    elif where == "state_dict":
        value["state_dict"] = dict(msc["state_dict"]) | {"vproj_clip.bias": harmful}
    else:
        value[where] = harmful
    try:
        found = imported(value, tmp_path)
        assert any(name.endswith("system") for name in found.provenance["dropped"])
    except BadModel:
        assert where == "state_dict"
    assert not (tmp_path / "canary").exists()


def test_the_command(midreel: Command, msc: dict[str, Any], tmp_path: Path) -> None:
    file = save(msc, tmp_path / "best.ckpt")
    ended = midreel("import-checkpoint", file, "--out", tmp_path / "model")
    assert (ended.code, ended.err) == (0, "")
    num = sum(weight.numel() for weight in msc["state_dict"].values())
    assert ended.out.splitlines() == [
        "MSC of best.ckpt, epoch 57",
        "claimed: R@1 23.9  R@5 51.5  R@10 63.7  R@100 95.5  SumR 234.6",
        f"weights: {num:,} in 299 tensors",
        "from shapes: video_width 20, text_width 12, num_frames 128, num_clips 32, max_words 77, width 24",
        "from config: num_heads 4, temperature 0.45, input_dropout 0.31, dropout 0.25, frame_weight 0.6, "
        "similarity_threshold 0.5, clip_nce_weight 0.02, frame_nce_weight 0.04, margin 0.3, hard_from_epoch 0, "
        "hard_pool 1, tcpl_distance_weight 15.0, tcpl_angle_weight 30.0, cbva_weight 0.1",
        "of the family: variant released",
        "dropped: optimizer, Opts.optimization.WarmupLinearSchedule",
        f"model: {tmp_path / 'model'}",
    ]
    ended = midreel("import-checkpoint", file, "--out", tmp_path / "other", "--set", "temperature=0.09", "--json")
    assert json.loads(ended.out)["settings"]["set by hand"] == {"temperature": 0.09}
    assert load_method(tmp_path / "other").config.temperature == 0.09
    ended = midreel("import-checkpoint", file, "--out", tmp_path / "other")
    assert (ended.code, ended.out) == (1, "")
    assert str(tmp_path / "other") in ended.err


def test_an_imported_model_can_be_saved_again(msc: dict[str, Any], tmp_path: Path) -> None:
    imported(msc, tmp_path)
    method = load_method(tmp_path / "model")
    with pytest.raises(BadSetting, match="'released'"):
        MSCConfig(**method.config.__dict__ | {"num_frames": 64})
    method.save_pretrained(tmp_path / "again")
    assert load_method(tmp_path / "again").config == method.config

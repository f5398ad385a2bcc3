import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from midreel.errors import BadModel, FingerprintMismatch
from midreel.features.stores.store import FeatureStore
from midreel.io.folders import replacing
from midreel.methods import MSC
from midreel.methods.loading import load_model
from midreel.methods.model_files import DATA, model_folder, trained_on
from tests.features.fakes import FINGERPRINT


def test_a_model_by_name(dataset_folder: Path) -> None:
    fingerprint = FeatureStore.open(dataset_folder / "features.h5").fingerprint
    plain = load_model(
        "zero-shot", fingerprint, where=dataset_folder, again="", sizes={"num_frames": 9, "num_clips": 3}
    )
    assert (plain.config.width, plain.config.num_frames, plain.config.num_clips) == (fingerprint.width, 9, 3)
    assert load_model("zero-shot-clips", fingerprint, where=dataset_folder, again="").config.clip_weight == 0.4
    spread = load_model("tf-prvr", fingerprint, where=dataset_folder, again="", sizes={"num_frames": 9, "num_clips": 3})
    assert (spread.config.method, spread.config.width) == ("tf_prvr", fingerprint.width)
    assert (spread.num_frames, spread.config.num_clips) == (9, 9)  # its number of tokens cannot be chosen


def test_a_model_in_a_folder(run_folder: Path, dataset_folder: Path) -> None:
    assert model_folder(str(run_folder)) == run_folder / "best"
    assert model_folder(str(run_folder / "best")) == run_folder / "best"
    fingerprint = trained_on(run_folder / "best")
    assert fingerprint == FeatureStore.open(dataset_folder / "features.h5").fingerprint
    assert fingerprint is not None
    assert isinstance(load_model(str(run_folder), fingerprint, where=dataset_folder, again=""), MSC)
    with pytest.raises(FingerprintMismatch, match=r"weights .*Do this --backbone local-dir"):
        load_model(str(run_folder), replace(fingerprint, weights="9" * 64), where=dataset_folder, again="do this")


@pytest.mark.parametrize(
    ("rate", "source", "name"),
    [(None, "", "published a.h5"), (0.5, "slowfast:x.pkl + tiny-clip", r"slowfast:x.pkl \+ tiny-clip")],
)
def test_a_model_of_features_that_cannot_be_extracted(
    run_folder: Path, tmp_path: Path, rate: float | None, source: str, name: str
) -> None:
    shutil.copytree(run_folder / "best", tmp_path / "model")
    fingerprint = trained_on(run_folder / "best")
    assert fingerprint is not None
    seen = replace(fingerprint, backbone="published a.h5", frame_rate=rate, source=source)
    (tmp_path / "model" / DATA).write_text(json.dumps({"fingerprint": json.loads(seen.to_json())}))
    with pytest.raises(FingerprintMismatch, match=rf"{name}$"):
        load_model(str(tmp_path / "model"), fingerprint, where=tmp_path, again="do this")


def test_a_model_is_found_while_training_replaces_it(run_folder: Path, tmp_path: Path) -> None:
    best = tmp_path / "best"
    shutil.copytree(run_folder / "best", best)
    with replacing(best) as new:
        shutil.copytree(run_folder / "best", new, dirs_exist_ok=True)
        assert model_folder(tmp_path) == best
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    best.rename(tmp_path / ".best.old")  # the state during a replacement, and after a kill
    assert model_folder(tmp_path) == tmp_path / ".best.old"
    assert [path.name for path in tmp_path.iterdir()] == [".best.old"]


def test_a_misspelt_name(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"zeroshot .*zero-shot\?"):
        load_model("zeroshot", FINGERPRINT, where=tmp_path, again="")


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="or a word"):
        model_folder(str(tmp_path), "or a word")


def test_a_model_without_a_fingerprint(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder / "best", tmp_path / "model")
    (tmp_path / "model" / DATA).write_text(json.dumps({}))
    assert trained_on(tmp_path / "model") is None
    (tmp_path / "model" / DATA).write_text("{")
    with pytest.raises(BadModel, match="is not JSON"):
        trained_on(tmp_path / "model")
    (tmp_path / "model" / DATA).unlink()
    assert trained_on(tmp_path / "model") is None


def test_a_model_of_another_width_without_a_fingerprint(run_folder: Path, tmp_path: Path) -> None:
    fingerprint = trained_on(run_folder / "best")
    assert fingerprint is not None
    MSC(MSC.Config(video_width=10, text_width=6, width=8, num_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(FingerprintMismatch, match=rf"width 10.*width {fingerprint.width}"):
        load_model(str(tmp_path), fingerprint, where=Path("films"), again="do this")

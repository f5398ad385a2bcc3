import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest

from midreel import features
from midreel.errors import BadFeatures, BadModel, UnknownName
from midreel.features.backbones.base import Backbone, Fingerprint, load_backbone, weight_files
from tests.features.fakes import FINGERPRINT, FakeBackbone


def test_all_names_exist() -> None:
    assert features.__all__ == sorted(features.__all__)
    for name in features.__all__:
        assert getattr(features, name)
        assert name in dir(features)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = features.nothing


def test_importing_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "transformers", "h5py", "huggingface_hub")
    code = f"import sys, midreel.features; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_only_encoders_in_the_hugging_face_format_import_transformers() -> None:
    others = ("extract", "stores.store", *(f"backbones.{name}" for name in ("base", "preprocess", "slowfast")))
    modules = ", ".join(f"midreel.features.{name}" for name in others)
    code = f"import sys, {modules}; print('transformers' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_a_fingerprint_survives_json() -> None:
    for fingerprint in (FINGERPRINT, replace(FINGERPRINT, image_size=(8, 9), frame_rate=None, dtype=None)):
        copy = Fingerprint.from_json(fingerprint.to_json())
        assert copy == fingerprint
        assert copy.source == fingerprint.source


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"colour": 3}'])
def test_an_invalid_fingerprint(text: str) -> None:
    with pytest.raises(BadFeatures, match="backbone, weights"):
        Fingerprint.from_json(text)


def test_a_difference_lists_each_field_with_both_values() -> None:
    other = replace(FINGERPRINT, weights="a" * 64, crop=(9, 9), mean=(0.1, 0.5, 0.5), frame_rate=1.0, dtype="float16")
    assert FINGERPRINT.difference(other) == [
        "weights 000000000000… != aaaaaaaaaaaa…",
        "crop (8, 8) != (9, 9)",
        "mean (0.5, 0.5, 0.5) != (0.1, 0.5, 0.5)",
        "frame_rate 2.0 != 1.0",
        "dtype 'float32' != 'float16'",
    ]


def test_unknown_rates_and_sources_are_not_compared() -> None:
    assert FINGERPRINT.difference(replace(FINGERPRINT, frame_rate=None, dtype=None, source="elsewhere")) == []
    assert replace(FINGERPRINT, frame_rate=None).difference(FINGERPRINT) == []


def test_the_fake_is_a_backbone() -> None:
    fake: Backbone = FakeBackbone()
    assert fake.fingerprint == FINGERPRINT


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="nowhere"):
        load_backbone(f"local-dir:{tmp_path / 'nowhere'}")


def test_a_folder_without_its_prefix(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=f"local-dir:{tmp_path}"):
        load_backbone(str(tmp_path))


def test_a_folder_with_another_kind_of_model(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"config\.json does not exist"):
        load_backbone(f"local-dir:{tmp_path}")
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(BadModel, match=r"config\.json is not JSON"):
        load_backbone(f"local-dir:{tmp_path}")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadModel, match=r"config\.json contains a list"):
        load_backbone(f"local-dir:{tmp_path}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UnknownName, match=r"'bert'.*: clip, .*siglip"):
        load_backbone(f"local-dir:{tmp_path}")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty and without a network. The client reads the environment only when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hub_id_offline(empty_cache: Path) -> None:
    with pytest.raises(UnknownName) as caught:
        load_backbone("openai/clip-vit-base-patch32")
    message = str(caught.value)
    assert "HF_HUB_OFFLINE" in message
    assert "hf download openai/clip-vit-base-patch32 --local-dir DIR" in message
    assert "local-dir:DIR" in message


def test_a_hub_id_offline_by_the_environment() -> None:
    code = (
        "from midreel.features import load_backbone\n"
        "from midreel.errors import UnknownName\n"
        "try: load_backbone('someone/no-such-clip')\n"
        "except UnknownName as error: print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "/nonexistent"}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "HF_HUB_OFFLINE" in shown.stdout, shown.stderr


@pytest.mark.parametrize(
    ("spec", "near"),
    [("tinyclip", "tiny-clip"), ("slow-fast:FILE", "slowfast:FILE")],
)
def test_a_typing_error_is_not_downloaded(spec: str, near: str) -> None:
    with pytest.raises(UnknownName) as caught:
        load_backbone(spec)
    assert repr(spec) in str(caught.value)
    assert repr(near) in str(caught.value)
    assert "tiny-clip, local-dir:PATH, slowfast:FILE, OWNER/NAME" in str(caught.value)
    with pytest.raises(UnknownName, match=r"'disk:/clip'.*: .*tiny-clip, local-dir:PATH"):
        load_backbone("disk:/clip")


def test_an_invalid_hub_id(empty_cache: Path) -> None:
    with pytest.raises(UnknownName, match="Repo id must be in the form"):
        load_backbone("a clip/with spaces/and slashes")


def _cached(cache: Path, folder: Path) -> None:
    snapshot = cache / "models--someone--tiny" / "snapshots" / ("c" * 40)
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(folder)
    (cache / "models--someone--tiny" / "refs").mkdir()
    (cache / "models--someone--tiny" / "refs" / "main").write_text("c" * 40)


def test_a_cached_hub_id_is_the_same_backbone_as_its_folder(
    empty_cache: Path, tiny_clip: Path, backbone: Backbone
) -> None:
    _cached(empty_cache, tiny_clip)
    cached = load_backbone("someone/tiny")
    assert cached.fingerprint.source == "someone/tiny"
    assert cached.fingerprint == backbone.fingerprint


def test_a_hub_id_without_weights(empty_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "config.json").write_text("{}")
    _cached(empty_cache, tmp_path / "partial")
    with pytest.raises(UnknownName, match="no weights"):
        load_backbone("someone/tiny")


def test_single_weights_come_before_shards_and_pickles(tmp_path: Path) -> None:
    assert weight_files(tmp_path) == []
    for names in (
        ["pytorch_model.bin"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ["model.safetensors"],
    ):
        for name in names:
            (tmp_path / name).touch()
        assert [path.name for path in weight_files(tmp_path)] == names

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from midreel.errors import BadModel, BadSetting, UnknownName
from midreel.methods import METHODS, MSC, ClipZeroShot, Method, load_method

CONFIG = MSC.Config(video_width=10, text_width=6, width=8, num_heads=2, tcpl=False, variant="released")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    MSC(CONFIG).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_save_and_load_give_the_same_model(tmp_path: Path) -> None:
    method = MSC(CONFIG)
    method.save_pretrained(tmp_path)
    found = load_method(tmp_path)
    assert isinstance(found, MSC)
    assert found.config == CONFIG
    assert not found.training
    for name, weight in method.state_dict().items():
        assert weight.equal(found.state_dict()[name])
    method.eval()
    videos = method.prepare_videos(torch.randn(2, 50, 10))
    for branch, tokens in method.encode_videos(videos).items():
        assert tokens.vectors.equal(found.encode_videos(videos)[branch].vectors)


def test_the_folder_has_the_format_of_the_hub(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert json.loads((folder / "config.json").read_text())["method"] == "msc"
    found, expected = MSC.from_pretrained(folder), load_method(folder)
    assert (found.config, found.training) == (CONFIG, False)
    for name, weight in expected.state_dict().items():
        assert weight.equal(found.state_dict()[name])


def test_from_pretrained_takes_all_weights_or_none(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: weight for name, weight in weights.items() if "query.block" not in name}, folder / "model.safetensors"
    )
    for load in (MSC.from_pretrained, load_method):
        with pytest.raises(BadModel, match="14 weights"):
            load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_instead_of_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(BadModel, match=f"{name} cannot be read"):
        load_method(folder)


def test_a_config_of_another_class(unchecked: None) -> None:
    with pytest.raises(BadSetting, match=r"config is a dict.*MSCConfig"):
        MSC({"width": 8})  # type: ignore[arg-type]


def test_a_method_without_weights(tmp_path: Path) -> None:
    ClipZeroShot(ClipZeroShot.Config(width=7)).save_pretrained(tmp_path)
    assert load_method(str(tmp_path)).config.width == 7


def test_every_method_is_named_as_in_its_config() -> None:
    for name, method in METHODS.items():
        assert method.Config().method == name


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"nowhere/config.json does not exist"):
        load_method(tmp_path / "nowhere")


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadModel, match=r"model.safetensors does not exist"):
        load_method(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(BadModel, match=r"model.safetensors cannot be read"):
        load_method(folder)


def test_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(BadModel, match=r"config.json is not JSON"):
        load_method(folder)
    (folder / "config.json").write_text("[" * 10**6)
    with pytest.raises(BadModel, match=r"config\.json"):
        load_method(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(BadModel, match=r"config.json .*list, expected an object"):
        load_method(folder)


def test_unknown_method(folder: Path) -> None:
    (folder / "config.json").write_text('{"method": "msk"}')
    with pytest.raises(UnknownName, match=r"config.json: 'msk'"):
        load_method(folder)


def test_settings_of_the_wrong_type(folder: Path, unchecked: None) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"tcpl": "false"}))
    with pytest.raises(BadSetting, match="tcpl is 'false'"):
        load_method(folder)
    (folder / "config.json").write_text(json.dumps(settings | {"method": ["msc"]}))
    with pytest.raises(UnknownName, match=r"\['msc'\]"):
        load_method(folder)
    with pytest.raises(BadModel, match=r"config.json/config.json does not exist"):
        load_method(folder / "config.json")


def test_unknown_setting(folder: Path) -> None:
    (folder / "config.json").write_text('{"method": "msc", "colour": "red"}')
    with pytest.raises(BadModel, match=r"config.json .*msc.*'colour'"):
        load_method(folder)


@pytest.mark.parametrize("size", [2**20, 10**12, 10**30])
@pytest.mark.parametrize("name", ["width", "video_width", "max_words"])
def test_sizes_are_checked_before_memory_is_allocated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    settings = json.loads((folder / "config.json").read_text()) | {name: size}
    (folder / "config.json").write_text(json.dumps(settings))
    devices, make = list[str](), MSC.__init__

    def note(method: MSC, config: object) -> None:
        devices.append(torch.get_default_device().type)
        make(method, config)  # type: ignore[arg-type]

    monkeypatch.setattr(MSC, "__init__", note)
    with pytest.raises(BadModel, match=r"config\.json"):
        load_method(folder)
    assert devices == ["meta"]


@pytest.mark.parametrize("method", METHODS.values())
def test_more_frames_than_fit_into_memory(method: type[Method]) -> None:
    with pytest.raises(BadSetting, match="num_frames"):
        method.Config(num_frames=10**9)


def test_a_folder_whose_name_is_not_utf8(folder: Path) -> None:
    renamed = folder.with_name(os.fsdecode(b"model \xff"))
    folder.rename(renamed)
    assert load_method(renamed).config == CONFIG


def test_weights_of_another_size(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text()) | {"width": 16}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        BadModel,
        match=r"alignment_projection.bias is \(8,\), expected \(16,\)",
    ):
        load_method(folder)

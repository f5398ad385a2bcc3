"""Exported models: the folder of a run, of a model, of an imported checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from midreel.errors import BadModel, Unwritable
from midreel.experiments.model_export import export_model
from midreel.methods import load_method, onnx
from midreel.methods.model_files import DATA, trained_on
from midreel.methods.released import import_checkpoint
from tests.conftest import Command, ExportedRun
from tests.methods.checkpoint_files import checkpoint, released, save

MODEL = {"README.md", "config.json", "model.safetensors"}
OF_A_RUN = {"data.json", "metrics.json", "recipe.json", "statistics.json"}
GRAPHS = {"video_encoder.onnx", "query_encoder.onnx", "encoders.json"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def exported(exported_run: ExportedRun) -> Path:
    return exported_run.folder


def test_a_run_with_onnx(run_folder: Path, exported: Path) -> None:
    assert names(exported) == MODEL | OF_A_RUN | GRAPHS
    there, here = load_method(run_folder / "best"), load_method(exported)
    assert here.config == there.config
    assert all(weight.equal(here.state_dict()[name]) for name, weight in there.state_dict().items())
    facts, data = (json.loads((exported / name).read_text()) for name in ("encoders.json", "data.json"))
    assert facts["features"] == data["fingerprint"]


def test_the_card_has_the_results_of_the_run(run_folder: Path, exported: Path) -> None:
    card = (exported / "README.md").read_text()
    best = json.loads((run_folder / "best/metrics.json").read_text())
    assert f"| SumR | {best['metrics']['SumR']:.2f} |" in card
    assert f"after epoch {best['epoch']}," in card
    assert "| train | 6 |" in card
    assert "| frames per second | 0.5 |" in card
    # A run writes the same card itself; the export adds the graphs.
    assert card.startswith((run_folder / "best/README.md").read_text())
    differences = json.loads((exported / "encoders.json").read_text())["differences"]
    for name, most in differences.items():
        assert f"| `{name}` | {most:.1e} |" in card


def test_an_export_has_no_local_paths(run_folder: Path, tiny_clip: Path, tmp_path: Path) -> None:
    there, here = trained_on(run_folder / "best"), trained_on(export_model(run_folder, tmp_path / "out").folder)
    assert there is not None
    assert here is not None
    assert there.source == f"local-dir:{tiny_clip}"
    assert here.source == ""
    assert here == there
    assert not [path for path in (tmp_path / "out").iterdir() if bytes(tiny_clip.parent) in path.read_bytes()]


@pytest.mark.parametrize("source", ["openai/clip-vit-base-patch32", "tiny-clip"])
def test_a_public_backbone_is_named(run_folder: Path, tmp_path: Path, source: str) -> None:
    shutil.copytree(run_folder / "best", tmp_path / "model")
    card = json.loads((run_folder / "best" / DATA).read_text())
    card["fingerprint"]["source"] = source
    (tmp_path / "model" / DATA).write_text(json.dumps(card))
    export_model(tmp_path / "model", tmp_path / "out")
    assert json.loads((tmp_path / "out" / DATA).read_text()) == card
    assert f"| loaded from | {source} |" in (tmp_path / "out/README.md").read_text()


def test_a_model_folder_without_onnx(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder / "best", tmp_path / "bare")
    for name in OF_A_RUN:
        (tmp_path / "bare" / name).unlink()
    assert export_model(tmp_path / "bare", tmp_path / "out").differences == {}
    assert names(tmp_path / "out") == MODEL
    assert "not recorded" in (tmp_path / "out/README.md").read_text()


def test_an_imported_model_keeps_its_origin(tmp_path: Path) -> None:
    import_checkpoint(save(checkpoint(released(msc=False)), tmp_path / "best.ckpt"), tmp_path / "model")
    export_model(tmp_path / "model", tmp_path / "out")
    assert names(tmp_path / "out") == MODEL | {"provenance.json"}
    for name in ("README.md", "provenance.json", "config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_exports_that_fail(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModel):
        export_model(tmp_path, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").touch()
    with pytest.raises(Unwritable, match="full"):
        export_model(run_folder, tmp_path / "full")
    shutil.copytree(run_folder / "best", tmp_path / "broken")
    (tmp_path / "broken/metrics.json").write_text("{")
    with pytest.raises(BadModel, match="broken"):
        export_model(tmp_path / "broken", tmp_path / "out")
    with pytest.raises(BadModel, match="generations"):
        export_model(Path("zero-shot"), tmp_path / "untrained")


def test_a_failed_export_leaves_no_files(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise BadModel("too far")

    monkeypatch.setattr(onnx, "write_encoders", refuse)
    with pytest.raises(BadModel):
        export_model(run_folder, tmp_path / "out", onnx=True)
    assert names(tmp_path) == set()


def test_the_command(midreel: Command, run_folder: Path, tmp_path: Path) -> None:
    ended = midreel("export-model", run_folder, tmp_path / "out")
    assert (ended.code, ended.out, ended.err) == (0, f"model: {tmp_path / 'out'}\n", "")
    ended = midreel("export-model", run_folder, tmp_path / "again", "--json")
    assert json.loads(ended.out) == {
        "model": str(tmp_path / "again"),
        "files": sorted(MODEL | OF_A_RUN),
        "differences": {},
    }
    ended = midreel("export-model", run_folder, tmp_path / "out")
    assert (ended.code, ended.out) == (1, "")
    assert str(tmp_path / "out") in ended.err

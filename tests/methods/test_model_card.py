"""Model cards state recorded facts and nothing else."""

import re
from pathlib import Path

import pytest
import yaml

from midreel.methods import METHODS, MSC, ClipZeroShot, load_method
from midreel.methods.model_card import model_card
from tests.methods.small import small_config

CONFIG = MSC.Config(video_width=10, text_width=6, width=8, num_heads=2)
FINGERPRINT = {
    "backbone": "clip; vision 2x24",
    "weights": "a" * 64,
    "width": 10,
    "word_width": 6,
    "frame_rate": 0.5,
    "context_length": 40,
    "crop": None,
    "source": "openai/clip-vit-base-patch32",
}
KNOWN = {
    "recipe": {"config": {"method": "msc"}, "lr": 2.5e-4, "epochs": 7, "selection": "val"},
    "data": {
        "fingerprint": FINGERPRINT,
        "annotations": {"annotations.jsonl": "b" * 64},
        "videos": {"train": 1200, "val": 5},
        "queries": {"train": 3400, "val": 9},
    },
    "record": {"epoch": 4, "metrics": {"R@1": 12.345, "SumR": 200.0}},
}


def front_matter(card: str) -> dict[str, object]:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---")[1])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_card(name: str, tmp_path: Path) -> None:
    make = METHODS[name]
    make(small_config(name)).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    tags = ["video-retrieval", "partially-relevant-video-retrieval", name]
    assert front_matter(card) == {"library_name": "midreel", "tags": tags}
    assert f'("{make.paper.title}")' in card
    assert make.paper.title in re.sub("[{}]", "", make.paper.bibtex)
    assert card.count("```bibtex\n@") == 1
    assert re.search(r"^\| (joint_)?width \| 8 \|$", card, re.MULTILINE)
    assert ("**Reconstruction.**" in card) == make.reconstruction


def test_an_untrained_model_claims_nothing() -> None:
    card = model_card(MSC.paper, CONFIG, 1234)
    assert "# MSC\n" in card
    assert "`paper`" in card
    assert "1,234 weights" in card
    assert "`video_width` 10, `text_width` 6, `width` 8" in card
    assert card.count("not recorded") == 2
    assert "Not measured" in card
    assert "pushed" not in card


def test_a_trained_model_states_its_training() -> None:
    card = model_card(MSC.paper, CONFIG, 1234, **KNOWN)
    assert "# MSC, trained with midreel\n" in card
    for line in (
        "| backbone | clip; vision 2x24 |",
        f"| backbone weights | {'a' * 64} |",
        "| frames per second | 0.5 |",
        "| frame width | 10 |",
        "| word width | 6 |",
        "| loaded from | openai/clip-vit-base-patch32 |",
        "| split | videos | queries |",
        "| train | 1,200 | 3,400 |",
        "| val | 5 | 9 |",
        f"- `annotations.jsonl`, SHA-256 `{'b' * 64}`",
        "| lr | 0.00025 |",
        "| R@1 | 12.35 |",
        "| num_heads | 2 |",
    ):
        assert line in card.splitlines(), line
    assert "On `val`" in card
    assert "epoch 4" in card
    assert "None" not in card
    assert "recorded" not in card


@pytest.mark.parametrize("source", ["local-dir:/home/somebody/clip", "slowfast:/home/somebody/x.pkl + tiny-clip"])
def test_local_paths_are_left_out(source: str) -> None:
    data = KNOWN["data"] | {"fingerprint": FINGERPRINT | {"source": source}}
    assert "somebody" not in model_card(MSC.paper, CONFIG, 1, **KNOWN | {"data": data})


def test_figures_name_their_videos() -> None:
    recipe = KNOWN["recipe"] | {"selection": "holdout"}
    assert "held out" in model_card(MSC.paper, CONFIG, 1, **KNOWN | {"recipe": recipe})


def test_the_example_loads_the_model(tmp_path: Path) -> None:
    ClipZeroShot(ClipZeroShot.Config(width=7)).save_pretrained(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace("PATH/TO/THIS/FOLDER", str(tmp_path)), names)
    assert names["method"].config == load_method(tmp_path).config  # type: ignore[attr-defined]

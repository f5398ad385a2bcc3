import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import CLIPTokenizer

from midreel.datasets import playhouse
from midreel.datasets.playhouse import words
from midreel.errors import BadModel
from midreel.features.backbones.base import Backbone, Image, load_backbone
from midreel.types import TextFeatures
from tests.features.fakes import FakeBackbone
from tools import tiny_clip_card as card
from tools import train_tiny_clip as tool

NUM_SCENES = 100


@pytest.fixture(scope="module")
def stills() -> tool.Stills:
    return tool.render_stills(seed=5, num_videos=20, per_video=2)


@pytest.fixture(scope="module")
def sentences(stills: tool.Stills) -> list[str]:
    return sorted({text for captions in stills.captions for text in captions})


@pytest.fixture(scope="module")
def tokenizer(sentences: list[str]) -> CLIPTokenizer:
    return tool.train_tokenizer(sentences)


@pytest.fixture(scope="module")
def scenes() -> list[card.Scene]:
    return card.held_out_scenes(NUM_SCENES)


@dataclass(frozen=True, kw_only=True)
class Trained:
    folder: Path
    figures: card.Figures

    @property
    def card(self) -> str:
        return (self.folder / "README.md").read_text()


@pytest.fixture(scope="module")
def trained(scenes: list[card.Scene], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The files and figures of a very short training."""
    folder = tmp_path_factory.mktemp("tiny") / "clip"
    measured = []

    def measure(backbone: Backbone, num_stills: int) -> card.Figures:
        measured.append(zero_shot_figures(backbone, num_stills))
        return measured[-1]

    zero_shot_figures = card.zero_shot_figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card, "held_out_scenes", lambda count: scenes[:count])
        patch.setattr(card, "zero_shot_figures", measure)
        tool.main(f"--folder {folder} --steps 2 --batch-size 4 --videos 6 --held-out {NUM_SCENES}".split())
    return Trained(folder=folder, figures=measured[0])


# ---------------------------------------------------------------- the tokenizer


def without_spaces(text: str) -> str:
    return "".join(text.split())


def test_decode_sentences(tokenizer: CLIPTokenizer, sentences: list[str]) -> None:
    for text in sentences:
        decoded = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
        assert without_spaces(decoded) == without_spaces(text)


def test_playhouse_words_are_single_tokens(tokenizer: CLIPTokenizer) -> None:
    assert len(tokenizer("a red ball")["input_ids"]) == len(["[SOS]", "a", "red", "ball", "[EOS]"])


def test_tokenizer_has_the_format_of_clip(tokenizer: CLIPTokenizer) -> None:
    order = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    letters = sorted(ByteLevel.alphabet())
    assert len(letters) == 256
    assert order[:512] == letters + [f"{letter}</w>" for letter in letters]
    assert order[-2:] == [tokenizer.bos_token, tokenizer.eos_token] == [tool.START, tool.END]
    assert len(order) <= 512 + tool.NUM_MERGES + 2


@pytest.mark.parametrize(
    "text", ["Żółw 🐢", "日本語", "naïve café", "e\N{COMBINING ACUTE ACCENT}", "\x00\x7f", "¿?", "👩‍👩‍👧"]
)
def test_decode_foreign_letters(tokenizer: CLIPTokenizer, text: str) -> None:
    decoded = tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)
    composed = text.replace("e\N{COMBINING ACUTE ACCENT}", "é")
    assert without_spaces(decoded) == without_spaces(composed.lower())


@given(text=st.text(max_size=60))
def test_no_text_has_unknown_tokens(tokenizer: CLIPTokenizer, text: str) -> None:
    first, *inside, last = tokenizer(text)["input_ids"]
    assert (first, last) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    # What is unknown would become [EOS], as in CLIP.
    assert tokenizer.unk_token_id == tokenizer.eos_token_id
    assert tokenizer.unk_token_id not in inside


# ---------------------------------------------------------------- the training


def test_training_lowers_the_losses(tokenizer: CLIPTokenizer, stills: tool.Stills) -> None:
    few = tool.Stills(images=stills.images[:12], captions=stills.captions[:12], things=stills.things[:12])
    trainer = tool.Trainer(tool.make_model(tokenizer), tokenizer, few, batch_size=12, steps=200)
    begin = math.ceil(tool.NAMING_SHARE * trainer.steps)
    naming = [trainer.step(number) for number in range(12)]
    both = [trainer.step(begin + number) for number in range(24)]
    assert {tuple(terms) for terms in naming} == {("naming",)}
    assert {tuple(terms) for terms in both} == {("naming", "contrast")}
    assert naming[-1]["naming"] < 0.8 * naming[0]["naming"]
    assert sum(terms["contrast"] for terms in both[-4:]) < 0.8 * sum(terms["contrast"] for terms in both[:4])


def test_batch_has_one_caption_per_still_and_little_padding(tokenizer: CLIPTokenizer, stills: tool.Stills) -> None:
    trainer = tool.Trainer(tool.make_model(tokenizer), tokenizer, stills, batch_size=3, steps=10)
    chosen = trainer._draw_texts(torch.tensor([4, 0, 7]))
    text_of_number = {number: text for text, number in trainer.number_of_text.items()}
    texts = [text_of_number[number] for number in chosen.tolist()]
    assert all(text in stills.captions[still] for still, text in zip((4, 0, 7), texts, strict=True))
    tokens = trainer._tokens(chosen)
    expected = tokenizer(texts, padding=True, return_tensors="pt")
    assert torch.equal(tokens["attention_mask"], expected["attention_mask"])
    real = tokens["attention_mask"].bool()
    assert torch.equal(tokens["input_ids"][real], expected["input_ids"][real])


def test_things_of_stills(stills: tool.Stills) -> None:
    assert stills.things.shape == (40, len(words.THING_WORDS))
    assert set(stills.things.sum(1).tolist()) == {0, 1, 2}


def test_captions_of_stills(stills: tool.Stills) -> None:
    assert stills.images.shape == (40, 3, tool.IMAGE_SIZE, tool.IMAGE_SIZE)
    assert stills.images.dtype == torch.uint8
    assert len(stills.captions) == 40
    assert {len(captions) for captions in stills.captions} == {2, 4, 6}  # nobody, one, two in view


@pytest.mark.slow
def test_folder_loads_like_any_clip(scenes: list[card.Scene], trained: Trained) -> None:
    backbone = load_backbone(f"local-dir:{trained.folder}")
    (text,) = backbone.encode_texts(["a red ball in a meadow"])
    image = backbone.encode_images([playhouse.render(scenes[0].video, scenes[0].time)])
    assert text.sentence.shape == image[0].shape == (backbone.fingerprint.width,)
    assert np.isfinite(text.sentence).all()
    assert np.isfinite(image).all()
    assert backbone.fingerprint.crop == (tool.IMAGE_SIZE, tool.IMAGE_SIZE)


def test_model_is_small() -> None:
    entries = [*map(str, range(512 + tool.NUM_MERGES)), tool.START, tool.END]  # as many as there can be
    tokenizer = CLIPTokenizer(vocab={entry: number for number, entry in enumerate(entries)}, merges=[])
    model = tool.make_model(tokenizer)
    assert model.config.text_config.vocab_size == 512 + tool.NUM_MERGES + 2
    assert sum(weight.numel() * weight.element_size() for weight in model.parameters()) < 8e6


def test_training_is_stored_next_to_the_weights(trained: Trained) -> None:
    kept = json.loads((trained.folder / "training.json").read_text())
    assert list(kept) == [
        *("steps", "batch_size", "num_videos", "playhouse_version"),
        *("stills_per_video", "naming_share", "seconds", "final_loss"),
    ]
    assert (kept["steps"], kept["batch_size"], kept["num_videos"]) == (2, 4, 6)
    assert card.Training.read(trained.folder) == card.Training(**kept)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"steps": 1}', '{"loss": 1}'])
def test_folder_without_training_record(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "training.json").write_text(text)
    with pytest.raises(BadModel, match=r"training\.json .*final_loss"):
        tool.main(["--card-only", "--folder", str(tmp_path)])


# ---------------------------------------------------------------- the scenes


def test_cast_is_on_the_stage(scenes: list[card.Scene]) -> None:
    for scene in scenes:
        actors = scene.event.actors if scene.event else ()
        assert scene.cast <= set(actors)
    assert {len(scene.cast) for scene in scenes} == {0, 1, 2}


def test_same_scene_means_same_cast_and_backdrop(scenes: list[card.Scene]) -> None:
    right = card.same_scene(scenes)
    contents = [(scene.cast, scene.backdrop) for scene in scenes]
    assert right.tolist() == [[a == b for b in contents] for a in contents]
    # The same words mean the same; the same can be said in other words.
    captions = [scene.caption for scene in scenes]
    same_words = torch.tensor([[a == b for b in captions] for a in captions])
    assert bool((right | ~same_words).all())
    assert int(right.sum()) > int(same_words.sum())


def test_held_out_scenes_are_not_trained_on(scenes: list[card.Scene]) -> None:
    assert card.TRAIN_SEED != card.TEST_SEED
    trained_on = {playhouse.make_video(card.TRAIN_SEED, index, "stills").events for index in range(10)}
    assert trained_on.isdisjoint(scene.video.events for scene in scenes)


# ---------------------------------------------------------------- the figures


def test_ranks_of_first_right_answer_with_ties() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    right = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    assert card.ranks_of_best(scores, right).tolist() == [1, 2, 3]


def test_chance_of_retrieval_by_hand() -> None:
    # Of three columns two are right for the first row, one for the second: two draws miss that in one case of three.
    right = torch.tensor([[True, True, False], [False, True, False]])
    assert card.recall_of_draws(right, 1) == pytest.approx(100 * (2 / 3 + 1 / 3) / 2)
    assert card.recall_of_draws(right, 2) == pytest.approx(100 * (1 + 2 / 3) / 2)


def test_choice_by_hand() -> None:
    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    expected = {"accuracy": pytest.approx(200 / 3), "chance": 50.0, "stills": 3}
    assert card.choice(images, torch.eye(2), [0, 1, 0]) == expected
    assert card.choice(images, torch.stack([torch.eye(2)] * 3), [0, 1, 0]) == expected


class Omniscient(FakeBackbone):
    """A backbone that knows the contents and the event of each picture."""

    def __init__(self, scenes: Sequence[card.Scene]) -> None:
        super().__init__()
        names = (card.THING_OF_WORD, card.COLOUR_OF_WORD, {a: a for pair in card.OPPOSITES for a in pair})
        self.meaning_of_word = {word: meaning for table in names for word, meaning in table.items()}
        self.meanings = sorted({*self.meaning_of_word.values(), *words.BACKDROP_WORDS})
        self.scene_of_picture = {scene.picture().tobytes(): scene for scene in scenes}

    def encode_images(self, images: Sequence[Image]) -> Tensor:
        return torch.stack([self._of_scene(self.scene_of_picture[image.tobytes()]) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        return [TextFeatures(words=torch.zeros(2, 6), sentence=self._of_text(text)) for text in texts]

    def _of_scene(self, scene: card.Scene) -> Tensor:
        cast = [meaning for actor in scene.cast for meaning in (actor.thing, actor.colour)]
        return self._marked([*cast, scene.backdrop, *([scene.event.action] if scene.event else [])])

    def _of_text(self, text: str) -> Tensor:
        backdrops = [name for name, places in words.BACKDROP_WORDS.items() if any(text.endswith(p) for p in places)]
        meanings = [self.meaning_of_word[word] for word in words.words_of(text) if word in self.meaning_of_word]
        return self._marked([*meanings, *backdrops])

    def _marked(self, meanings: Sequence[str]) -> Tensor:
        return torch.tensor([float(meaning in meanings) for meaning in self.meanings])


def test_omniscient_backbone_is_always_right(scenes: list[card.Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "held_out_scenes", lambda count: scenes[:count])
    figures = card.zero_shot_figures(Omniscient(scenes), NUM_SCENES)
    for row in ("caption of a still", "still of a caption"):
        assert figures.retrieval[row] == {"R@1": 100.0, "R@5": 100.0, "R@10": 100.0, "among": NUM_SCENES}
    assert {row: columns["accuracy"] for row, columns in figures.choices.items()} == {
        "which of 24 things": 100.0,
        "which of 9 colours": 100.0,
        "which of 9 backdrops": 100.0,
        "above or below": 100.0,
        "enters or leaves": 100.0,
        "rises or falls": 100.0,
    }


@pytest.mark.slow
def test_untrained_model_is_near_chance(trained: Trained) -> None:
    figures = trained.figures
    retrieved = figures.retrieval["still of a caption"]
    assert 0 <= retrieved["R@1"] <= retrieved["R@5"] <= retrieved["R@10"] <= 30
    assert 0 < figures.retrieval["chance"]["R@1"] < figures.retrieval["chance"]["R@10"] < 20
    things = figures.choices["which of 24 things"]
    assert 0 <= things["accuracy"] <= 25
    assert things["chance"] == pytest.approx(100 / 24)
    assert 0 < things["stills"] < figures.choices["which of 9 backdrops"]["stills"] == NUM_SCENES


def test_prompts_use_playhouse_words(scenes: list[card.Scene]) -> None:
    event = next(scene.event for scene in scenes if scene.event)
    tables = (card.thing_prompts(), card.colour_prompts(), card.backdrop_prompts())
    prompts = [text for table in tables for texts in table.values() for text in texts]
    prompts += [card.action_prompt(action, event) for pair in card.OPPOSITES for action in pair]
    assert {word for text in prompts for word in words.words_of(text)} <= set(words.vocabulary())
    assert card.thing_prompts()["umbrella"][:2] == ["a red umbrella", "an orange umbrella"]


# ---------------------------------------------------------------- the card


def test_card_contains_the_figures(trained: Trained) -> None:
    for rows, column in ((trained.figures.retrieval, "R@1"), (trained.figures.choices, "accuracy")):
        for row, columns in rows.items():
            assert f"| {row} | {columns[column]:.1f} |" in trained.card
    assert trained.card.startswith("---\nlicense: apache-2.0\nlibrary_name: transformers\n")
    assert "--steps 2 --batch-size 4 --videos 6\n" in trained.card
    assert "30 stills: 5 of each of 6 videos" in trained.card
    assert load_backbone(f"local-dir:{trained.folder}").fingerprint.weights in trained.card
    assert str(trained.folder) not in trained.card


def test_card_without_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trained.card
    monkeypatch.setattr(card, "zero_shot_figures", lambda backbone, num_stills: trained.figures)
    monkeypatch.setattr(tool, "train", lambda *_, **__: pytest.fail("it trains"))
    (trained.folder / "README.md").unlink()
    tool.main(["--card-only", "--folder", str(trained.folder)])
    assert trained.card == before == capsys.readouterr().out.removesuffix("\n")

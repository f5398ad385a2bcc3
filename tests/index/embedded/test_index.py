"""The embedded index beyond the contract of all indexes."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from midreel.errors import BadSetting, UnknownName
from midreel.index import EmbeddedIndex
from midreel.index.embedded import quantise
from tests.index.library import FILES, FORMS, WEIGHTS, WIDTH, queries_of, video, video_of


def test_an_index_can_be_opened_again(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with EmbeddedIndex.open(folder) as index:
        assert index.video_ids() == [f"v{number}" for number in range(12)]
        assert index.branch_weights == WEIGHTS
        assert index.width == WIDTH
        assert repr(index) == f"EmbeddedIndex({str(folder)!r}, 12 videos)"


def test_ids_may_be_any_string(index: EmbeddedIndex, folder: Path) -> None:
    strange = ["a b", "it's", 'say "no"', "two\nlines", "\udcff not utf-8", "日本", "\0"]
    for name in strange:
        index.add(name, video(1))
    index.close()
    with EmbeddedIndex.open(folder) as again:
        assert again.video_ids()[12:] == strange


def test_settings_are_checked(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadSetting, match="width is 0"):
        EmbeddedIndex.create(tmp_path / "new", branch_weights=WEIGHTS, width=0)
    with pytest.raises(UnknownName, match=r"'abacus'.*numkong, numpy"):
        EmbeddedIndex.open(folder, kernel="abacus")


def test_several_videos_are_added_in_one_commit(index: EmbeddedIndex, folder: Path) -> None:
    number = index._storage.state.next_number
    index.add_all([("a", video(1)), ("b", video(2)), ("a", video(3))])
    assert index.video_ids()[-2:] == ["b", "a"]
    assert index._storage.state.next_number == number + 3
    with pytest.raises(BadSetting):
        index.add_all([("c", video(1)), ("", video(2))])
    assert "c" not in index
    index.add("d", video(4))
    assert index.verify() == []


# ---------------------------------------------------------------- lengths and similarities


def test_the_files_of_an_index_without_similarities_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """The layout of the first version, written out: a library needs no rebuild, and earlier versions can read it."""
    added = video(3, windows=2)
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add("a", added)
    fields = [("vector", "i1", (WIDTH,)), ("bits", "u1", (WIDTH // 8,)), ("scale", "<f4"), ("span", "<f4", (2,))]
    for number, branch in enumerate(WEIGHTS):
        mask = added[branch].mask.numpy()
        units = quantise.unit(added[branch].vectors.numpy())[mask]
        rows = np.zeros(len(units), fields)
        rows["vector"], rows["bits"], rows["scale"] = quantise.in_nine_bits(units)
        rows["span"] = added[branch].spans.numpy()[mask]
        assert (tmp_path / f"index/000001.tokens{number}").read_bytes() == rows.tobytes()
        if branch == "clip":
            parts = np.split(units, np.cumsum(mask.sum(1))[:-1])
            pooled = np.concatenate([quantise.pooled(part, 12) for part in parts])
            assert (tmp_path / "index/000001.coarse").read_bytes() == quantise.quantised(pooled)[0].tobytes()
    with sqlite3.connect(tmp_path / "index/manifest.sqlite") as connection:
        (text,) = connection.execute("SELECT text FROM state").fetchone()
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    assert list(json.loads(text)) == [
        *("branch_weights", "width", "coarse", "scanned", "volume", "ends", "videos", "sum", "next_number", "owner")
    ]


@pytest.mark.parametrize("forms", FORMS)
def test_similarities_are_stored(tmp_path: Path, forms: str) -> None:
    weights, similarities = FORMS[forms]
    folder, asked = tmp_path / "index", queries_of(weights, 1)
    with EmbeddedIndex.create(folder, branch_weights=weights, width=WIDTH, similarities=similarities) as index:
        index.add_all((str(seed), video_of(weights, seed)) for seed in range(9))
        before = index.search(asked), index.tokens("4")
    with EmbeddedIndex.open(folder, read_only=True) as again:
        assert again.similarities == similarities
        assert again.search(asked) == before[0]
        assert all(np.array_equal(again.tokens("4")[b].vectors, part.vectors) for b, part in before[1].items())
        assert again.verify() == []
        assert again._storage.state.scanned not in {"frame", "key"}
    with sqlite3.connect(folder / "manifest.sqlite") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_clips_of_many_lengths_are_pooled_in_the_order_of_time(tmp_path: Path) -> None:
    """The coarse vectors do not depend on the order in which a method lists its tokens."""
    made, order = video(0)["clip"], [3, 0, 5, 1, 4, 2]
    mixed = type(made)(vectors=made.vectors[:, order], mask=made.mask[:, order], spans=made.spans[:, order])
    for name, part in (("sorted", made), ("mixed", mixed)):
        with EmbeddedIndex.create(tmp_path / name, branch_weights={"clip": 1.0}, width=WIDTH, coarse=3) as index:
            index.add("a", {"clip": part})
    assert (tmp_path / "sorted/000001.coarse").read_bytes() == (tmp_path / "mixed/000001.coarse").read_bytes()


def test_coarse_vectors_of_a_dot_product_have_the_length_of_the_longest_token(tmp_path: Path) -> None:
    weights, similarities = FORMS["dot"]
    with EmbeddedIndex.create(
        tmp_path / "index", branch_weights=weights, width=WIDTH, similarities=similarities, coarse=1
    ) as index:
        made = video_of(weights, 0)
        index.add("a", made)
        assert len(index) == 1
        view = index._cascade
        coarse = view.files[0].rows["vector"] * view.roster.scales.reshape(-1, 1)
    real = made["scene"].vectors[made["scene"].mask]
    assert np.linalg.norm(coarse[0]) == pytest.approx(float(real.norm(dim=-1).max()), rel=0.01)
    assert F.cosine_similarity(torch.from_numpy(coarse[0]), real.sum(0), dim=0) > 0.999


@pytest.mark.slow
def test_the_recall_of_attentions_among_thousands_of_windows(tmp_path: Path) -> None:
    """Videos are random walks, and a query is a noisy frame of a video. Keys and values are maps of the frames."""
    weights, similarities = FORMS["attention"]
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.eye(WIDTH) + 0.3 * torch.randn(WIDTH, WIDTH, generator=generator) for _ in range(2))
    videos = []
    for seed in range(1500):
        made = video(seed, windows=2)
        frames = made["frame"]
        parts = {"frame": frames.vectors @ values, "key": frames.vectors @ keys / 4}
        videos.append(
            made | {b: type(frames)(vectors=v, mask=frames.mask, spans=frames.spans) for b, v in parts.items()}
        )
    frames = torch.stack([video(seed, windows=2)["frame"].vectors[0, 9] for seed in range(30)])
    noise = torch.randn(frames.shape, generator=generator) * frames.norm(dim=-1, keepdim=True) / WIDTH**0.5
    asked = {"clip": frames + noise, "frame": (frames + noise) @ values}
    with EmbeddedIndex.create(
        tmp_path / "index", branch_weights=weights, width=WIDTH, similarities=similarities
    ) as index:
        index.add_all((str(number), each) for number, each in enumerate(videos))
        found, every = index.search(asked), index.search(asked, exact=True)
    same = [{m.video_id for m in a} & {m.video_id for m in b} for a, b in zip(found, every, strict=True)]
    assert sum(map(len, same)) / (10 * len(same)) >= 0.97
    assert [matches[0].video_id for matches in found] == [matches[0].video_id for matches in every]

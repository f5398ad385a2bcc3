"""Imported models equal the released ones to 1e-5: tokens, scores and each term of the losses.

The released models are those of released_twin.py with random weights. The triplet loss uses hard negatives with a pool
of one, which needs no random draws.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from midreel.methods import load_method
from midreel.methods.base import Method, join_texts
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.gmmformer_v2 import GMMFormerV2
from midreel.methods.msc import MSC
from midreel.methods.released import import_checkpoint
from midreel.ops import segments
from midreel.types import TextFeatures
from tests.methods.checkpoint_files import TEXT_WIDTH, VIDEO_WIDTH, checkpoint, released, save
from tests.methods.released_twin import Released, Video

LENGTHS = (10, 127, 128, 129, 700, 64)
VIDEO_OF_QUERY = [0, 1, 1, 2, 3, 3, 3, 4, 5, 0]
NUM_WORDS = [1, 5, 77, 4, 9, 30, 2, 8, 90, 31]  # more than MSC takes, and more than GMMFormer v2 does
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def features() -> list[Tensor]:
    """Videos from unrelated scenes to one that hardly changes, so that all levels occur."""
    generator = torch.Generator().manual_seed(4)
    videos = []
    for number, total in enumerate(LENGTHS):
        scenes = torch.randn(6, VIDEO_WIDTH, generator=generator).repeat_interleave(-(-total // 6), 0)[:total]
        common = torch.randn(1, VIDEO_WIDTH, generator=generator) * (0, 0.3, 0.7, 1.5, 0.5, 0.9)[number]
        videos.append(scenes + common + 0.4 * torch.randn(total, VIDEO_WIDTH, generator=generator))
    return videos


def queries() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(num, TEXT_WIDTH, generator=generator) for num in NUM_WORDS]


@dataclass(frozen=True)
class Pair:
    """A released model, and the model imported from its checkpoint."""

    there: Released
    here: Method
    videos_there: list[Video]
    tokens_there: list[tuple[Tensor, Tensor]]

    @property
    def videos_here(self) -> VideoBatch:
        videos = features()
        return VideoBatch.join([self.here.prepare_videos(video[None]) for video in videos], len(videos))


@pytest.fixture(scope="module", params=[True, False], ids=["msc", "gmmformer_v2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    there = released(msc=request.param)
    folder = tmp_path_factory.mktemp("imported")
    import_checkpoint(save(checkpoint(there), folder / "best.ckpt"), folder / "model")
    with torch.no_grad():
        videos = [there.prepare(video) for video in features()]
        tokens = [there.encode_video(video) for video in videos]
    return Pair(there, load_method(folder / "model"), videos, tokens)


def batch_of(words: list[Tensor]) -> QueryBatch:
    return join_texts([TextFeatures(words=each, sentence=torch.zeros(1)) for each in words])


@torch.no_grad()
def test_tokens(pair: Pair) -> None:
    tokens = pair.here.encode_videos(pair.videos_here)
    for number, (clips, frames) in enumerate(pair.tokens_there):
        torch.testing.assert_close(tokens["clip"].vectors[number], clips, **CLOSE)
        torch.testing.assert_close(tokens["frame"].vectors[number], frames, **CLOSE)


@torch.no_grad()
def test_tokens_of_one_video_and_of_a_padded_batch(pair: Pair) -> None:
    longest = max(LENGTHS)
    together = torch.full((len(LENGTHS), longest, VIDEO_WIDTH), torch.nan)
    for row, video in zip(together, features(), strict=True):
        row[: len(video)] = video
    padded = pair.here.encode_videos(pair.here.prepare_videos(together, torch.tensor(LENGTHS)))
    for number, (clips, frames) in enumerate(pair.tokens_there):
        alone = pair.here.encode_videos(pair.here.prepare_videos(features()[number][None]))
        for found, expected in ((padded, number), (alone, 0)):
            torch.testing.assert_close(found["clip"].vectors[expected], clips, **CLOSE)
            torch.testing.assert_close(found["frame"].vectors[expected], frames, **CLOSE)


@torch.no_grad()
def test_queries_alone_and_in_a_batch(pair: Pair) -> None:
    words = queries()
    vectors = pair.here.encode_queries(batch_of(words))["clip"]
    for number, query in enumerate(words):
        expected = pair.there.encode_query(query)
        alone = pair.here.encode_queries(batch_of([query]))
        torch.testing.assert_close(alone["clip"][0], expected, **CLOSE)
        torch.testing.assert_close(alone["frame"][0], expected, **CLOSE)
        torch.testing.assert_close(pair.there.encode_query(query, pair.there.config["max_desc_l"]), expected, **CLOSE)
        torch.testing.assert_close(vectors[number], expected, **CLOSE)


@torch.no_grad()
def test_scores(pair: Pair) -> None:
    expected = torch.stack(
        [
            torch.stack([pair.there.score(pair.there.encode_query(q), *tokens) for tokens in pair.tokens_there])
            for q in queries()
        ]
    )
    tokens = pair.here.encode_videos(pair.videos_here)
    scores = pair.here.score(pair.here.encode_queries(batch_of(queries())), tokens)
    torch.testing.assert_close(scores, expected, **CLOSE)
    one = pair.here.encode_videos(pair.here.prepare_videos(features()[0][None]))
    score = pair.here.score(pair.here.encode_queries(batch_of(queries()[:1])), one)
    torch.testing.assert_close(score, expected[:1, :1], **CLOSE)


@torch.no_grad()
def test_scores_of_videos_with_one_frame(pair: Pair) -> None:
    """GMMFormer v2 pads, so a frame branch scores 0 if its only frame would score less."""
    videos = torch.randn(5, 1, VIDEO_WIDTH, generator=torch.Generator().manual_seed(6))
    tokens = [pair.there.encode_video(pair.there.prepare(video)) for video in videos]
    vectors = [pair.there.encode_query(query) for query in queries()]
    expected = torch.stack([torch.stack([pair.there.score(vector, *each) for each in tokens]) for vector in vectors])
    encoded = pair.here.encode_videos(pair.here.prepare_videos(videos))
    scores = pair.here.score(pair.here.encode_queries(batch_of(queries())), encoded)
    torch.testing.assert_close(scores, expected, **CLOSE)
    frame_scores = torch.stack(
        [pair.there.branch_scores(vector, frames)[0] for vector in vectors for _, frames in tokens]
    )
    assert (frame_scores == 0).any() != pair.there.is_msc


@torch.no_grad()
def test_every_term_of_the_losses(pair: Pair) -> None:
    expected = pair.there.losses(pair.videos_there, queries(), VIDEO_OF_QUERY)
    found = pair.here.losses(
        Batch(videos=pair.videos_here, queries=batch_of(queries()), video_of_query=torch.tensor(VIDEO_OF_QUERY))
    )
    assert set(found) == set(expected)
    for name, term in expected.items():
        torch.testing.assert_close(found[name], term, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@torch.no_grad()
@pytest.mark.parametrize("total", [1, 4, 9, 15, 40, 100, 200])
def test_who_is_merged_with_whom(total: int) -> None:
    """Many clips of a short video differ only by rounding errors, which then determine the merges."""
    twin = released(msc=True)
    config = MSC.Config(video_width=VIDEO_WIDTH, text_width=6, width=8, variant="released", similarity_threshold=0.5)
    method = MSC(config)
    levels = set()
    for number in range(12):
        features = torch.randn(total, VIDEO_WIDTH) + number / 6 * torch.randn(1, VIDEO_WIDTH)
        video = twin.prepare(features)
        levels.add(twin.num_contexts(video))
        found = method.prepare_videos(features[None])
        assert found.clip_of_frame[0].tolist() == video.clip_of_row
        assert found.clips is not None
        sizes = segments.segment_sizes(found.clip_of_frame, 32)
        contexts = segments.compose(found.clip_of_frame, method.merge_clips(found.clips, sizes))
        assert contexts[0].tolist() == twin.contexts(video, list(video.clips))[1]
    assert len(levels) > 1 or total == 1


def test_the_twins_have_the_sizes_of_the_released_models(tmp_path: Path) -> None:
    sizes = {"hidden_size": 384}
    with torch.device("meta"):
        for msc, widths, words, expected in (
            (True, (2816, 512), 77, 32_142_880),
            (True, (768, 768), 77, 30_660_640),
            (False, (3072, 768), 30, 32_273_440),
            (False, (1024, 1024), 30, 30_791_200),
        ):
            model = Released(released(msc=msc).config | sizes | {"max_desc_l": words}, *widths, msc=msc)
            assert sum(weight.numel() for weight in model.parameters()) == expected
            assert len(model.state_dict()) == (299 if msc else 297)


@pytest.mark.parametrize(("temperature", "precise"), [(0.09, True), (0.6, False)])
def test_a_low_temperature_is_computed_precisely(temperature: float, precise: bool) -> None:
    config = MSC.Config(video_width=VIDEO_WIDTH, text_width=6, width=8, variant="released", temperature=temperature)
    for method in (MSC(config), GMMFormerV2(GMMFormerV2.Config(width=8, temperature=temperature))):
        assert (method.clip.mixture.precise, method.frame.mixture.precise) == (precise, precise)
    assert not MSC(replace(config, variant="paper")).frame.mixture.precise

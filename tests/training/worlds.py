"""A tiny dataset to train on: each video has three topics, and each query is a noisy copy of one of them."""

from typing import Any

import torch

from midreel.methods.msc import MSCConfig
from midreel.recipes.recipe import Recipe
from midreel.types import Moment, Query, Split, TextFeatures, VideoFeatures

WIDTH = 8


class World:
    """A FeatureSource of random topics."""

    def __init__(self, num_videos: int = 12, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.videos: dict[str, VideoFeatures] = {}
        self.texts: dict[str, TextFeatures] = {}
        queries = []
        for v in range(num_videos):
            topics = torch.randn(3, WIDTH, generator=generator)
            frames = topics.repeat_interleave(4, 0) + 0.2 * torch.randn(12, WIDTH, generator=generator)
            video_id = f"video {v}"
            self.videos[video_id] = VideoFeatures(frames=frames, times=torch.arange(12.0), duration=12.0)
            for q in range(2):
                query = Query(
                    id=f"{video_id}#{q}",
                    text="…",
                    video_id=video_id,
                    moments=(Moment(start=4.0 * q, end=4.0 * q + 4),),
                )
                words = topics[q] + 0.2 * torch.randn(3 + q, WIDTH, generator=generator)
                self.texts[query.id] = TextFeatures(words=words, sentence=topics[q])
                queries.append(query)
        self.split = Split(video_ids=tuple(self.videos), queries=tuple(queries))

    def video(self, video_id: str) -> VideoFeatures:
        return self.videos[video_id]

    def text(self, query_id: str) -> TextFeatures:
        return self.texts[query_id]


def recipe(**changes: object) -> Recipe:
    config = MSCConfig(
        video_width=WIDTH, text_width=WIDTH, width=8, num_heads=2, num_frames=12, num_clips=6, min_clips=2, max_words=6
    )
    return Recipe(**{"config": config, "lr": 3e-3, "batch_size": 5, "epochs": 4} | changes)


class Stop(Exception):
    """Stands for an interruption."""


class StopAt:
    """A monitor of training that interrupts it at a step of an epoch."""

    def __init__(self, epoch: int, step: int) -> None:
        self.at = (epoch, step)

    def step(self, epoch: int, step: int, num_steps: int, terms: Any) -> None:
        if (epoch, step) == self.at:
            raise Stop

    def epoch(self, record: Any, best: float) -> None:
        pass

"""A zero-shot method with a branch of every similarity, for tests of what uses methods."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from midreel.methods import ClipZeroShot
from midreel.methods.base import Branch
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.clip_zero_shot import ClipZeroShotConfig
from midreel.methods.encoder import MethodEncoder
from midreel.types import Similarity, Tokens

BRANCHES = {
    "clip": Branch(role="segments", rank_weight=0.4, curve_weight=1.0),
    "frame": Branch(
        role="frames",
        rank_weight=0.3,
        curve_weight=3.0,
        similarity=Similarity(kind="attention", guide="clip", keys="key"),
    ),
    "key": Branch(role="keys", rank_weight=0.0, curve_weight=0.0),
    "scene": Branch(role="frames", rank_weight=0.3, curve_weight=0.0, similarity=Similarity(kind="dot")),
}
SIMILARITIES = {name: branch.similarity for name, branch in BRANCHES.items() if branch.similarity.kind != "cosine"}


def give_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the zero-shot method a branch of keys, which has no query vectors, and a branch with dot products."""
    encode_videos, encode_queries = ClipZeroShot.encode_videos, ClipZeroShot.encode_queries

    def with_keys(method: ClipZeroShot, videos: VideoBatch) -> dict[str, Tokens]:
        made = encode_videos(method, videos)
        return made | {"key": replace(made["frame"], vectors=2 * made["frame"].vectors), "scene": made["frame"]}

    def with_scenes(method: ClipZeroShot, queries: QueryBatch) -> dict[str, Tensor]:
        made = encode_queries(method, queries)
        return made | {"scene": made["frame"]}

    def through_torch(settings: Mapping[str, Any]) -> MethodEncoder:
        return MethodEncoder(ClipZeroShot(ClipZeroShotConfig(**settings)), "cpu")

    monkeypatch.setattr("midreel.library.encoder.untrained", through_torch)  # the form without torch has other branches
    monkeypatch.setattr(ClipZeroShot, "branches", BRANCHES)
    monkeypatch.setattr(ClipZeroShot, "encode_videos", with_keys)
    monkeypatch.setattr(ClipZeroShot, "encode_queries", with_scenes)

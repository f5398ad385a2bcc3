"""Losses: pure functions of tensors that return a scalar. One file for each idea.

contrastive  InfoNCE over queries and videos
soft_labels  InfoNCE whose labels are partly the scores of a teacher
ranking      triplet ranking with random or hard negatives
relational   TCPL and VCPL: preserve the distances and angles of a teacher's space; align the cosines of two spaces
alignment    CBVA: attract frames and clips of the same time, repel others
diversity    push the queries of a video apart
matching     pull each query of a video to a different clip
distillation imitate the similarities of a teacher over the frames of a video
spans        push the predicted spans of a video apart, and make one more relevant than the whole video
prototypes   ProtoPRVR: prototypes that reconstruct words and frames, and differ
ambiguity    ARL: pairs between positive and negative
"""

from midreel.losses import (
    alignment,
    ambiguity,
    contrastive,
    distillation,
    diversity,
    matching,
    prototypes,
    ranking,
    relational,
    soft_labels,
    spans,
)

__all__ = [
    "alignment",
    "ambiguity",
    "contrastive",
    "distillation",
    "diversity",
    "matching",
    "prototypes",
    "ranking",
    "relational",
    "soft_labels",
    "spans",
]

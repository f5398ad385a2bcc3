"""Losses: pure functions of tensors that return a scalar. One file for each idea.

contrastive  InfoNCE over queries and videos
ranking      triplet ranking with random or hard negatives
relational   TCPL and VCPL: preserve the distances and angles of a teacher's space
alignment    CBVA: attract frames and clips of the same time, repel others
diversity    push the queries of a video apart
matching     pull each query of a video to a different clip
prototypes   ProtoPRVR: prototypes that reconstruct words and frames, and differ
ambiguity    ARL: pairs between positive and negative
"""

from midreel.losses import alignment, ambiguity, contrastive, diversity, matching, prototypes, ranking, relational

__all__ = [
    "alignment",
    "ambiguity",
    "contrastive",
    "diversity",
    "matching",
    "prototypes",
    "ranking",
    "relational",
]

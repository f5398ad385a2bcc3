"""Losses: pure functions of tensors that return a scalar. One file for each idea.

contrastive  InfoNCE over queries and videos
ranking      triplet ranking with random or hard negatives
relational   TCPL and VCPL: preserve the distances and angles of a teacher's space
alignment    CBVA: attract frames and clips of the same time, repel others
diversity    push the queries of a video apart
matching     pull each query of a video to a different clip
spans        push the predicted spans of a video apart, and make one more relevant than the whole video
"""

from midreel.losses import alignment, contrastive, diversity, matching, ranking, relational, spans

__all__ = ["alignment", "contrastive", "diversity", "matching", "ranking", "relational", "spans"]

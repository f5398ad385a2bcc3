"""Losses: tensors in, a scalar out. One idea a file.

contrastive  InfoNCE over queries and videos
ranking      triplet ranking with random or hard negatives
relational   TCPL and VCPL: distances and angles of a teacher's space, preserved
alignment    CBVA: frames and clips of one time attract, others repel
diversity    queries of one video, kept apart
matching     queries of one video, each drawn to a clip of its own
"""

from midreel.losses import alignment, contrastive, diversity, matching, ranking, relational

__all__ = ["alignment", "contrastive", "diversity", "matching", "ranking", "relational"]

"""Datasets: annotated videos and their features, for training and evaluation.

annotations   the annotations of a dataset: splits, queries, moments
discovery     find the datasets in a folder, and recognise their layout
own           your own annotations, in annotations.jsonl or annotations.csv
release       the caption files of the PRVR papers
dataset       annotations together with their features
verify        counts and checks of a dataset
playhouse     a generated dataset

Each benchmark has a module of its own: activitynet, charades, qvhighlights and tvr.
"""

from midreel.datasets.annotations import Annotations, Part
from midreel.datasets.discovery import find_annotations, is_dataset, open_annotations

__all__ = ["Annotations", "Part", "find_annotations", "is_dataset", "open_annotations"]

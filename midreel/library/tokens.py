"""The index of a generation: the tokens of its videos."""

import shutil

from midreel.errors import BadIndex
from midreel.index.embedded import EmbeddedIndex
from midreel.index.embedded.manifest import NAME
from midreel.library.layout import Generation


def create_index(generation: Generation) -> None:
    """Create an empty index, unless there is one that can be opened. A damaged index is replaced."""
    try:
        open_index(generation, read_only=False).close()
    except BadIndex:
        shutil.rmtree(generation.index, ignore_errors=True)
        card = generation.card
        EmbeddedIndex.create(
            generation.index,
            branch_weights=card.branch_weights,
            width=card.width,
            similarities=card.similarities,
            owner=generation.owner,
        ).close()


def is_created(generation: Generation) -> bool:
    """Return whether the index of a generation was created, without opening it. Its manifest is written last."""
    return (generation.index / NAME).is_file()


def open_index(generation: Generation, *, read_only: bool) -> EmbeddedIndex:
    """Open the index of a generation. Raise BadIndex if it was copied from another library or generation."""
    index = EmbeddedIndex.open(generation.index, read_only=read_only)
    if index.owner and generation.owner and index.owner != generation.owner:
        index.close()
        raise BadIndex(
            f"{generation.index} belongs to {index.owner}, expected {generation.owner}. Copy the whole library again; "
            f"or rebuild the index: midreel reindex LIBRARY"
        )
    return index


def num_videos(generation: Generation) -> int:
    """Return the number of videos in the index of a generation; 0 if it cannot be opened."""
    try:
        with open_index(generation, read_only=True) as index:
            return len(index)
    except BadIndex:
        return 0

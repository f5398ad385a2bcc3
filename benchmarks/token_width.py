"""Measure what wider tokens cost: the bytes of a video in the index, and the time of a search.

    python -m benchmarks.token_width

Tokens of MSC have width 384. Those of the methods beyond the paper have the width of CLIP's joint space: 512 or 768.
Vectors are random, with 128 frames and 32 clips per video.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import synthetic
from benchmarks.measuring import in_turns, machine, publish
from midreel.evaluation import tables
from midreel.index import EmbeddedIndex
from midreel.types import Tokens

WIDTHS = (384, 512, 768)
PIECE = 100  # videos in memory at once


def build(folder: Path, width: int, num_videos: int) -> EmbeddedIndex:
    """Write an index of random videos, and open it.

    Args:
        folder: A new folder.
        width: The width of the tokens.
        num_videos: The number of videos.
    """
    torch.manual_seed(width)
    with EmbeddedIndex.create(folder, branch_weights=synthetic.WEIGHTS, width=width) as index:
        for first in range(0, num_videos, PIECE):
            numbers = range(first, min(first + PIECE, num_videos))
            sizes = {"clip": synthetic.NUM_CLIPS, "frame": synthetic.NUM_FRAMES}
            index.add_all(
                (synthetic.name(number), {branch: _random(size, width) for branch, size in sizes.items()})
                for number in numbers
            )
    return EmbeddedIndex.open(folder, read_only=True)


def _random(size: int, width: int) -> Tokens:
    return synthetic.tokens_of(torch.nn.functional.normalize(torch.randn(1, size, width), dim=-1))


def bytes_of(folder: Path) -> int:
    """Return the bytes of the vectors of an index: all files but the database."""
    return sum(path.stat().st_size for path in folder.iterdir() if "sqlite" not in path.name)


def searching(index: EmbeddedIndex, width: int, num_queries: int) -> Callable[[], object]:
    """Return a function that searches for random queries, one after the other.

    Args:
        index: The index.
        width: The width of its tokens.
        num_queries: The number of queries.
    """
    queries: list[Tensor] = list(torch.nn.functional.normalize(torch.randn(num_queries, 1, width), dim=-1))
    return lambda: [index.search(dict.fromkeys(synthetic.WEIGHTS, query), top=10) for query in queries]


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=1000, metavar="N", help="videos of an index [1000]")
    parser.add_argument("--rounds", type=int, default=31, metavar="N", help="rounds of timing [31]")
    arguments = parser.parse_args(command_line)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        places = {width: Path(folder) / str(width) for width in WIDTHS}
        indexes = {width: build(place, width, arguments.videos) for width, place in places.items()}
        times = in_turns([searching(index, width, 8) for width, index in indexes.items()], arguments.rounds)
        rows = {
            f"{width}": {
                "KB a video": bytes_of(places[width]) / arguments.videos / 1000,
                "search / width 384": seconds / times[0],
            }
            for width, seconds in zip(WIDTHS, times, strict=True)
        }
        for index in indexes.values():
            index.close()
    columns = {"KB a video": 0, "search / width 384": 2}
    publish(
        f"{arguments.videos:,} videos, {machine()}\n\n{tables.to_markdown(rows, digits=columns, corner='width')}", None
    )


if __name__ == "__main__":
    main()

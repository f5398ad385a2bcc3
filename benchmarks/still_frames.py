"""Measure what is lost if frames that change little are not encoded: `midreel index --min-change`.

    make bench-still

Decodes and encodes the test videos of the demo once. For each least change, the frames that change less get the vector
of the last frame before them that changed, as in indexing. Then the queries of the demo are ranked with zero-shot.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from jaxtyping import Float

from benchmarks.measuring import machine, publish
from midreel.datasets import own
from midreel.experiments.demo import BACKBONE, DATASET
from midreel.features.backbones.base import load_backbone
from midreel.features.backbones.frame_windows import prepared
from midreel.features.extract import Pixels, without_still
from midreel.index.embedded.quantise import unit
from midreel.media import decode
from midreel.types import Query

CHANGES = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
RATE = 2.0
TOPS = (1, 5, 10)
_BATCH = 64

Vectors = Float[np.ndarray, "N E"]


def rows_of(frames: Sequence[Pixels], min_change: float) -> list[int]:
    """Return for each frame the number of the frame whose vector it gets."""
    kept = without_still(((float(number), pixels) for number, pixels in enumerate(frames)), min_change)
    return list(accumulate((number if pixels is not None else 0 for number, (_, pixels) in enumerate(kept)), max))


def recalls(queries: Sequence[Query], sentences: Vectors, videos: Mapping[str, Vectors]) -> list[float]:
    """Return R@1, R@5 and R@10 in percent. The score of a video is the cosine of its best frame.

    Args:
        queries: The queries.
        sentences: The unit vector of each.
        videos: The unit vectors of the frames of each video.
    """
    names = list(videos)
    scores = np.stack([(sentences @ videos[name].T).max(1) for name in names], 1)
    right = scores[np.arange(len(queries)), [names.index(query.video_id) for query in queries]]
    ranks = (scores > right[:, None]).sum(1)
    return [100 * float((ranks < top).mean()) for top in TOPS]


def measure(dataset: Path) -> list[str]:
    """Return the lines of the table."""
    backbone, queries = load_backbone(BACKBONE), own.read(dataset)["test"].queries
    frames: dict[str, list[Pixels]] = {}
    for path in sorted(dataset.glob("*.mp4")):
        frames[path.stem] = [pixels for _, pixels in prepared(decode.read_frames(path, RATE), backbone)]
    vectors = {
        name: unit(
            np.concatenate(
                [backbone.encode_pixels(np.stack(of[start : start + _BATCH])) for start in range(0, len(of), _BATCH)]
            )
        )
        for name, of in frames.items()
    }
    texts = [query.text for query in queries]
    sentences = unit(
        np.stack(
            [
                text.sentence
                for start in range(0, len(texts), _BATCH)
                for text in backbone.encode_texts(texts[start : start + _BATCH])
            ]
        )
    )
    lines, total = [], sum(map(len, frames.values()))
    for least in CHANGES:
        rows = {name: rows_of(of, least) for name, of in frames.items()}
        found = recalls(queries, sentences, {name: vectors[name][of] for name, of in rows.items()})
        share = sum(len(set(of)) for of in rows.values()) / total
        lines.append(f"| {least:g} | {share:.1%} | {' | '.join(f'{recall:.2f}' for recall in found)} |")
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="the folder of make demo [runs/demo]")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    lines = [
        "# Frames that change little",
        "",
        "Measured by `make bench-still`, on the test videos and queries of the demo, with tiny-clip and zero-shot, at",
        f"{RATE:g} frames a second. With `midreel index --min-change`, a frame is encoded only if it differs enough",
        "from the last encoded one: by this share of the brightness, in the block of an 8 x 8 grid that differs most.",
        "In the playhouse, something moves most of the time. Recordings of screens and lectures were not measured.",
        "",
        machine(),
        "",
        "| least change | frames encoded | R@1 | R@5 | R@10 |",
        "| --- | --- | --- | --- | --- |",
        *measure(arguments.demo / DATASET),
        "",
    ]
    publish("\n".join(lines), arguments.write)


if __name__ == "__main__":
    main()

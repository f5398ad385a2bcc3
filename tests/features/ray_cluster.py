"""Run `midreel index` and `midreel extract` on a real Ray cluster of three nodes, and kill a node in the middle.

Run as: python -m tests.features.ray_cluster FOLDER. It is a process of its own, because Ray changes signal handlers and
starts many processes. The last line of its output is JSON.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_period_ms": "500"}
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
from ray.cluster_utils import Cluster as RayCluster  # noqa: E402

from midreel.datasets import dataset  # noqa: E402
from midreel.datasets.sources import Source  # noqa: E402
from midreel.features import load_backbone  # noqa: E402
from midreel.features.cluster import connected  # noqa: E402
from midreel.features.extract import Encoded, VideoItem  # noqa: E402
from midreel.features.stores.store import FeatureStore  # noqa: E402
from tests.library.small import COLOURS, film  # noqa: E402

NUM_VIDEOS = 24


def main(folder: Path) -> None:
    """Extract a folder of videos, kill a node after the first videos, and print what happened."""
    clips = folder / "clips"
    for number in range(NUM_VIDEOS):
        colours = [list(COLOURS)[number // 4**digit % 4] for digit in range(3)]
        film(clips / f"{number:02}.mp4", *colours)  # no two are equal
    (clips / "broken.mp4").write_text("this is no video\n" * 99)
    nodes = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    places = [nodes.add_node(num_cpus=1) for _ in range(2)]
    nodes.wait_for_nodes()
    backbone = load_backbone("tiny-clip")
    outcomes: list[str] = []
    with connected(nodes.address, "tiny-clip", backbone.fingerprint, rate=2.0) as actors:
        started, lock = itertools.count(1), threading.Lock()

        def kill_a_node_and_encode(item: VideoItem) -> Encoded:
            with lock:
                if next(started) == 6:  # others are in progress
                    nodes.remove_node(places[0], allow_graceful=False)
            return actors.encode(item)

        options: dict[str, Any] = {"rate": 2.0, "workers": actors.num_threads, "encode": kill_a_node_and_encode}
        videos, _ = dataset.extract(
            Source.find(clips), backbone, progress=lambda outcome: outcomes.append(outcome.id), **options
        )
        work = {name: (each.videos, each.lost) for name, each in actors.nodes.items()}
        again, _ = dataset.extract(Source.find(clips), backbone, **options)
    dataset.extract(Source.find(clips), backbone, rate=2.0, out=folder / "here.h5")
    with FeatureStore.open(clips / "features.h5") as store, FeatureStore.open(folder / "here.h5") as here:
        stored = store.video_ids()
        same = all(np.array_equal(store.video(each).frames, here.video(each).frames) for each in here.video_ids())
    command = [sys.executable, "-m", "midreel", "index", str(clips), "--library", str(folder / "library"), "--json"]
    indexed = subprocess.run([*command, "--cluster", nodes.address], capture_output=True, text=True)
    print(
        json.dumps(
            {
                "outcomes": outcomes,
                "done": videos.done,
                "failed": list(videos.failed),
                "stored": stored,
                "again": [len(again.done), len(again.skipped), again.not_retried],
                "work": list(work.values()),
                "same": same,
                "indexed": json.loads(indexed.stdout or "{}"),
                "nodes": indexed.stderr,
            }
        )
    )
    nodes.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What a user would write instead of `midreel serve`: a FastAPI script around faiss, or around Qdrant in the process.

    python -m benchmarks.plain_server LIBRARY --engine faiss

It serves a library of midreel: the same backbone and model encode the sentence, and the engine searches the frames of
all videos exactly. An answer has a video, a time and a score for each hit. It has no moments, ranges, curves or
confidence, and does not check or limit anything. Part of `make bench-serve`.
"""

import argparse
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from midreel.index.base import Array
from midreel.library.searcher import Searcher

ENGINES = ("faiss", "qdrant")
_FRAMES = 200  # to find, because several good frames belong to one video

Find = Callable[[Array], list[tuple[int, float]]]  # a unit vector -> numbers and scores of frames, best first


class Asked(BaseModel):
    """A search."""

    query: str
    top: int = 10


def faiss_flat(vectors: Array) -> Find:
    """Return an exhaustive search by faiss."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)

    def find(query: Array) -> list[tuple[int, float]]:
        scores, numbers = index.search(query[None], min(_FRAMES, len(vectors)))
        return list(zip(numbers[0].tolist(), scores[0].tolist(), strict=True))

    return find


def qdrant_exact(vectors: Array) -> Find:
    """Return an exhaustive search by Qdrant's core in this process."""
    import qdrant_edge as qdrant

    params = qdrant.EdgeVectorParams(size=vectors.shape[1], distance=qdrant.Distance.Dot)
    shard = qdrant.EdgeShard.create(tempfile.mkdtemp(), qdrant.EdgeConfig(vectors=params))
    points = [qdrant.Point(number, vector) for number, vector in enumerate(vectors.tolist())]
    for start in range(0, len(points), 1000):
        shard.update(qdrant.UpdateOperation.upsert_points(points[start : start + 1000]))
    exact = qdrant.SearchParams(exact=True)

    def find(query: Array) -> list[tuple[int, float]]:
        asked = qdrant.Query.Nearest(query.tolist())
        found = shard.query(qdrant.QueryRequest(_FRAMES, query=asked, params=exact))
        return [(int(point.id), point.score) for point in found]

    return find


def create_app(library: Path, engine: str) -> FastAPI:
    """Return the application."""
    searcher, app = Searcher.open(library), FastAPI()
    branch = max(searcher.index.branch_weights, key=searcher.index.branch_weights.__getitem__)
    vectors, videos, times = list[Array](), list[str](), list[float]()
    for video_id, tokens in searcher.index.tokens_of(searcher.index.video_ids()).items():
        part = tokens[branch]
        vectors.append(part.vectors[part.mask])
        videos += [video_id] * len(vectors[-1])
        times += part.spans[part.mask].mean(-1).tolist()
    find = {"faiss": faiss_flat, "qdrant": qdrant_exact}[engine](np.concatenate(vectors))
    searcher.search("a first search")

    @app.post("/v1/search")
    def search(asked: Asked) -> dict[str, Any]:
        query = searcher.encode([asked.query])[branch][0]
        best: dict[str, tuple[int, float]] = {}
        for number, score in find(query / np.linalg.norm(query)):
            best.setdefault(videos[number], (number, score))
        hits = list(best.items())[: asked.top]
        return {"hits": [{"video": video, "time": times[at], "score": score} for video, (at, score) in hits]}

    @app.get("/readyz")
    def ready() -> str:
        return "ready"

    return app


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="the library")
    parser.add_argument("--engine", choices=ENGINES, required=True, help="what searches")
    arguments = parser.parse_args()
    app = create_app(arguments.library, arguments.engine)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()

"""midreel as a model of mteb, for its retrieval tasks from text to video.

mteb lets a model index a corpus and search it by itself (`SearchProtocol`). midreel does this as a library does, so the
scores are those of `midreel search`: the best moment of a video counts, not one vector for the whole video.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midreel.errors import BadAnnotation, BadPackage, BadSetting
from midreel.library.query import Part
from midreel.library.searcher import Searcher

VIDEO, TEXT = "video", "text"


class MtebSearch:
    """A model for `mteb.evaluate`. It implements `mteb.models.models_protocols.SearchProtocol`.

    Args:
        model: A run, the folder of a model, or the name of an untrained one.
        backbone: The name of a backbone. Default: as for `Searcher.create`.
        rate: Frames per second. Default: as for `Searcher.create`.
        device: The torch device.

    Raises:
        BadPackage: mteb is not installed.
    """

    def __init__(
        self, model: str = "zero-shot", *, backbone: str | None = None, rate: float | None = None, device: str = "cpu"
    ) -> None:
        try:
            from mteb.models.model_meta import ModelMeta
        except ModuleNotFoundError as error:
            raise BadPackage(
                f"{error.name} is not installed, expected for mteb. Install it: pip install 'midreel[mteb]'"
            ) from error
        name = f"midreel/{Path(model).name}"
        self.mteb_model_meta = ModelMeta.create_empty({"name": name, "modalities": [TEXT, VIDEO]})
        self._settings: dict[str, Any] = {"model": model, "backbone": backbone, "rate": rate, "device": device}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._searcher: Searcher | None = None
        self._ids: dict[str, str] = {}
        self.skipped: list[str] = []  # ids of unreadable videos

    def index(self, corpus: Any, **kwargs: Any) -> None:
        """Index a corpus: a dataset with the columns id and video. Other arguments of mteb are not needed.

        Raises:
            BadAnnotation: The corpus has no column of videos.
        """
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="midreel-mteb-")
        videos = Path(self._folder.name) / "videos"
        videos.mkdir()
        self._ids = dict(_files(corpus, videos))
        self._searcher = Searcher.create(Path(self._folder.name) / "library", **self._settings)
        report = self._searcher.add(videos)
        self.skipped = [self._ids[Path(path).name] for path in report.to_dict()["failed"]]

    def search(self, queries: Any, *, top_k: int, **kwargs: Any) -> dict[str, dict[str, float]]:
        """Return the scores of the best videos of each query, by their ids.

        Args:
            queries: A dataset with the columns id and text.
            top_k: The number of videos of each query, at most.
            kwargs: Other arguments of mteb. `top_ranked` limits the videos of each query.

        Raises:
            BadSetting: There is no index.
        """
        if self._searcher is None:
            raise BadSetting("there is no index, expected a call of index first.")
        ids, texts = list(queries["id"]), list(queries[TEXT])
        ranked = kwargs.get("top_ranked") or {}
        # A plain part: capitals such as AND in a sentence of a benchmark are not operators.
        top = max(1, len(self._searcher) if ranked else min(top_k, len(self._searcher)))
        found = self._searcher.search_all([Part(text) for text in texts], top=top, exact=True)
        scores: dict[str, dict[str, float]] = {}
        for query_id, hits in zip(ids, found, strict=True):
            pairs = [(self._ids[path.name], hit.score) for hit in hits for path in hit.paths]
            wanted = set(ranked[query_id]) if query_id in ranked else None
            kept = [pair for pair in pairs if wanted is None or pair[0] in wanted]
            scores[query_id] = dict(kept[:top_k])
        return scores

    def close(self) -> None:
        """Delete the index."""
        if self._searcher is not None:
            self._searcher.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._searcher = self._folder = None


def _files(corpus: Any, folder: Path) -> Iterator[tuple[str, str]]:
    """Put the videos of a corpus into a folder. Yield their file names and ids."""
    import datasets

    if VIDEO not in corpus.column_names:
        raise BadAnnotation(
            f"the corpus has the columns {', '.join(corpus.column_names)}, expected {VIDEO}. Choose a task of videos."
        )
    if isinstance(corpus.features[VIDEO], datasets.Video):
        corpus = corpus.cast_column(VIDEO, datasets.Video(decode=False))  # midreel decodes the file itself
    for number, row in enumerate(corpus):
        video = {"path": row[VIDEO], "bytes": None} if isinstance(row[VIDEO], str) else row[VIDEO]
        name = f"{number:07d}{Path(video['path'] or 'video.mp4').suffix}"
        if video["bytes"]:
            (folder / name).write_bytes(video["bytes"])
        else:
            (folder / name).symlink_to(Path(video["path"]).absolute())
        yield name, str(row["id"])

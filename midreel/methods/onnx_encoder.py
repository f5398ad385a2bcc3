"""A trained model in its ONNX form, on numpy arrays: it encodes videos and queries without torch.

`midreel.methods.onnx` writes the form beside the model: two graphs, and encoders.json, which says how videos are
prepared.
"""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from midreel.errors import BadBatch, BadModel
from midreel.io.onnx_graph import session_options
from midreel.methods.model_files import FACTS, FORM, MODEL_FILES, QUERY_ENCODER, VIDEO_ENCODER, model_digest
from midreel.ops.preparation import prepared
from midreel.types import Similarity, TextFeatures, Tokens

_AGAIN = "Make the ONNX form again: midreel models export LIBRARY"


class OnnxEncoder:
    """Encodes videos and queries with the graphs in a folder. It implements `midreel.library.encoder.Encoder`.

    Each graph is loaded when it is first used: a search needs the one of queries only.

    Args:
        folder: The folder of a model with its ONNX form.

    Raises:
        BadModel: encoders.json is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = read_facts(folder)
        try:
            self.width: int = self.facts["token_width"]
            self.num_frames: int = self.facts["num_frames"]
            self.branch_weights: dict[str, float] = self.facts["branch_weights"]
            self.curve_weights: dict[str, float] = self.facts["curve_weights"]
            self.similarities = {branch: Similarity(**form) for branch, form in self.facts["similarities"].items()}
            self.feature_widths: tuple[int, ...] = tuple(self.facts["feature_widths"])
            self._videos: Mapping[str, Any] = self.facts["videos"]
            self._queries: Mapping[str, Any] = self.facts["queries"]
            self._hashes: Mapping[str, str] = {
                name: self.facts["files"][name] for name in (VIDEO_ENCODER, QUERY_ENCODER)
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise BadModel(f"{folder / FACTS} lacks {error}. Export the model again.") from error
        self._loading = threading.Lock()

    @cached_property
    def _video_session(self) -> Any:
        return self._session(VIDEO_ENCODER)

    @cached_property
    def _query_session(self) -> Any:
        return self._session(QUERY_ENCODER)

    def _session(self, name: str) -> Any:
        import onnxruntime  # type: ignore[import-untyped]

        content = self.graph(name)
        # To wake threads takes longer than to compute a query, which is one sentence.
        options = session_options(1 if name == QUERY_ENCODER else 0)
        try:
            return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises errors of many classes
            raise BadModel(f"{self._folder / name} cannot be loaded ({error}). {_AGAIN}") from error

    def graph(self, name: str) -> bytes:
        """Return the content of a graph. Raise BadModel if it is missing, or not the one that encoders.json names."""
        path = self._folder / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BadModel(f"{path} cannot be read ({error.strerror}). {_AGAIN}") from error
        if hashlib.sha256(content).hexdigest() != self._hashes[name]:
            raise BadModel(f"{path} is not the graph that {FACTS} describes. {_AGAIN}")
        return content

    def encode_videos(self, frames: Float[np.ndarray, "B T C"]) -> dict[str, Tokens]:
        """Return each branch's tokens of videos that have the same number of frames.

        Raises:
            BadBatch: the features have another width, or are not finite.
        """
        if self.feature_widths and frames.shape[2] not in self.feature_widths:
            raise BadBatch(
                f"features have width {frames.shape[2]}, expected {' or '.join(map(str, self.feature_widths))}. Use "
                f"features of the model's backbone."
            )
        ports = self._videos["inputs"]
        width = ports["frames"]["shape"][2] if "frames" in ports else frames.shape[2]
        own = np.asarray(
            frames[..., :width], np.float32
        )  # DL-DKD also accepts the columns of its teacher, which follow
        each = [prepared(video, self._videos) for video in own]
        with self._loading:
            session = self._video_session
        inputs = {name: np.stack([video[name] for video in each]) for name in ports}
        found = _run(session, inputs)
        return {
            branch: Tokens(**{part: found[f"{branch}_{part}"] for part in ("vectors", "mask", "spans")})
            for branch in self.branch_weights
        }

    def encode_queries(self, texts: Sequence[TextFeatures]) -> dict[str, Float[np.ndarray, "Q D"]]:
        """Return each branch's vectors of the queries. Words beyond the method's limit are ignored."""
        words = [np.asarray(text.words, np.float32)[: self._queries["max_words"]] for text in texts]
        longest = max(map(len, words))
        lengths = np.array([len(each) for each in words])
        given = {
            "words": np.stack([np.pad(each, ((0, longest - len(each)), (0, 0))) for each in words]),
            "mask": np.arange(longest) < lengths[:, None],
            "sentence": np.stack([np.asarray(text.sentence, np.float32) for text in texts]),
        }
        with self._loading:
            session = self._query_session
        inputs = {name: given[name] for name in self._queries["inputs"]}
        for name, port in self._queries["inputs"].items():
            if inputs[name].dtype != bool and inputs[name].shape[-1] != port["shape"][-1]:
                raise BadBatch(
                    f"{name} have width {inputs[name].shape[-1]}, expected {port['shape'][-1]}. Encode the queries "
                    f"with the backbone of this model."
                )
        return {name.removesuffix("_vectors"): vectors for name, vectors in _run(session, inputs).items()}

    def files(self) -> dict[str, bytes]:
        """Return the files of the model by name. The model's own files are the same bytes as with torch."""
        from safetensors.numpy import load, save

        config, weights = MODEL_FILES
        own = {
            config: json.dumps(self.facts["config"], indent=2, sort_keys=True).encode(),
            weights: save(load((self._folder / weights).read_bytes())),
        }
        graphs = {name: self.graph(name) for name in (VIDEO_ENCODER, QUERY_ENCODER)}
        return own | graphs | {FACTS: (self._folder / FACTS).read_bytes()}


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of encoders.json. Raise BadModel if it is missing or damaged."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadModel(f"{folder / FACTS} cannot be read ({error}). Export the model again.") from error
    if not isinstance(facts, dict):
        raise BadModel(f"{folder / FACTS} contains a {type(facts).__name__}, expected an object. Export it again.")
    return facts


def fits(folder: Path) -> bool:
    """Return whether a folder has an ONNX form that was made from the model in it, by this or a later version."""
    if not all((folder / name).is_file() for name in FORM):
        return False
    try:
        encoder = OnnxEncoder(folder)
        return encoder.facts.get("model") == model_digest(encoder.files())
    except (BadModel, OSError, KeyError, ValueError):
        return False


def _run(session: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))

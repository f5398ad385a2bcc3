"""A BERT whose mean word is the vector of a sentence, such as MiniLM, as an ONNX graph, without torch."""

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer

from midreel.errors import BadModel
from midreel.features.backbones.base import read_json, weight_files
from midreel.features.backbones.folder import Weights
from midreel.features.backbones.towers import ACTIVATIONS, Builder, Tower
from midreel.features.backbones.words import reading_tokenizer
from midreel.io.onnx_graph import Graph
from midreel.types import TextFeatures


class SentenceEncoder:
    """A sentence encoder in the format of Sentence Transformers. It is safe to use from several threads.

    Args:
        folder: The folder with config.json, model.safetensors and tokenizer.json.
        threads: The number of threads. 0: one for each core.

    Raises:
        BadModel: If files are missing, damaged or of another architecture.
    """

    def __init__(self, folder: Path, *, threads: int = 0) -> None:
        self._config = read_json(folder / "config.json")
        expected = {"model_type": "bert", "position_embedding_type": "absolute"}
        found = {name: self._config.get(name, value) for name, value in expected.items()}
        if found != expected or self._config.get("hidden_act") not in ACTIVATIONS:
            raise BadModel(f"{folder / 'config.json'} says {found}, expected a BERT. Use a MiniLM of 6 layers.")
        self._weights = Weights(weight_files(folder))
        self._threads, self._loading = threads, threading.Lock()
        limits = read_json(folder / "sentence_bert_config.json")
        self.context_length = int(limits.get("max_seq_length", self._config["max_position_embeddings"]))
        with reading_tokenizer(folder):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(self.context_length)

    @property
    def width(self) -> int:
        """The width of a word and of a sentence."""
        return int(self._config["hidden_size"])

    @property
    def vocabulary(self) -> dict[str, int]:
        """The tokens and their ids."""
        return self._tokenizer.get_vocab()

    @cached_property
    def _session(self) -> Any:
        return sentence_tower(self._config, self._weights).session(self._threads)

    def encode(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Return the vectors of the words, and the mean word of unit length as the sentence."""
        if not texts:
            return []
        with self._loading:
            session = self._session
        ids = [self._tokenizer.encode(text).ids for text in texts]
        tokens = np.zeros((len(ids), max(map(len, ids))), np.int64)
        mask = np.zeros(tokens.shape, np.int32)
        for row, used, found in zip(tokens, mask, ids, strict=True):
            row[: len(found)], used[: len(found)] = found, 1
        (words,) = session.run(["words"], {"tokens": tokens, "mask": mask})
        return [
            # A copy, because a view of one text would keep the whole batch in memory.
            TextFeatures(words=rows[: len(found)].copy(), sentence=mean_direction(rows[: len(found)]))
            for rows, found in zip(words, ids, strict=True)
        ]


def mean_direction(words: Float[np.ndarray, "L C"]) -> Float[np.ndarray, " C"]:
    """Return the mean of vectors, at unit length.

    >>> mean_direction(np.array([[3, 0], [3, 8]], np.float32)).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    mean = words.mean(0)
    return (mean / max(float(np.linalg.norm(mean)), 1e-12)).astype(np.float32)


def sentence_tower(config: dict[str, Any], weights: Weights) -> Graph:
    """Return the graph from `tokens` and `mask` (N, L) to `words` (N, L, C).

    The layers of BERT normalise after each sum, not before each layer as those of CLIP.

    Args:
        config: The config.
        weights: The weights of the folder.
    """
    tower = Tower.read({"layer_norm_eps": 1e-12, **config})
    build = Builder(weights, tower, int8=False)
    graph, width = build.graph, tower.width
    ids, mask = graph.input("tokens", "int64", ["N", "L"]), graph.input("mask", "int32", ["N", "L"])
    shape = graph.add("Concat", graph.add("Shape", ids), graph.ints(width), axis=0)
    length = graph.add("Slice", shape, graph.ints(1), graph.ints(2))
    positions = graph.add(
        "Slice", build.weight("embeddings.position_embeddings.weight"), graph.ints(0), length, graph.ints(0)
    )
    first_type = build.array("embeddings.token_type_embeddings.weight")[0]  # a text has no second part
    tokens = graph.add("Gather", build.weight("embeddings.word_embeddings.weight"), ids)
    tokens = graph.add("Add", graph.add("Add", tokens, positions), graph.constant(first_type, "first_type"))
    rows = build.norm(build.as_rows(tokens), "embeddings.LayerNorm")
    for number in range(tower.layers):
        layer = f"encoder.layer.{number}"
        queries, keys, values = (
            graph.add("Reshape", build.linear(rows, f"{layer}.attention.self.{part}"), shape)
            for part in ("query", "key", "value")
        )
        attended = build.attended(queries, keys, values, f"{layer}.attention.output.dense", mask=mask)
        rows = build.norm(graph.add("Add", rows, attended), f"{layer}.attention.output.LayerNorm")
        inner = build.activated(build.linear(rows, f"{layer}.intermediate.dense"))
        inner = build.linear(inner, f"{layer}.output.dense")
        rows = build.norm(graph.add("Add", rows, inner), f"{layer}.output.LayerNorm")
    graph.output("words", graph.add("Reshape", rows, shape), ["N", "L", width])
    return graph

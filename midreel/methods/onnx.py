"""Export the encoders of a method as ONNX graphs, and compare them with torch.

Programs without torch and midreel can run the graphs: docs/export.md.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

import midreel
from midreel.errors import BadModel, BadPackage
from midreel.features.backbones.base import hash_of_files
from midreel.io.files import write_durably
from midreel.methods.base import Method, evaluating
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.encoder import files_of
from midreel.methods.model_files import FACTS as FACTS
from midreel.methods.model_files import QUERY_ENCODER, VIDEO_ENCODER, model_digest
from midreel.methods.settings import feature_widths

PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # of the extra `train`
TOLERANCE = 1e-4

Parts = dict[str, Tensor]  # the tensors of a batch by name


def write_encoders(
    method: Method, folder: Path, features: Mapping[str, Any] | None = None, tolerance: float = TOLERANCE
) -> dict[str, float]:
    """Write both encoders of a method as ONNX graphs, and encoders.json with the facts that a program needs.

    The graphs are run on videos and queries of several lengths, alone and in batches, and compared with the method.

    Args:
        method: the method. It is exported in evaluation mode and keeps its mode.
        folder: the folder for the three files.
        features: the fingerprint of the features that the method needs, for encoders.json.
        tolerance: the largest accepted difference of a result.

    Returns:
        The largest difference of each graph, by file name.

    Raises:
        BadPackage: the extra `train` is not installed.
        BadModel: a graph differs from the method by more than the tolerance.
    """
    _expect_packages()
    with evaluating(method):
        words = Dim("words", min=1, max=_max_words(method))
        videos = _Graph(_VideoEncoder(method), list(_example_videos(method)), folder / VIDEO_ENCODER)
        queries = _Graph(_QueryEncoder(method), list(_example_queries(method)), folder / QUERY_ENCODER, words)
        graphs = {VIDEO_ENCODER: videos, QUERY_ENCODER: queries}
        differences = {name: graph.write(tolerance) for name, graph in graphs.items()}
    facts = {
        "midreel": midreel.__version__,
        "model": model_digest(files_of(method)),
        "files": {name: hash_of_files([folder / name]) for name in graphs},
        "config": vars(method.config),
        "num_frames": method.num_frames,
        "token_width": method.token_width,
        "feature_widths": feature_widths(method.config),
        "features": features,
        "videos": {"file": VIDEO_ENCODER, **method.preparation(), **videos.ports()},
        "queries": {"file": QUERY_ENCODER, "max_words": _max_words(method), **queries.ports()},
        "branch_weights": method.branch_weights,
        "curve_weights": method.curve_weights,
        "similarities": {branch: asdict(form) for branch, form in method.similarities.items()},
        "differences": differences,
        "made_with": {name: version(name) for name in ("torch", *PACKAGES)},
    }
    write_durably(folder / FACTS, json.dumps(facts, indent=2) + "\n")
    return differences


def _expect_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise BadPackage(
            f"{', '.join(missing)} cannot be imported, but ONNX needs it. Run: pip install 'midreel[train]'"
        )


# ---------------------------------------------------------------- modules to export


class _VideoEncoder(nn.Module):
    """`encode_videos` from tensors by name to tensors by name."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, parts: Parts) -> Parts:
        encoded = self.method.encode_videos(VideoBatch(**parts))
        return {f"{branch}_{name}": part for branch, tokens in encoded.items() for name, part in vars(tokens).items()}


class _QueryEncoder(nn.Module):
    """`encode_queries` from tensors by name to tensors by name."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, parts: Parts) -> Parts:
        return {f"{branch}_vectors": part for branch, part in self.method.encode_queries(QueryBatch(**parts)).items()}


# ---------------------------------------------------------------- examples


def _example_videos(method: Method) -> Iterator[Parts]:
    """Yield videos from one frame to five times the method's number of frames, alone and in batches."""
    width, num = getattr(method.config, "video_width", method.token_width), method.num_frames
    generator = torch.Generator().manual_seed(0)
    for lengths in ((num, num + 1, 5 * num), (1,), (2, num // 2 + 1, 3 * num, num), (2 * num,)):
        batches = (method.prepare_videos(torch.randn(1, length, width, generator=generator)) for length in lengths)
        yield _parts(VideoBatch.join(batches, len(lengths)))


def _example_queries(method: Method) -> Iterator[Parts]:
    """Yield queries from one word to the largest number of words, alone and padded."""
    config, most = method.config, _max_words(method)
    generator = torch.Generator().manual_seed(0)
    for lengths in ((most, 1, (most + 1) // 2), (1,), (1, 1), (most,), (min(2, most), 1, 1, 1)):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        words = torch.randn(*mask.shape, getattr(config, "text_width", method.token_width), generator=generator)
        yield _parts(
            QueryBatch(
                words=words, mask=mask, sentence=torch.randn(len(mask), method.sentence_width, generator=generator)
            )
        )


def _max_words(method: Method) -> int:
    return getattr(method.config, "max_words", 77)


def _parts(batch: VideoBatch | QueryBatch) -> Parts:
    return {name: part for name, part in vars(batch).items() if part is not None}


# ---------------------------------------------------------------- graphs


class _Graph:
    """An ONNX file, its torch module, and the examples that both are compared on."""

    def __init__(self, module: nn.Module, examples: Sequence[Parts], path: Path, words: Dim | None = None) -> None:
        self.module, self.examples, self.path, self.words = module.eval(), examples, path, words
        self._session: Any = None

    def write(self, tolerance: float) -> float:
        """Write the file, run it, and return the largest difference from the module."""
        self._export()
        difference = max(self._difference(parts) for parts in self.examples)
        if not difference <= tolerance:
            raise BadModel(
                f"{self.path.name} differs from torch by {difference:.1e}, expected at most {tolerance:.0e}. Try other "
                f"versions than onnxruntime {version('onnxruntime')} and torch {version('torch')}."
            )
        return difference

    def _export(self) -> None:
        first, names = self.examples[0], list(self.module(self.examples[0]))
        batch = Dim("batch")
        per_word = {} if self.words is None else {name: {1: self.words} for name in ("words", "mask")}
        shapes = {name: {0: batch} | per_word.get(name, {}) for name in first}
        with _silence():
            traced = torch.export.export(self.module, (first,), dynamic_shapes={"parts": shapes})
            program = torch.onnx.export(
                traced,
                input_names=list(first),
                output_names=names,
                dynamic_shapes={"parts": shapes},  # for the names of the axes
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        for value in [value for value in program.model.graph.inputs if not value.uses()]:
            program.model.graph.inputs.remove(value)  # a tensor that the method does not use
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # the Python stack of each node, which contains local paths
        program.save(str(self.path), external_data=False)

    def _difference(self, parts: Parts) -> float:
        taken = {port.name for port in self.session.get_inputs()}
        found = self.session.run(None, {name: part.numpy() for name, part in parts.items() if name in taken})
        expected = self.module(parts)
        return max(_max_difference(a, b.numpy()) for a, b in zip(found, expected.values(), strict=True))

    @property
    def session(self) -> Any:
        """The onnxruntime session of the file, opened on first use."""
        if self._session is None:
            import onnxruntime  # type: ignore[import-untyped]

            self._session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        return self._session

    def ports(self) -> dict[str, Any]:
        """Return the type and axes of each input and output, by name."""
        ports = {"inputs": self.session.get_inputs(), "outputs": self.session.get_outputs()}
        return {
            kind: {port.name: {"type": port.type, "shape": port.shape} for port in each} for kind, each in ports.items()
        }


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the warnings and log messages of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _max_difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference, inf if shapes or types differ or a value is NaN."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if found.dtype == bool:
        return 0.0 if (found == expected).all() else float("inf")
    return float(np.nan_to_num(np.abs(found - expected), nan=np.inf).max())

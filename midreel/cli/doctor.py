"""Is all here that midreel needs, and does it work? One line for each thing that may be wrong, and what to do about it.

What may be broken is imported inside the check that tries it, so that a broken part is a line and not a traceback.
"""

import errno
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from midreel.errors import MidreelError

if TYPE_CHECKING:
    from midreel.index.embedded import EmbeddedIndex

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 6)
SCARCE, TOO_LITTLE = 2 * 10**9, 10**8  # bytes
PATIENCE = 3.0  # seconds for the hub to answer
# What midreel does without, and what each would add.
OPTIONAL = {
    "fastapi": "midreel serve",
    "uvicorn": "midreel serve",
    "prometheus_client": "midreel serve",
    "tensorboard": "the curves of a training in a browser",
    "faiss": "compressed libraries of 50,000 videos or more",
    "numkong": "a faster scan of an index",
    "onnxruntime": "models as ONNX",
    "midreel.ops._neighbours": "wide features merge in half the time; made when midreel is installed with GCC or Clang",
}

State = Literal["ok", "warning", "failed"]
_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found, and what to do, if anything is to be done."""

    name: str
    state: State
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        return f"{_MARKS[self.state]}  {self.name}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether midreel works; warnings are about comfort."""
        return all(finding.state != "failed" for finding in self.findings)

    @property
    def text(self) -> str:
        counts = {state: sum(finding.state == state for finding in self.findings) for state in _MARKS}
        summary = f"{counts['failed']} failed, {counts['warning']} to be aware of, {counts['ok']} in order"
        return "\n".join([*(finding.line for finding in self.findings), summary])

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "findings": [finding.to_dict() for finding in self.findings]}


def examine(library: Path | None = None) -> Diagnosis:
    """All checks. Without a library, the current folder is where files go."""
    place = Path.cwd() if library is None else library
    findings = [_tried(name, check) for name, check in MACHINE.items()]
    if library is not None and not library.is_dir():
        findings.append(
            Finding(name="library", state="failed", text=f"{library} is no folder", remedy="check the path")
        )
        return Diagnosis(findings=tuple(findings))
    findings += [_tried(name, partial(check, place)) for name, check in PLACE.items()]
    if library is not None:
        findings.append(_tried("library", partial(catalogue, library)))
        if findings[-1].state != "failed":
            findings += [_tried(name, partial(check, library)) for name, check in LIBRARY.items()]
    return Diagnosis(findings=tuple(findings))


def _tried(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # whatever it is, the other checks go on
        return _broken(name, error)


def _broken(name: str, error: Exception) -> Finding:
    if isinstance(error, MidreelError):  # which says what to do
        return Finding(name=name, state="failed", text=str(error))
    lines = str(error).strip().splitlines() or [""]
    remedy = _remedy(error) if isinstance(error, OSError) else "install midreel again, in a new environment"
    return Finding(name=name, state="failed", text=f"{type(error).__name__}: {lines[0]}", remedy=remedy)


def _remedy(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free disk space" if full else "check the permissions and the disk, or choose another folder"


# ---------------------------------------------------------------- the machine


def python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        remedy = f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later"
        return Finding(name="Python", state="failed", text=text, remedy=remedy)
    return Finding(name="Python", state="ok", text=text)


def torch() -> Finding:
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    device = f"{torch.cuda.device_count()} GPU" if torch.cuda.is_available() else "no GPU"
    text = f"{torch.__version__}, {device}, {torch.get_num_threads()} threads"
    if version < OLDEST_TORCH:
        remedy = f"install torch {'.'.join(map(str, OLDEST_TORCH))} or later"
        return Finding(name="torch", state="failed", text=text, remedy=remedy)
    if not bool((torch.ones(2, 2) @ torch.ones(2, 2) == 2).all()):
        return Finding(name="torch", state="failed", text=f"{text}, cannot multiply", remedy="install it anew")
    return Finding(name="torch", state="ok", text=text)


def torchvision() -> Finding:
    """midreel does not use it, but transformers imports it where it is, and falls where it does not fit torch."""
    if importlib.util.find_spec("torchvision") is None:
        return Finding(name="torchvision", state="ok", text="not installed, and not needed")
    # In a process of its own: a failed import leaves half of it behind.
    tried = subprocess.run(
        [sys.executable, "-c", "import torchvision; print(torchvision.__version__)"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
        remedy = "remove it (pip uninstall torchvision), or install the one that belongs to your torch"
        return Finding(name="torchvision", state="failed", text=reason, remedy=remedy)
    return Finding(name="torchvision", state="ok", text=tried.stdout.strip())


def decoder() -> Finding:
    """Encodes a few frames, and decodes them again."""
    import numpy as np

    from midreel.media import decode

    shades = [20 * number for number in range(1, 9)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "try.mp4"
        decode.write_video(path, [np.full((48, 64, 3), shade, np.uint8) for shade in shades], rate=8)
        found = [round(float(image.mean())) for _, image in decode.read_frames(path, 8)]
    text = f"PyAV {importlib.metadata.version('av')}, H.264 encoded and decoded"
    if len(found) != len(shades) or any(abs(a - b) > 3 for a, b in zip(found, shades, strict=False)):
        text = f"PyAV {importlib.metadata.version('av')} made {found} of grey frames of {shades}"
        return Finding(
            name="decoder", state="failed", text=text, remedy="install PyAV anew (pip install --force-reinstall av)"
        )
    return Finding(name="decoder", state="ok", text=text)


def model_files() -> Finding:
    """Loads the backbone that comes with midreel, and encodes a sentence and an image."""
    import numpy as np

    from midreel.features import load_backbone

    backbone = load_backbone("tiny-clip")
    (sentence,) = backbone.encode_texts(["a red ball"])
    image = backbone.encode_images([np.zeros((64, 64, 3), np.uint8)])
    if not (np.isfinite(sentence.sentence).all() and np.isfinite(image).all()):
        return Finding(name="models", state="failed", text="tiny-clip encodes to NaN", remedy="install midreel anew")
    return Finding(name="models", state="ok", text=f"tiny-clip encodes; {_cached()}")


def _cached() -> str:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        models = sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        models = []
    shown = ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "")
    return f"in the hub's cache: {shown or 'none'}"


def network() -> Finding:
    """Whether models can be fetched; nothing else in midreel needs a network."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Finding(name="network", state="ok", text="HF_HUB_OFFLINE is set: models come from this disk alone")
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=PATIENCE):
            pass
    except urllib.error.HTTPError:
        pass  # an answer, if a rude one
    except (OSError, ValueError) as error:
        return Finding(
            name="network",
            state="warning",
            text=f"{constants.ENDPOINT} does not answer ({getattr(error, 'reason', error)})",
            remedy="only models that are on this disk can be used: tiny-clip, the hub's cache, local-dir:FOLDER",
        )
    return Finding(name="network", state="ok", text=f"{constants.ENDPOINT} answers")


def optional_libraries() -> Finding:
    missing = {name: what for name, what in OPTIONAL.items() if importlib.util.find_spec(name) is None}
    there = ", ".join(name for name in OPTIONAL if name not in missing)
    if not missing:
        return Finding(name="optional libraries", state="ok", text=there)
    without = ", ".join(f"{name} ({what})" for name, what in missing.items())
    return Finding(name="optional libraries", state="ok", text=f"{there or 'none'}; not installed: {without}")


# ---------------------------------------------------------------- a folder


def free_space(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB free where {place} lies"
    if free < SCARCE:
        remedy = "make room: features take about 8 MB an hour of video, the index far less"
        return Finding(name="disk", state="failed" if free < TOO_LITTLE else "warning", text=text, remedy=remedy)
    return Finding(name="disk", state="ok", text=text)


def permission(place: Path) -> Finding:
    """Write a file, because permissions are not all: a disk may be full, or mounted read-only."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".midreel-doctor-") as file:
            file.write(b"written")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(
            name="permission",
            state="warning",
            text=f"{place} cannot be written ({error.strerror}), which indexing needs",
            remedy=_remedy(error),
        )
    return Finding(name="permission", state="ok", text=f"{place} can be written")


# ---------------------------------------------------------------- a library


def catalogue(library: Path) -> Finding:
    """What it holds, and what it could not."""
    from midreel.library.summary import summarise

    found = summarise(library)
    text = f"{found.num_videos:,} videos, {found.seconds / 3600:,.2f} hours, {found.backbone}, {found.model}"
    if not (found.quarantine or found.damaged):
        return Finding(name="library", state="ok", text=text)
    counts = {"could not be read": len(found.quarantine), "could be read in part": len(found.damaged)}
    text = "; ".join([text, *(f"{count:,} files {what}" for what, count in counts.items() if count)])
    return Finding(name="library", state="warning", text=text, remedy=f"midreel info {library} says why")


def library_models(library: Path) -> Finding:
    """Search for a sentence: the backbone may have moved, or be another by now, and a disk may be full."""
    from midreel.library.searcher import Searcher

    with Searcher.open(library) as searcher:
        searcher.search("a red ball", top=1)
        names = f"{searcher.layout.settings().backbone} and {searcher.generation.card.model}"
    return Finding(name="library's models", state="ok", text=f"{names} encode a sentence; searching works")


def index(library: Path) -> Finding:
    """Reads all of it."""
    with closing(_index_of(library)) as found:
        problems, number = found.verify(), len(found)
    if problems:
        remedy = f"the rest is searched. Repair it: midreel index --library {library} --retry"
        return Finding(name="index", state="failed", text=_first_of(problems), remedy=remedy)
    return Finding(name="index", state="ok", text=f"{number:,} videos read, none damaged")


def features(library: Path) -> Finding:
    """Reads all of them."""
    from midreel.errors import BadFeatures, BadStore
    from midreel.features.stores.store import FeatureStore
    from midreel.library.layout import Layout

    problems = []
    with FeatureStore.open(Layout(library).features) as store:
        ids = store.video_ids()
        for video_id in ids:
            try:
                store.video(video_id)
            except (BadStore, BadFeatures) as error:
                problems.append(str(error))
    if problems:
        remedy = f"searching works. Decode the damaged ones again: midreel index --library {library} --retry"
        return Finding(name="features", state="warning", text=_first_of(problems), remedy=remedy)
    return Finding(name="features", state="ok", text=f"{len(ids):,} videos read, none damaged")


def agreement(library: Path) -> Finding:
    """Compares what catalogue, index and features list, in all directions.

    A video that the catalogue does not list is either one that was removed, whose features are kept, or one whose row
    was lost: then its tokens are there as well.
    """
    from midreel.features.stores.store import FeatureStore
    from midreel.library.catalogue import Catalogue
    from midreel.library.layout import Layout

    with closing(Catalogue(library)) as known:
        listed = known.video_ids()
    with closing(_index_of(library)) as found:
        indexed = set(found.video_ids()) | set(found.damaged)
    with FeatureStore.open(Layout(library).features) as store:
        kept = set(store.video_ids())
    counts = {
        "in the catalogue but not in the index, so no search finds them": listed - indexed,
        "in the index but not in the catalogue, which may have lost them": indexed - listed,
        "in the catalogue but without features, so the index cannot be rebuilt": listed - kept,
    }
    problems = [f"{len(ids):,} videos are {where}, such as {min(ids)}" for where, ids in counts.items() if ids]
    idle = len(kept - listed - indexed)
    removed = f"; features of {idle:,} more are kept, of videos that were removed" if idle else ""
    if problems:
        remedy = f"name all folders of the library again: midreel index FOLDER… --library {library}"
        return Finding(name="agreement", state="failed", text="; ".join(problems) + removed, remedy=remedy)
    text = f"catalogue, index and features list the same {len(listed):,} videos{removed}"
    if idle:
        text += " (or that the catalogue and the index have both lost; to find them, index their folders again)"
    return Finding(name="agreement", state="ok", text=text)


def _index_of(library: Path) -> "EmbeddedIndex":
    from midreel.library.layout import Layout
    from midreel.library.tokens import open_index

    return open_index(Layout(library).serving(), read_only=True)


def _first_of(problems: Sequence[str]) -> str:
    return problems[0] + (f", and {len(problems) - 1:,} more problems" if len(problems) > 1 else "")


LIBRARY: Mapping[str, Callable[[Path], Finding]] = {
    "library's models": library_models,
    "index": index,
    "features": features,
    "agreement": agreement,
}
MACHINE: Mapping[str, Callable[[], Finding]] = {
    "Python": python,
    "torch": torch,
    "torchvision": torchvision,
    "decoder": decoder,
    "models": model_files,
    "network": network,
    "optional libraries": optional_libraries,
}
PLACE: Mapping[str, Callable[[Path], Finding]] = {"disk": free_space, "permission": permission}

"""The checks of `midreel doctor`: what midreel needs, whether it works, and how to fix it.

Each check imports the packages it tries, so that a broken package fails one check and not the program.
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from midreel.errors import MidreelError
from midreel.library.place import Place, is_url

if TYPE_CHECKING:
    from midreel.library.storage import LibraryIndex

OLDEST_PYTHON, OLDEST_TORCH = (3, 11), (2, 6)
LOW_SPACE, TOO_LITTLE_SPACE = 2 * 10**9, 10**8  # bytes
TIMEOUT = 3.0  # seconds for the hub to answer
# Optional packages, and what each is for.
OPTIONAL = {
    "fastapi": "midreel serve",
    "uvicorn": "midreel serve",
    "prometheus_client": "midreel serve",
    "tensorboard": "training curves in a browser",
    "faiss": "compressed libraries of 50,000 videos or more",
    "numkong": "faster search",
    "opentimelineio": "export to .otio",
    "mcp": "midreel mcp",
    "psycopg": "libraries in PostgreSQL",
    "s3fs": "video files in s3://",
    "midreel.ops._neighbours": "twice as fast merging of wide features; install midreel with GCC or Clang",
}

State = Literal["ok", "warning", "failed"]
_MARKS = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of a check, and the remedy if there is a problem."""

    name: str
    state: State
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding as a line of text, and a second line with the remedy if there is one."""
        text = f"{_MARKS[self.state]}  {self.name}: {self.text}"
        return f"{text}\n         fix: {self.remedy}" if self.remedy else text

    def to_dict(self) -> dict[str, str]:
        """Return the fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The findings of all checks."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed. Warnings do not count."""
        return all(finding.state != "failed" for finding in self.findings)

    @property
    def text(self) -> str:
        """All findings, and a summary as the last line."""
        counts = Counter(finding.state for finding in self.findings)
        plural = "s" * (counts["warning"] != 1)
        summary = f"{counts['failed']} failed, {counts['warning']} warning{plural}, {counts['ok']} ok"
        return "\n".join([*(finding.line for finding in self.findings), summary])

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values."""
        return {"ok": self.ok, "findings": [finding.to_dict() for finding in self.findings]}


def examine(library: Place | None = None) -> Diagnosis:
    """Run all checks.

    Args:
        library: A library to check as well. Default: check only the machine and the current folder.
    """
    findings = [_run(name, check) for name, check in MACHINE.items()]
    if not is_url(library):
        place = Path.cwd() if library is None else Path(library)
        if not place.is_dir():
            text = f"{place} {'is not a folder' if place.exists() else 'does not exist'}"
            findings.append(Finding(name="library", state="failed", text=text, remedy="check the path"))
            return Diagnosis(findings=tuple(findings))
        findings += [_run(name, partial(check, place)) for name, check in PLACE.items()]
    if library is not None:
        findings.append(_run("library", partial(catalogue, library)))
        if findings[-1].state != "failed":
            findings += [_run(name, partial(check, library)) for name, check in LIBRARY.items()]
    return Diagnosis(findings=tuple(findings))


def _run(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # any error fails this check only
        return _failure(name, error)


def _failure(name: str, error: Exception) -> Finding:
    if isinstance(error, MidreelError):  # its message contains the remedy
        return Finding(name=name, state="failed", text=str(error))
    lines = str(error).strip().splitlines() or [""]
    remedy = _remedy(error) if isinstance(error, OSError) else "install midreel in a new environment"
    return Finding(name=name, state="failed", text=f"{type(error).__name__}: {lines[0]}", remedy=remedy)


def _remedy(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free disk space" if full else "check the permissions and the disk, or choose another folder"


# ---------------------------------------------------------------- the machine


def python() -> Finding:
    """Check the version of Python."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        remedy = f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later"
        return Finding(name="Python", state="failed", text=text, remedy=remedy)
    return Finding(name="Python", state="ok", text=text)


def torch() -> Finding:
    """Check the version of torch if it is installed, and multiply two matrices. Only training needs it."""
    if importlib.util.find_spec("torch") is None:
        return Finding(name="torch", state="ok", text="not installed (only training needs it)")
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    device = f"GPUs: {torch.cuda.device_count()}" if torch.cuda.is_available() else "no GPU"
    text = f"{torch.__version__}, {device}, threads: {torch.get_num_threads()}"
    if version < OLDEST_TORCH:
        remedy = f"install torch {'.'.join(map(str, OLDEST_TORCH))} or later"
        return Finding(name="torch", state="failed", text=text, remedy=remedy)
    if not bool((torch.ones(2, 2) @ torch.ones(2, 2) == 2).all()):
        return Finding(name="torch", state="failed", text=f"{text}, wrong matrix product", remedy="reinstall torch")
    return Finding(name="torch", state="ok", text=text)


def onnxruntime() -> Finding:
    """Check that onnxruntime computes, with a small graph."""
    import numpy as np

    from midreel.io.onnx_graph import Graph

    graph = Graph()
    graph.output("sum", graph.add("Add", graph.input("x", "float32", [2]), "x"), [2])
    (found,) = graph.session(threads=1).run(None, {"x": np.array([1, 2], np.float32)})
    version = importlib.metadata.version("onnxruntime")
    if found.tolist() != [2, 4]:
        text, remedy = f"{version}, wrong sum {found.tolist()}", "pip install --force-reinstall onnxruntime"
        return Finding(name="onnxruntime", state="failed", text=text, remedy=remedy)
    return Finding(name="onnxruntime", state="ok", text=version)


def torchvision() -> Finding:
    """Check that torchvision fits torch if it is installed.

    midreel does not use it, but transformers imports it if it finds it, and fails if it does not fit torch.
    """
    if importlib.util.find_spec("torchvision") is None:
        return Finding(name="torchvision", state="ok", text="not installed (not needed)")
    # Import it in another process: a failed import would leave half of its modules behind.
    tried = subprocess.run(
        [sys.executable, "-c", "import torchvision; print(torchvision.__version__)"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["import failed"])[-1]
        remedy = "pip uninstall torchvision, or install the version that fits your torch"
        return Finding(name="torchvision", state="failed", text=reason, remedy=remedy)
    return Finding(name="torchvision", state="ok", text=tried.stdout.strip())


def decoder() -> Finding:
    """Encode a few grey frames, and decode them."""
    import numpy as np

    from midreel.media import decode

    shades = [20 * number for number in range(1, 9)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "try.mp4"
        decode.write_video(path, [np.full((48, 64, 3), shade, np.uint8) for shade in shades], rate=8)
        found = [round(float(image.mean())) for _, image in decode.read_frames(path, 8)]
    text = f"PyAV {importlib.metadata.version('av')}, H.264 works"
    if len(found) != len(shades) or any(abs(a - b) > 3 for a, b in zip(found, shades, strict=False)):
        text = f"PyAV {importlib.metadata.version('av')} decoded grey values {found}, expected {shades}"
        return Finding(name="decoder", state="failed", text=text, remedy="pip install --force-reinstall av")
    return Finding(name="decoder", state="ok", text=text)


def model_files() -> Finding:
    """Encode a sentence and an image with the backbone that is part of midreel."""
    import numpy as np

    from midreel.features import load_backbone

    backbone = load_backbone("tiny-clip")
    (sentence,) = backbone.encode_texts(["a red ball"])
    image = backbone.encode_images([np.zeros((64, 64, 3), np.uint8)])
    if not (np.isfinite(sentence.sentence).all() and np.isfinite(image).all()):
        return Finding(name="models", state="failed", text="tiny-clip computes NaN", remedy="reinstall midreel")
    return Finding(name="models", state="ok", text=f"tiny-clip works; cached hub models: {_cached()}")


def _cached() -> str:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        models = sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except CacheNotFound:
        models = []
    return ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "") or "none"


def network() -> Finding:
    """Check that the hub answers. Only the download of models needs the network."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Finding(name="network", state="ok", text="not used, because HF_HUB_OFFLINE is set")
    try:
        with urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=TIMEOUT):
            pass
    except urllib.error.HTTPError:
        pass  # an error status is an answer too
    except (OSError, ValueError) as error:
        return Finding(
            name="network",
            state="warning",
            text=f"{constants.ENDPOINT} does not answer ({getattr(error, 'reason', error)})",
            remedy="check the network, or use a model on this disk: tiny-clip, a cached one or local-dir:FOLDER",
        )
    return Finding(name="network", state="ok", text=f"{constants.ENDPOINT} answers")


def optional_libraries() -> Finding:
    """List the optional packages that are installed, and the use of those that are missing."""
    missing = {name: use for name, use in OPTIONAL.items() if importlib.util.find_spec(name) is None}
    text = ", ".join(name for name in OPTIONAL if name not in missing) or "none"
    if missing:
        text += "; not installed: " + ", ".join(f"{name} ({use})" for name, use in missing.items())
    return Finding(name="optional libraries", state="ok", text=text)


# ---------------------------------------------------------------- a folder


def free_space(place: Path) -> Finding:
    """Check the free space on the disk of a folder."""
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB free for {place}"
    if free < LOW_SPACE:
        remedy = "free disk space: an hour of video needs about 8 MB"
        return Finding(name="disk", state="failed" if free < TOO_LITTLE_SPACE else "warning", text=text, remedy=remedy)
    return Finding(name="disk", state="ok", text=text)


def permission(place: Path) -> Finding:
    """Write a file to a folder, because a full or read-only disk passes a check of permissions."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".midreel-doctor-") as file:
            file.write(b"written")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(
            name="permission",
            state="warning",
            text=f"{place} cannot be written ({error.strerror}), so indexing fails",
            remedy=_remedy(error),
        )
    return Finding(name="permission", state="ok", text=f"{place} is writable")


# ---------------------------------------------------------------- a library


def catalogue(library: Place) -> Finding:
    """Count the videos of a library, and its unreadable files."""
    from midreel.library.summary import summarise

    found = summarise(library)
    text = f"{found.num_videos:,} videos, {found.seconds / 3600:,.2f} hours, {found.backbone}, {found.model}"
    if not (found.quarantine or found.damaged):
        return Finding(name="library", state="ok", text=text)
    counts = {"unreadable": len(found.quarantine), "partly readable": len(found.damaged)}
    text = "; ".join([text, *(f"{kind} files: {count:,}" for kind, count in counts.items() if count)])
    return Finding(name="library", state="warning", text=text, remedy=f"see the reasons: midreel info {library}")


def library_models(library: Place) -> Finding:
    """Search for a sentence, which fails if the backbone or the model is missing or has changed."""
    from midreel.library.searcher import Searcher

    with Searcher.open(library) as searcher:
        searcher.search("a red ball", top=1)
        names = f"{searcher.storage.settings().backbone} and {searcher.generation.card.model}"
    return Finding(name="library's models", state="ok", text=f"{names}; search works")


def index(library: Place) -> Finding:
    """Read the whole index, and verify its checksums."""
    with _index_of(library) as found:
        problems, number = found.verify(), len(found)
    if problems:
        remedy = f"midreel index --library {library} --retry (until then, searches skip the damaged videos)"
        return Finding(name="index", state="failed", text=_first_of(problems), remedy=remedy)
    return Finding(name="index", state="ok", text=f"{number:,} videos, none damaged")


def features(library: Place) -> Finding:
    """Read all features, and verify their checksums."""
    from midreel.errors import BadFeatures, BadStore
    from midreel.library.storage import at

    problems = []
    with closing(at(library)) as storage, storage.open_features() as store:
        ids = store.video_ids()
        for video_id in ids:
            try:
                store.video(video_id)
            except (BadStore, BadFeatures) as error:
                problems.append(str(error))
    if problems:
        remedy = f"midreel index --library {library} --retry (search works without them)"
        return Finding(name="features", state="warning", text=_first_of(problems), remedy=remedy)
    return Finding(name="features", state="ok", text=f"{len(ids):,} videos, none damaged")


def agreement(library: Place) -> Finding:
    """Compare the videos in the catalogue, the index and the features.

    A video with features that is missing in the catalogue was either removed, which keeps its features, or its row
    was lost. If its row was lost, it is usually still in the index.
    """
    from midreel.library.storage import at

    with closing(at(library)) as storage:
        with closing(storage.open_catalogue()) as known:
            listed = known.video_ids()
        with _index_of(library) as found:
            indexed = set(found.video_ids()) | set(found.damaged)
        with storage.open_features() as store:
            kept = set(store.video_ids())
    differences = {
        "in the catalogue but not in the index, so no search finds them": listed - indexed,
        "in the index but not in the catalogue, which may have lost them": indexed - listed,
        "in the catalogue but without features, so the index cannot be rebuilt": listed - kept,
    }
    problems = [f"{len(ids):,} videos are {where}, such as {min(ids)}" for where, ids in differences.items() if ids]
    num_unlisted = len(kept - listed - indexed)
    unlisted = f"; the features of {num_unlisted:,} removed videos are kept" if num_unlisted else ""
    if problems:
        remedy = f"index all folders of the library again: midreel index FOLDER… --library {library}"
        return Finding(name="agreement", state="failed", text="; ".join(problems) + unlisted, remedy=remedy)
    text = f"catalogue, index and features list the same {len(listed):,} videos{unlisted}"
    if num_unlisted:
        text += " (if you did not remove them, index their folders again)"
    return Finding(name="agreement", state="ok", text=text)


@contextmanager
def _index_of(library: Place) -> "Iterator[LibraryIndex]":
    """Open the index of a library."""
    from midreel.library.storage import at

    with closing(at(library)) as storage, closing(storage.open_index(storage.serving(), read_only=True)) as index:
        yield index


def _first_of(problems: Sequence[str]) -> str:
    return problems[0] + (f" (and {len(problems) - 1:,} more problems)" if len(problems) > 1 else "")


LIBRARY: Mapping[str, Callable[[Place], Finding]] = {
    "library's models": library_models,
    "index": index,
    "features": features,
    "agreement": agreement,
}
MACHINE: Mapping[str, Callable[[], Finding]] = {
    "Python": python,
    "onnxruntime": onnxruntime,
    "torch": torch,
    "torchvision": torchvision,
    "decoder": decoder,
    "models": model_files,
    "network": network,
    "optional libraries": optional_libraries,
}
PLACE: Mapping[str, Callable[[Path], Finding]] = {"disk": free_space, "permission": permission}

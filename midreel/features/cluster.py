"""Decode and encode videos on the nodes of a Ray cluster.

    this process                                 the nodes
    scan, hash, skip what is stored   ──path──>  one actor per GPU, or per two CPUs: decode and encode,
    store each video when it arrives  <─features─  with the same code as on one machine

Only paths and features cross the network: 2 frames a second of width 768 are 11 MB for an hour of video, while its
frames would be a gigabyte. All nodes must see the videos under the same paths, and have midreel installed.

This process is the only writer. A video counts when its features are stored here. So a node may die at any time: its
videos are given to other nodes, nothing is lost, and nothing is stored twice. A video that ends its actor several times
is reported as unreadable, and the others go on.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Lock
from typing import Any

from midreel.errors import BadPackage, BadSetting, MissingVideo, Unreachable, UnreadableVideo
from midreel.features.backbones.base import Backbone, Engine, Fingerprint, load_backbone
from midreel.features.extract import MOST_IN_PROGRESS, Encoded, Outcome, VideoItem, stored_videos
from midreel.media.decode import read_frames
from midreel.types import VideoFeatures

CPUS_PER_ACTOR = 2  # one decodes, one encodes
AT_ONCE = 2  # videos per actor: the next one waits at the actor while it works
MAX_ATTEMPTS = 3  # of a video whose actor ends while its node lives
START_SECONDS = 300.0  # for an actor to load its backbone


@dataclass(kw_only=True)
class NodeWork:
    """What one node has done.

    Attributes:
        videos: The number of videos.
        frames: The number of frames that were encoded.
        seconds: The time that its actors worked, in sum.
        actors: The number of its actors.
        lost: Whether the node was lost during the run.
    """

    videos: int = 0
    frames: int = 0
    seconds: float = 0.0
    actors: int = 0
    lost: bool = False

    def text(self, name: str) -> str:
        """Return a line for people."""
        rate = self.frames * self.actors / self.seconds if self.seconds else 0.0
        lost = ", lost during the run" if self.lost else ""
        return f"node {name}: {self.videos:,} videos, {rate:,.1f} frames/s on {self.actors} actors{lost}"


@dataclass(eq=False)
class _Worker:
    """A place on a node, and the actor in it. The actor is replaced when it ends."""

    node_id: str
    node: str
    resources: dict[str, float]
    actor: Any = None
    is_lost: bool = False
    lock: Any = field(default_factory=Lock)


class Cluster:
    """Actors on all nodes of a Ray cluster. `encode` is an argument of `extract_videos` and of the indexer.

    Use `connected`. All methods may be called from several threads.

    Args:
        spec: The name of the backbone, as `load_backbone` takes it. Every node loads it.
        fingerprint: The fingerprint that the backbone must have on every node.
        rate: The number of vectors a second.
        device: The device of torch on the nodes.
        engine: What computes the backbone.

    Attributes:
        nodes: The work of each node, by name.

    Raises:
        Unreachable: No node can start an actor.
    """

    def __init__(self, spec: str, fingerprint: Fingerprint, rate: float, device: str, engine: Engine) -> None:
        self._arguments = (spec, fingerprint, rate, device, engine)
        self.nodes: dict[str, NodeWork] = {}
        self._free: Queue[_Worker] = Queue()
        self._lock = Lock()
        self._workers = self._start(list(_places(device)))
        for _ in range(AT_ONCE):
            for worker in self._workers:
                self._free.put(worker)

    @property
    def num_threads(self) -> int:
        """The number of threads that should call `encode`: enough to keep all actors busy."""
        return min(AT_ONCE * len(self._workers), MOST_IN_PROGRESS)

    def encode(self, item: VideoItem) -> Encoded:
        """Decode and encode the file of a video on one of the nodes, and wait for it.

        Raises:
            UnreadableVideo: The file cannot be decoded, or has ended several actors.
            MissingVideo: The file cannot be read on the node.
            BadSetting: The video has no file.
            Unreachable: All nodes are lost.
        """
        import ray

        if item.path is None:
            raise BadSetting(f"{item.id} has no file, expected one: a cluster reads files. Leave out --cluster.")
        for _ in range(MAX_ATTEMPTS):
            while True:
                worker = self._take()
                actor = worker.actor
                try:
                    found: _Result = ray.get(actor.encode.remote(item.id, str(item.path)))
                except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError, ray.exceptions.RaySystemError):
                    if self._revive(worker, actor):
                        self._free.put(worker)
                        break  # the node lives, so the video may be the cause
                    continue  # the node is lost, which is not the fault of the video
                self._free.put(worker)
                return self._received(worker, found)
        raise UnreadableVideo(
            f"{item.path} ended the process that read it {MAX_ATTEMPTS} times. Check that it plays, and retry: --retry"
        )

    def _received(self, worker: _Worker, found: "_Result") -> Encoded:
        with self._lock:
            work = self.nodes[worker.node]
            work.videos += 1
            work.seconds += found.seconds
            work.frames += 0 if found.features is None else len(found.features.frames)
        if found.features is None:
            raise (UnreadableVideo if found.outcome.lasting else MissingVideo)(found.outcome.reason)
        return Encoded(features=found.features, damage=found.outcome.damage)

    def _take(self) -> _Worker:
        while True:
            try:
                worker = self._free.get(timeout=0.2)
            except Empty:
                worker = None
            if worker is not None and not worker.is_lost:
                return worker
            if all(each.is_lost for each in self._workers):
                raise Unreachable(
                    "all nodes of the cluster are lost. Stored videos are kept: start the cluster and run the command "
                    "again."
                )

    # ------------------------------------------------------------ actors

    def _start(self, workers: list[_Worker]) -> list[_Worker]:
        """Start an actor for each worker, and return the workers whose actors have loaded the backbone."""
        import ray

        ready = {}
        for worker in workers:
            worker.actor = self._new_actor(worker)
            ready[worker.actor.ready.remote()] = worker
        done, late = ray.wait(list(ready), num_returns=len(ready), timeout=START_SECONDS)
        for reference in late:
            ray.kill(ready[reference].actor)
        started, reasons = [], [f"it was not ready after {START_SECONDS:g} s" for _ in late]
        for reference in done:
            try:
                ray.get(reference)
            except ray.exceptions.RayError as error:
                reasons.append(str(error).strip().splitlines()[-1])
                continue
            started.append(ready[reference])
        for worker in started:
            self.nodes.setdefault(worker.node, NodeWork()).actors += 1
        if not started:
            raise Unreachable(
                f"none of {len(workers)} actors could start ({'; '.join(reasons[:1])}). Check that the nodes have "
                f"free CPUs, midreel and the backbone."
            )
        return started

    def _new_actor(self, worker: _Worker) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node_id=worker.node_id, soft=False)
        return ray.remote(Worker).options(scheduling_strategy=here, **worker.resources).remote(*self._arguments)

    def _revive(self, worker: _Worker, ended: Any) -> bool:
        """Start an actor in the place of one that has ended. Return False if the node is lost."""
        import ray

        with worker.lock:
            if worker.actor is not ended:  # another thread has done it
                return not worker.is_lost
            with suppress(ray.exceptions.RayError):
                ray.kill(ended)  # it may live: a task that raises does not end its actor
            try:
                worker.actor = self._new_actor(worker)
                ray.get(worker.actor.ready.remote(), timeout=START_SECONDS)
            except (ray.exceptions.RayError, TimeoutError):
                worker.is_lost = True
                with self._lock:
                    self.nodes[worker.node].lost = True
                return False
            return True

    def stop(self) -> None:
        """End all actors."""
        import ray

        for worker in self._workers:
            if not worker.is_lost:
                ray.kill(worker.actor)


@contextmanager
def connected(
    address: str, spec: str, fingerprint: Fingerprint, *, rate: float, device: str = "cpu", engine: Engine = "auto"
) -> Iterator[Cluster]:
    """Connect to a Ray cluster, and start actors on all its nodes, during a block.

    Args:
        address: "auto" for the cluster that this machine belongs to, or ray://HOST:10001.
        spec: The name of the backbone. Every node loads it.
        fingerprint: The fingerprint of the backbone.
        rate: The number of vectors a second.
        device: The device of torch on the nodes: cpu, or cuda for one actor on each GPU.
        engine: What computes the backbone.

    Raises:
        BadPackage: Ray is not installed.
        Unreachable: There is no cluster at the address, or no node can start an actor.
    """
    try:
        import ray
    except ImportError as error:
        raise BadPackage(f"ray is not installed ({error}). Install it: pip install 'midreel[ray]'") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise Unreachable(f"no Ray cluster at {address} ({reason}). Start one: ray start --head") from error
    try:
        cluster = Cluster(spec, fingerprint, rate, device, engine)
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        ray.shutdown()


def _places(device: str) -> Iterator[_Worker]:
    """Yield a worker for each GPU of the cluster or, without GPUs, for every two CPUs of each node."""
    import ray

    for node in ray.nodes():
        if not node["Alive"]:
            continue
        found = node["Resources"]
        if device == "cpu":
            count, resources = max(1, int(found.get("CPU", 0)) // CPUS_PER_ACTOR), {"num_cpus": 1.0}
            count = count if found.get("CPU", 0) else 0
        else:
            count, resources = int(found.get("GPU", 0)), {"num_cpus": 1.0, "num_gpus": 1.0}
        name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        for _ in range(count):
            yield _Worker(node_id=node["NodeID"], node=name, resources=resources)


# ---------------------------------------------------------------- on a node


@dataclass(frozen=True, kw_only=True)
class _Result:
    """What a node returns for a video: its outcome, its features unless it failed, and the time it took."""

    outcome: Outcome
    features: VideoFeatures | None
    seconds: float


class _Kept:
    """A store in memory, for the features of the videos that an actor has not returned yet."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self.fingerprint, self.videos = fingerprint, dict[str, VideoFeatures]()

    def expect(self, fingerprint: Fingerprint) -> None:
        """Do nothing: `Worker` has compared the fingerprints."""

    def video_ids(self) -> Iterable[str]:
        return ()

    def add_video(self, video_id: str, features: VideoFeatures, origin: int = 0) -> None:
        self.videos[video_id] = features

    def close(self) -> None:
        """Do nothing."""


class Worker:
    """An actor: it decodes and encodes one video at a time, with the code that a single machine uses.

    Args:
        spec: The name of the backbone.
        fingerprint: The fingerprint that the backbone must have.
        rate: The number of vectors a second.
        device: The device of torch.
        engine: What computes the backbone.

    Raises:
        BadSetting: The backbone of this node differs.
    """

    def __init__(self, spec: str, fingerprint: Fingerprint, rate: float, device: str, engine: Engine) -> None:
        self._backbone: Backbone = load_backbone(spec, device, engine, like=fingerprint.backbone)
        self._rate = rate
        differences = fingerprint.difference(self._backbone.fingerprint)
        if differences:
            raise BadSetting(f"{spec} differs on this node: {'; '.join(differences)}. Copy the same backbone to it.")

    def ready(self) -> bool:
        """Return True. The backbone is loaded then."""
        return True

    def encode(self, video_id: str, path: str) -> _Result:
        """Decode and encode the video in a file. An unreadable file is a result, not an error."""
        start = time.perf_counter()
        reading = read_frames(Path(path), self._rate * self._backbone.window)
        item = VideoItem(
            id=video_id,
            frames=reading,
            duration=lambda: reading.duration,
            path=Path(path),
            origin=0,
            damage=lambda: reading.damage,
        )
        kept = _Kept(self._backbone.fingerprint)
        with closing(stored_videos([item], self._backbone, kept, rate=self._rate)) as outcomes:  # type: ignore[arg-type]
            outcome = next(outcomes)
        seconds = time.perf_counter() - start
        return _Result(outcome=outcome, features=kept.videos.get(video_id), seconds=seconds)

"""The option --cluster: actors on the nodes of a Ray cluster, and the throughput of each node on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from midreel.features.backbones.base import Backbone, Engine

if TYPE_CHECKING:
    from midreel.features.cluster import Cluster
    from midreel.library.writer import Writer


@contextmanager
def cluster_actors(
    address: str | None, spec: str, backbone: Backbone, *, rate: float, device: str, engine: Engine = "auto"
) -> Iterator["Cluster | None"]:
    """Yield actors on a cluster, or None without an address. Print the work of each node at the end.

    Args:
        address: The value of --cluster.
        spec: The name of the backbone.
        backbone: The backbone, loaded on this machine.
        rate: Frames per second.
        device: The device of the nodes.
        engine: What computes the backbone.
    """
    if address is None:
        yield None
        return
    from midreel.features.cluster import connected

    with connected(address, spec, backbone.fingerprint, rate=rate, device=device, engine=engine) as cluster:
        yield cluster
    for name, work in cluster.nodes.items():
        print(work.text(name), file=sys.stderr)


@contextmanager
def writer_actors(address: str | None, writer: "Writer", *, device: str, engine: Engine) -> Iterator["Cluster | None"]:
    """Yield actors with the backbone of a library, or None without an address.

    Args:
        address: The value of --cluster.
        writer: The library.
        device: The device of the nodes.
        engine: What computes the backbone.
    """
    if address is None:
        yield None
        return
    spec, rate = writer.settings.backbone, writer.settings.rate
    with cluster_actors(address, spec, writer.backbone, rate=rate, device=device, engine=engine) as cluster:
        yield cluster

"""Reporters: where the losses and metrics of a run are shown, besides metrics.jsonl.

A reporter gets each epoch once it is finished. `metrics.jsonl` is the record of a run; reporters are views of it.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from midreel.errors import BadPackage, UnknownName

PROJECT = "midreel"


@runtime_checkable
class Reporter(Protocol):
    """A receiver of the records of finished epochs."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Show the losses and metrics of an epoch."""

    def close(self) -> None:
        """Write what is still in memory."""


class Reporting:
    """A reporter that is closed at the end of a `with` block."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def __enter__(self) -> Reporter:
        return self._reporter

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reporter.close()


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an epoch by the names that all reporters use.

    >>> figures_of({"epoch": 3, "lr": 0.1, "loss": {"nce": 1.5}, "metrics": {"R@1": 9.0}})
    {'loss/nce': 1.5, 'metrics/R@1': 9.0, 'lr': 0.1}
    """
    figures = {f"{group}/{name}": value for group in ("loss", "metrics") for name, value in record[group].items()}
    return figures | {"lr": record["lr"]}


class NoReporter:
    """A reporter that shows nothing."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TensorBoard:
    """TensorBoard events in the folder of the run. A resumed run replaces the epochs that it repeats.

    Args:
        folder: The folder of the run.
        first_epoch: The first epoch that will be reported, from 0.
        settings: The settings of the run.
    """

    def __init__(self, folder: Path, first_epoch: int, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=first_epoch)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the events of an epoch."""
        for name, value in figures_of(record).items():
            if name != "lr":
                self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases. WANDB_MODE=offline keeps it on this computer, in the folder of the run.

    Args:
        folder: The folder of the run.
        first_epoch: The first epoch that will be reported, from 0.
        settings: The settings of the run.
    """

    def __init__(self, folder: Path, first_epoch: int, settings: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT,
            name=folder.name,
            # The same folder is the same run, so that a resumed training continues it.
            id=hashlib.sha256(bytes(folder.absolute())).hexdigest()[:16],
            resume="allow" if first_epoch else None,
            config=dict(settings),
            dir=str(folder),
        )

    def write(self, record: Mapping[str, Any]) -> None:
        """Log an epoch."""
        self._run.log(figures_of(record), step=record["epoch"])

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Trackio:
    """A run of trackio, in its database on this computer (TRACKIO_DIR).

    Args:
        folder: The folder of the run.
        first_epoch: The first epoch that will be reported, from 0.
        settings: The settings of the run.
    """

    def __init__(self, folder: Path, first_epoch: int, settings: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(
            project=PROJECT,
            name=folder.name,
            config=dict(settings),
            resume="allow" if first_epoch else "never",
            embed=False,
        )

    def write(self, record: Mapping[str, Any]) -> None:
        """Log an epoch."""
        self._trackio.log(figures_of(record), step=record["epoch"])

    def close(self) -> None:
        """Finish the run."""
        self._trackio.finish()


_NONE, _TENSORBOARD = "none", "tensorboard"
REPORTERS: dict[str, Callable[[Path, int, Mapping[str, Any]], Reporter]] = {
    _TENSORBOARD: TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
    _NONE: lambda folder, first_epoch, settings: NoReporter(),
}


def expect_reporter(name: str | None) -> None:
    """Raise UnknownName unless there is a reporter of this name. None is the default."""
    if name is not None and name not in REPORTERS:
        raise UnknownName.among("reporter", name, REPORTERS)


def open_reporter(name: str | None, folder: Path, first_epoch: int, settings: Mapping[str, Any]) -> Reporting:
    """Return the reporter of a run.

    Args:
        name: One of REPORTERS. Default: tensorboard if it is installed, or else none.
        folder: The folder of the run.
        first_epoch: The first epoch that will be reported, from 0. It is above 0 if a run is resumed.
        settings: The settings of the run.

    Raises:
        UnknownName: There is no such reporter.
        BadPackage: The package of the reporter is not installed.
    """
    expect_reporter(name)
    try:
        return Reporting(REPORTERS[name or _TENSORBOARD](folder, first_epoch, settings))
    except ImportError as error:
        if name is None:
            return Reporting(NoReporter())
        raise BadPackage(
            f"{name} cannot be imported ({error}), expected for --report-to {name}. Install it: pip install {name}"
        ) from error

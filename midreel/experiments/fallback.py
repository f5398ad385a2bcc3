"""Never hand over a model that is worse than no training: compare a finished run with zero-shot.

`midreel train` calls `compare` when a run is finished. If zero-shot has a higher SumR on the videos that the epoch was
chosen on, the run's best/ becomes the zero-shot model, and the trained model moves to trained/. Experiments do not call
it: their rows are the methods as they are.

The steps are repeatable. zero_shot.json is written last, so a killed comparison is made again.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from midreel.datasets.dataset import Dataset
from midreel.experiments import runs
from midreel.io.files import write_durably, write_errors
from midreel.io.folders import locked, recover, replacing
from midreel.methods.base import Method
from midreel.methods.model_files import DATA, STATISTICS, ZERO_SHOT, ZERO_SHOT_CLIPS
from midreel.recipes.recipe import Recipe
from midreel.training.fit import METRICS, RECIPE, known_of

COMPARISON = "zero_shot.json"
BEST, TRAINED = "best", "trained"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A trained model and zero-shot on the videos that the epoch was chosen on.

    Attributes:
        trained: SumR of the trained model.
        zero_shot: SumR of zero-shot.
        name: The kind of zero-shot, the better one of two: zero-shot or zero-shot-clips.
        kept: The folder of the run that has the trained model: best, or trained if zero-shot is better.
        num_videos: The number of videos.
        held_out: Whether the videos were held out of the split train.
    """

    trained: float
    zero_shot: float
    name: str
    kept: str
    num_videos: int
    held_out: bool

    @property
    def gain(self) -> float:
        """What training brought, in SumR."""
        return self.trained - self.zero_shot

    @property
    def is_worse(self) -> bool:
        """Whether the trained model is worse than zero-shot."""
        return self.gain < 0

    def text(self, run: Path) -> str:
        """Return the result in one sentence, or two if zero-shot is kept."""
        number = f"{self.num_videos:,} video{'s' * (self.num_videos != 1)}"
        videos = f"{number} that were held out" if self.held_out else number
        if not self.is_worse:
            return f"{self.gain:+.1f} SumR over {self.name} on {videos}"
        return (
            f"training lost {-self.gain:.1f} SumR against {self.name} on {videos}, so best is {self.name}. "
            f"The trained model is in {run / TRAINED}. With few videos, try --method clip_residual."
        )


def compare(dataset: Dataset, recipe: Recipe, run: Path, *, device: str = "cpu") -> Comparison | None:
    """Compare a finished run with zero-shot, and keep the better model in best/.

    Args:
        dataset: The dataset of the run.
        recipe: The recipe of the run.
        run: The folder of the run.
        device: The torch device.

    Returns:
        The comparison, or None if the features have no joint space of frames and sentences.

    Raises:
        Unwritable: The run cannot be written.
    """
    path = run / COMPARISON
    if path.exists():
        return Comparison(**json.loads(path.read_text(encoding="utf-8")))
    fingerprint = dataset.store.fingerprint
    if not fingerprint.joint or fingerprint.word_width is None:
        return None
    with locked(run, create=False):
        _recover(run)
        trained = run / TRAINED if (run / TRAINED).exists() else run / BEST
        ours = json.loads((trained / METRICS).read_text(encoding="utf-8"))["metrics"]["SumR"]
        recalls, num_videos = {}, 0
        for name in (ZERO_SHOT, ZERO_SHOT_CLIPS):
            method = runs.load(name, dataset, recipe)
            recalls[name], num_videos = runs.recalls_for_choosing(method, dataset, recipe, device)
        best = max(recalls, key=lambda name: recalls[name]["SumR"])
        found = Comparison(
            trained=ours,
            zero_shot=recalls[best]["SumR"],
            name=best,
            kept=TRAINED if ours < recalls[best]["SumR"] else BEST,
            num_videos=num_videos,
            held_out=recipe.selection == "holdout",
        )
        with write_errors(run):
            if found.is_worse:
                _replace_best(run, runs.load(best, dataset, recipe), recalls[best])
            write_durably(path, json.dumps(asdict(found), indent=2) + "\n")
    return found


def restore(run: Path) -> None:
    """Move the trained model of a run back to best/, if zero-shot is there. Otherwise do nothing."""
    with locked(run, create=False), write_errors(run):
        _recover(run)
        (run / COMPARISON).unlink(missing_ok=True)
        if (run / TRAINED).exists():
            with replacing(run / BEST) as new:
                shutil.copytree(run / TRAINED, new, dirs_exist_ok=True)
            shutil.rmtree(run / TRAINED)


def _replace_best(run: Path, zero_shot: Method, recalls: Mapping[str, float]) -> None:
    """Copy the trained model to trained/, and write zero-shot to best/."""
    if not (run / TRAINED).exists():
        with replacing(run / TRAINED) as copy:
            shutil.copytree(run / BEST, copy, dirs_exist_ok=True)
    with replacing(run / BEST) as new:
        for name in (DATA, RECIPE, STATISTICS):
            if (run / TRAINED / name).is_file():
                shutil.copy(run / TRAINED / name, new / name)
        write_durably(new / METRICS, json.dumps({"epoch": None, "metrics": dict(recalls)}, indent=2) + "\n")
        zero_shot.save_pretrained(new, model_card_kwargs=known_of(new))


def _recover(run: Path) -> None:
    for name in (BEST, TRAINED):
        recover(run / name)

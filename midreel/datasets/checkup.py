"""Is a dataset what it seems to be, and do its features fit? What `midreel data verify` prints."""

from dataclasses import dataclass, replace
from typing import Any

from midreel.datasets import Annotations
from midreel.datasets.dataset import find_features
from midreel.datasets.verify import FeatureCheck, Survey, check_features, survey
from midreel.errors import BadSetting, BadStore, MissingFeatures
from midreel.features.stores.published import PublishedFeatures


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Counts, and what the features look like or why they cannot be looked at. Annotations may well come without."""

    survey: Survey
    features: FeatureCheck | None
    misfits: tuple[str, ...] = ()  # files that are not as they were published
    remark: str = ""
    ok: bool

    def to_text(self) -> str:
        found = self.remark if self.features is None else self.features.to_text()
        return "\n".join([self.survey.to_text(), found, *(f"off: {misfit}" for misfit in self.misfits)])

    def to_dict(self) -> dict[str, Any]:
        found = {"features": None if self.features is None else self.features.to_dict(), "features_remark": self.remark}
        return self.survey.to_dict() | found | {"features_misfits": list(self.misfits), "ok": self.ok}


def check_up(annotations: Annotations, features: str | None = None) -> Checkup:
    """Reads every feature. `features` chooses among those of a release."""
    try:
        source = find_features(annotations, features)
    except MissingFeatures as error:
        counted = survey(annotations)
        return Checkup(survey=counted, features=None, remark=f"no features: {error}", ok=not counted.problems)
    except (BadSetting, BadStore) as error:
        return Checkup(survey=survey(annotations), features=None, remark=f"features: {error}", ok=False)
    found = check_features(annotations, source)
    if source.fingerprint.frame_rate is not None:  # else nobody knows when a frame is shown
        annotations = replace(annotations, durations={**found.durations, **annotations.durations})
    counted = survey(annotations)
    misfits = source.misfits() if isinstance(source, PublishedFeatures) else []
    ok = found.ok and not misfits and not counted.problems
    return Checkup(survey=counted, features=found, misfits=tuple(misfits), ok=ok)

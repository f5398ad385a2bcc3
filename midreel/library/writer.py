"""Open a library for writing: create it, recover lost settings, and load its model and backbone."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from uuid import uuid4

from midreel.errors import BadLibrary, BadSetting, FingerprintMismatch, MidreelError
from midreel.features.backbones.base import LOCAL, Backbone, Engine, Fingerprint, load_backbone
from midreel.features.backbones.choice import default_backbone
from midreel.features.extract import expect_rate
from midreel.index.base import Index
from midreel.io.files import write_errors
from midreel.io.hub import model_path
from midreel.library import confidence, scan
from midreel.library import encoder as encoders
from midreel.library.encoder import DEFAULT_MODEL, Encoder
from midreel.library.layout import Generation, Settings
from midreel.library.place import Place
from midreel.library.records import Spoken, Video
from midreel.library.report import Clock
from midreel.library.scan import FoundFile
from midreel.library.storage import Commit, Outdated, Storage, at
from midreel.ops.edges import EdgeCalibration
from midreel.types import VideoFeatures

if TYPE_CHECKING:
    from midreel.library.storage import LibraryIndex

T = TypeVar("T")
DEFAULT_RATE, DTYPE = 2.0, "float16"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The settings that the user asks for. None is the setting of the library; for a new library, the default.

    Attributes:
        model: The folder of a model, or the name of an untrained one. Default: zero-shot.
        backbone: The name of a backbone. Default: the one that the model was trained with, or else `default_backbone`.
        rate: Frames per second. Default: the rate that the model was trained with, or else 2.
    """

    model: str | None = None
    backbone: str | None = None
    rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What a new library is made with.

    Attributes:
        model: The name or folder of the model.
        encoder: The loaded model.
        spec: The name of the backbone.
        backbone: The loaded backbone.
        fingerprint: The fingerprint of the features, with their rate and dtype.
    """

    model: str
    encoder: Encoder
    spec: str
    backbone: Backbone
    fingerprint: Fingerprint


class Writer:
    """A library that is open for writing. Use `Writer.open`: only one process at a time may write a folder.

    Model, backbone and index are loaded when they are first used.

    Args:
        storage: Where the library is stored. A missing library is created.
        wanted: What a new library is made with, and what an existing one must have been made with.
        device: The torch device for backbone and model.
        backbone: A backbone that is loaded already. Default: load the one of the library.
        plan: The loaded parts of a new library. Default: load them if the library is new.
        engine: What computes backbone and model.

    Attributes:
        storage: Where the library is stored.
        settings: The settings of the library.
        catalogue: The catalogue.
        store: The feature store.
        device: The torch device for backbone and model.
    """

    def __init__(
        self,
        storage: Storage,
        wanted: Wanted,
        device: str,
        backbone: Backbone | None = None,
        plan: _Plan | None = None,
        engine: Engine = "auto",
    ) -> None:
        self.storage, self._wanted, self.device, self._given = storage, wanted, device, backbone
        self._engine: Engine = engine
        self.storage.remove_leftovers()
        if not self.storage.exists():
            self._create(plan)
        self.settings = self.storage.settings()
        with ExitStack() as opened:
            self.catalogue = opened.enter_context(closing(storage.open_catalogue(write=True)))
            self.store = opened.enter_context(storage.open_features(self.fingerprint))
            self._expect_wanted()
            self._opened = opened.pop_all()

    @classmethod
    @contextmanager
    def open(
        cls,
        place: Place,
        wanted: Wanted | None = None,
        *,
        device: str = "cpu",
        backbone: Backbone | None = None,
        engine: Engine = "auto",
    ) -> Iterator[Self]:
        """Open the library in a place for writing; create it if there is none.

        Args:
            place: The folder of the library, or the URL of its database.
            wanted: What a new library is made with, and what an existing one must have been made with.
            device: The torch device for backbone and model.
            backbone: A backbone that is loaded already.
            engine: What computes backbone and model. See `load_backbone`.

        Raises:
            Locked: Another process writes the folder.
            BadLibrary: The folder is not empty and is not a library, or the library is damaged.
            BadSetting: `wanted` names another model than the library has.
            FingerprintMismatch: `wanted` names another backbone or rate than the library has.
            Unwritable: The disk is full, or the folder is read-only.
            Unreachable: The database does not answer.
        """
        wanted = wanted or Wanted()
        if wanted.model is not None:
            wanted = replace(wanted, model=model_path(wanted.model))  # a model of the hub is a folder from here on
        with closing(at(place, write=True)) as storage:
            plan = None
            if not storage.exists():
                storage.expect_own()
                if not storage.generations():
                    # Load model and backbone before the lock creates the folder: if that fails, nothing is left behind.
                    plan = _plan(storage, wanted, device, backbone, engine)
            with storage.locked():
                writer = cls(storage, wanted, device, backbone, plan, engine)
                try:
                    yield writer
                finally:
                    writer._close()

    def _close(self) -> None:
        with self._opened:
            if "index" in vars(self):
                self.index.close()

    # ------------------------------------------------------------ parts

    @property
    def place(self) -> Place:
        """The folder of the library, or the URL of its database."""
        return self.storage.place

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the features."""
        return Fingerprint.from_json(json.dumps(self.settings.fingerprint))

    @cached_property
    def generation(self) -> Generation:
        """The generation that is searched."""
        return self.storage.serving(self.settings)

    @cached_property
    def index(self) -> "LibraryIndex":
        """The index of the generation, open for writing."""
        return self.storage.open_index(self.generation, read_only=False)

    @cached_property
    def encoder(self) -> Encoder:
        """The model of the generation. If its files are damaged, they are restored from the original model."""
        generation = self.generation
        try:
            return encoders.open_generation(generation, self.device, self._engine)
        except BadLibrary as damaged:
            if self._has_switched():
                raise
            try:
                original = self.open_model(generation.card.model)
            except MidreelError as error:
                raise damaged from error
            if encoders.digest(original) != generation.card.digest:
                raise
            with write_errors(generation.folder):
                encoders.save(original, generation.model)
            self.storage.save_model(generation)
            return encoders.open_generation(generation, self.device)

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone. Raise FingerprintMismatch if it is not the one that made the features."""
        spec, like = self._wanted.backbone or self.settings.backbone, self.fingerprint.backbone
        found = self._given or load_backbone(spec, self.device, self._engine, like=like)
        differences = self.fingerprint.difference(found.fingerprint)
        if differences:
            raise FingerprintMismatch(
                f"{self.storage} was made with {self.settings.backbone}, not "
                f"{found.fingerprint.source or found.fingerprint.backbone} (stored != given): "
                f"{'; '.join(differences)}. Use the same backbone, or index into a new library."
            )
        return found

    # ------------------------------------------------------------ create

    def _create(self, plan: _Plan | None) -> None:
        """Create the library. If only its settings are missing, write them again.

        The settings are written last. So a crash before that leaves a place that the next writer completes.
        """
        storage = self.storage
        if (recovered := storage.recovered()) is not None:
            fingerprint, generation = recovered
            if not storage.is_indexed(generation):  # the crash came just before
                storage.create_index(generation)
            spec = self._wanted.backbone or _source_of(self._given) or fingerprint.source
            storage.write(_settings(spec, fingerprint, generation))
            return
        plan = plan or _plan(storage, self._wanted, self.device, self._given, self._engine)
        storage.open_catalogue(write=True).close()
        storage.open_features(plan.fingerprint).close()
        generation = self.begin(plan.encoder, plan.model, uuid4().hex, encoders.measured_edges(plan.model))
        storage.create_index(generation)
        self._given = plan.backbone
        storage.write(_settings(plan.spec, plan.fingerprint, generation))
        storage.drop_generations(but=storage.settings().serving)

    # ------------------------------------------------------------ models and generations

    def open_model(self, model: str) -> Encoder:
        """Return the encoder of a model. Raise FingerprintMismatch if it was trained on other features."""
        return encoders.open_model(model, self.fingerprint, self.device, library=str(self.storage), engine=self._engine)

    def begin(self, encoder: Encoder, model: str, library_id: str, edges: EdgeCalibration | None) -> Generation:
        """Create a generation without an index, or return the one that an interrupted reindex created.

        Args:
            encoder: The model.
            model: The name or folder that the model was loaded from.
            library_id: The id of the library.
            edges: How wide the ranges of starts and ends are, if it was measured for this model.
        """
        card = encoders.card_of(encoder, model, library_id, edges)
        serving = self.storage.settings().serving if self.storage.exists() else None
        for generation in self.storage.generations():
            if generation.name != serving and generation.card == card:
                try:
                    encoders.open_generation(generation, "cpu")
                except BadLibrary:
                    continue  # its model is damaged
                return generation
        return self.storage.begin(card, encoder.files())

    def _expect_wanted(self) -> None:
        """Raise an error if the library was made with other settings than the user asks for."""
        wanted, settings = self._wanted, self.settings
        if wanted.rate is not None and wanted.rate != settings.rate:
            raise FingerprintMismatch(
                f"the rate is {wanted.rate:g}, but the library's rate is {settings.rate:g}. Leave out --rate, or index "
                f"into a new library."
            )
        if wanted.backbone is not None and _anywhere(wanted.backbone) != settings.backbone:
            if not any(spec.startswith(LOCAL) for spec in (wanted.backbone, settings.backbone)):
                raise FingerprintMismatch(
                    f"the backbone is {wanted.backbone}, but the library's backbone is {settings.backbone}. Leave out "
                    f"--backbone, or index into a new library."
                )
            _ = self.backbone  # a folder may be a copy of the same backbone, so compare the fingerprints
        if wanted.model is not None and not self.serves(wanted.model):
            raise BadSetting(
                f"the model of {self.storage} is {self.generation.card.model}, not {wanted.model}. Change it: midreel "
                f"reindex {self.storage} --model {wanted.model}"
            )

    def serves(self, model: str) -> bool:
        """Return whether the library is searched with this model, with the same weights."""
        return encoders.digest(self.open_model(model)) == self.generation.card.digest

    def switch_to(self, generation: Generation, ids: set[str]) -> set[str]:
        """Make a generation the one that is searched, and delete the others.

        Args:
            generation: The generation.
            ids: The videos that it was made from.

        Returns:
            The videos that other processes have added meanwhile. If there are any, nothing has changed.
        """
        settings = replace(self.settings, serving=generation.name)
        if added := self.storage.switch(settings, generation, ids):
            return added
        self._reload(settings)
        self.storage.drop_generations(but=generation.name)
        return set()

    def following(self, work: Callable[[], T]) -> T:
        """Do work with the generation that is searched. If another process switches meanwhile, do it again."""
        while True:
            if self._has_switched():
                self._reload(self.storage.settings())
            try:
                return work()
            except (Outdated, MidreelError):
                if not self._has_switched():
                    raise

    def _has_switched(self) -> bool:
        return self.storage.settings().serving != self.settings.serving

    def _reload(self, settings: Settings) -> None:
        """Use another generation."""
        self.settings = settings
        if "index" in vars(self):
            self.index.close()
        for name in ("generation", "index", "encoder"):
            vars(self).pop(name, None)

    def calibrate(self, generation: Generation, index: Index, encoder: Callable[[], Encoder]) -> None:
        """Calibrate a generation, unless its calibration still fits. Searches work without it, so errors are ignored.

        Args:
            generation: The generation.
            index: Its index.
            encoder: Returns its model.
        """
        known = self.storage.calibration(generation)
        if len(index) and (known is None or not known.fits(len(index))):
            # The backbone may be missing, or the disk full. The next run tries again.
            with suppress(MidreelError, OSError):
                if (found := confidence.measure(generation, index, encoder(), self.backbone)) is not None:
                    self.storage.write_calibration(generation, found)

    # ------------------------------------------------------------ single videos

    def add(
        self,
        video: Video,
        features: VideoFeatures,
        file: FoundFile,
        *,
        tags: Sequence[str],
        damage: str,
        spoken: Spoken | None,
        clock: Clock,
    ) -> None:
        """Encode a video whose features are stored, and add it.

        Args:
            video: The video.
            features: Its features.
            file: A file of the video.
            tags: Tags of the video.
            damage: Which part of it is unreadable; empty if none.
            spoken: What is said in it; None keeps what the catalogue has.
            clock: Measures the steps.

        Raises:
            BadFeatures: The features do not fit the model.
        """

        def encode_and_add() -> None:
            with clock.of("tokens"):
                tokens = encoders.encode_windows(self.encoder, features.frames, self.generation.card.windows)
            commit = Commit(video=video, tokens=tokens, files=[file], tags=tags, damage=damage, spoken=spoken)
            self.storage.add(self, commit, clock)

        self.following(encode_and_add)

    def remove(self, video_id: str) -> None:
        """Remove a video. If one of its files is indexed again, the video returns."""
        self.storage.remove(self, video_id)

    def add_tokens(self, video_id: str) -> None:
        """Encode the stored features of a video. Raise BadStore or BadFeatures if they are damaged."""
        frames = self.store.video(video_id).frames
        self.index.add(video_id, encoders.encode_windows(self.encoder, frames, self.generation.card.windows))


def _settings(spec: str, fingerprint: Fingerprint, generation: Generation) -> Settings:
    """Return the settings of a library.

    Args:
        spec: The name of its backbone.
        fingerprint: The fingerprint of its features.
        generation: The generation that is searched.
    """
    return Settings(
        backbone=_anywhere(spec),
        rate=float(fingerprint.frame_rate or DEFAULT_RATE),
        fingerprint=vars(fingerprint),
        serving=generation.name,
        id=generation.card.library,
    )


def _plan(storage: Storage, wanted: Wanted, device: str, given: Backbone | None, engine: Engine) -> _Plan:
    """Load the model and the backbone of a new library. Write nothing.

    Args:
        storage: Where the library will be stored.
        wanted: The settings that the user asks for.
        device: The torch device for backbone and model.
        given: A backbone that is loaded already.
        engine: What computes backbone and model.
    """
    if wanted.rate is not None:
        expect_rate(wanted.rate)
    model = wanted.model or DEFAULT_MODEL
    trained = encoders.trained_on(model)
    spec = wanted.backbone or _source_of(given) or (trained.source if trained else default_backbone())
    if trained is not None and not spec:
        raise BadSetting(
            f"{model} was trained on features of {trained.backbone} (SHA-256 of the weights {trained.weights}), "
            f"whose location is unknown. Pass it: --backbone local-dir:FOLDER, or a hub id"
        )
    if trained is not None and given is None and wanted.backbone is None and " + " in spec:
        raise BadSetting(
            f"{model} was trained on joined features ({spec}), expected features of one backbone: a library has only "
            f"one. Train a model on features of one CLIP."
        )
    rate = wanted.rate or (trained.frame_rate if trained is not None else None) or DEFAULT_RATE
    dtype = (trained.dtype if trained is not None else None) or DTYPE
    backbone = given or load_backbone(spec, device, engine)
    if backbone.fingerprint.word_width is None:
        raise BadSetting(
            f"{spec} does not encode text, expected a backbone that encodes queries. Choose a CLIP or a SigLIP."
        )
    fingerprint = replace(backbone.fingerprint, frame_rate=float(rate), dtype=dtype)
    encoder = encoders.open_model(model, fingerprint, device, library=str(storage), engine=engine)
    return _Plan(model=model, encoder=encoder, spec=spec, backbone=backbone, fingerprint=fingerprint)


def _source_of(backbone: Backbone | None) -> str:
    """Return the source of a backbone that the caller has loaded, or else its name; empty if there is none."""
    return "" if backbone is None else backbone.fingerprint.source or backbone.fingerprint.backbone


def _anywhere(spec: str) -> str:
    """Return the name of a backbone with an absolute path, which does not depend on the working directory."""
    kind, colon, path = spec.partition(":")
    return f"{kind}:{scan.absolute(Path(path))}" if colon and f"{kind}:" == LOCAL else spec

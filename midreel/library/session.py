"""A library that is open for writing: created, recovered or opened, with the model and backbone it was made with."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self
from uuid import uuid4

from midreel.errors import BadLibrary, BadSetting, FingerprintMismatch, MidreelError, Unwritable
from midreel.features.backbones.base import LOCAL, Backbone, Fingerprint, load_backbone
from midreel.features.stores.store import FeatureStore
from midreel.index.embedded import EmbeddedIndex
from midreel.library import encoder as encoders
from midreel.library import scan
from midreel.library.catalogue import NAME, Catalogue
from midreel.library.encoder import DEFAULT_MODEL, Encoder
from midreel.library.layout import Generation, Layout, Settings
from midreel.library.tokens import create_index, num_videos, open_index

DEFAULT_BACKBONE, DEFAULT_RATE, DTYPE = "tiny-clip", 2.0, "float16"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a library is made with.

    None means: what the library was made with. If it is new: what the model was trained with, or the default.
    """

    model: str | None = None
    backbone: str | None = None
    rate: float | None = None


class Writer:
    """A library that this process may write. Only one process can, at a time.

    Model, backbone and index are loaded when they are first used.
    """

    def __init__(self, folder: Path, wanted: Wanted, device: str, backbone: Backbone | None = None) -> None:
        self.layout, self._wanted, self.device, self._given = Layout(folder), wanted, device, backbone
        self.layout.remove_leftovers()
        if not self.layout.exists():
            self._create()
        self.settings = self.layout.settings()
        mode = "write" if (folder / NAME).exists() else "create"
        with ExitStack() as opened:
            self.catalogue = opened.enter_context(closing(Catalogue(folder, mode=mode)))  # type: ignore[arg-type]
            self.store = opened.enter_context(FeatureStore.resume(self.layout.features, self.fingerprint))
            self._expect_wanted()
            self._opened = opened.pop_all()

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path,
        wanted: Wanted | None = None,
        *,
        device: str = "cpu",
        backbone: Backbone | None = None,
    ) -> Iterator[Self]:
        """Open the library in a folder for writing; create it if there is none.

        Args:
            folder: The folder of the library.
            wanted: What a new library is made with, and what an existing one must have been made with.
            device: The torch device for backbone and model.
            backbone: A backbone that is loaded already.

        Raises:
            LibraryBusy: Another process writes the library.
            BadLibrary: The folder is not empty and is not a library, or the library is damaged.
            BadSetting: `wanted` names another model than the library has.
            FingerprintMismatch: `wanted` names another backbone or rate than the library has.
            Unwritable: The disk is full, or the folder is read-only.
        """
        layout = Layout(scan.absolute(folder))
        if not layout.exists():
            layout.expect_own()
        with layout.held():
            writer = cls(layout.folder, wanted or Wanted(), device, backbone)
            try:
                yield writer
            finally:
                writer._close()

    def _close(self) -> None:
        with self._opened:
            if "index" in vars(self):
                self.index.close()

    # ------------------------------------------------------------ what it is made with

    @property
    def folder(self) -> Path:
        return self.layout.folder

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.from_json(json.dumps(self.settings.fingerprint))

    @cached_property
    def generation(self) -> Generation:
        return self.layout.serving(self.settings)

    @cached_property
    def index(self) -> EmbeddedIndex:
        return open_index(self.generation, read_only=False)

    @cached_property
    def encoder(self) -> Encoder:
        """The model that the library is searched with. Damaged files of it are restored from the original model."""
        generation = self.generation
        try:
            return encoders.open_generation(generation, self.device)
        except BadLibrary as damaged:
            try:
                original = self.open_model(generation.card.model)
            except MidreelError as error:
                raise damaged from error
            if encoders.digest(original) != generation.card.digest:
                raise
            with _disk_errors(self.folder):
                encoders.save(original, generation.model)
            return original

    @cached_property
    def backbone(self) -> Backbone:
        found = self._given or load_backbone(self._wanted.backbone or self.settings.backbone, self.device)
        differences = self.fingerprint.difference(found.fingerprint)
        if differences:
            raise FingerprintMismatch(
                f"{self.folder} was made with {self.settings.backbone}, which differs from "
                f"{found.fingerprint.source or found.fingerprint.backbone} (there != here): {'; '.join(differences)}; "
                f"use the former, or index into a new library"
            )
        return found

    def _create(self) -> None:
        """The settings of a library, and what it begins with; or only the settings, if these were lost."""
        if (found := self._recovered()) is not None:
            self.layout.write(found)
            return
        model = self._wanted.model or DEFAULT_MODEL
        trained = encoders.trained_on(model)
        spec = self._wanted.backbone or self._source_of_given() or (trained.source if trained else DEFAULT_BACKBONE)
        if trained is not None and not spec:
            raise BadSetting(
                f"{model} was trained on features of {trained.backbone} (SHA-256 of the weights {trained.weights}), "
                f"and does not say where that backbone is; pass it: --backbone local-dir:FOLDER, or a hub id"
            )
        rate = self._wanted.rate or (trained.frame_rate if trained is not None else None) or DEFAULT_RATE
        dtype = (trained.dtype if trained is not None else None) or DTYPE
        backbone = self._given or load_backbone(spec, self.device)
        if backbone.fingerprint.word_width is None:
            raise BadSetting(
                f"{spec} reads no texts, expected a backbone that understands queries; choose a CLIP or a SigLIP"
            )
        fingerprint = replace(backbone.fingerprint, frame_rate=float(rate), dtype=dtype)
        encoder = encoders.open_model(model, fingerprint, self.device, library=self.folder)
        if not (self.folder / NAME).exists():
            Catalogue(self.folder, mode="create").close()
        FeatureStore.resume(self.layout.features, fingerprint).close()
        generation = self.begin(encoder, model, uuid4().hex)
        create_index(generation)
        self._given = self._given or backbone
        self.layout.write(
            Settings(
                backbone=_anywhere(spec),
                rate=float(rate),
                fingerprint=vars(fingerprint),
                serving=generation.name,
                id=generation.card.library,
            )
        )
        self.layout.drop_generations(but=generation.name)

    def _recovered(self) -> Settings | None:
        """The settings that features and a generation were made with. Of several generations the fullest serves, for
        another was only begun; of equal ones the latest, for others were left behind."""
        generations = self.layout.generations()
        if not generations or not self.layout.features.exists():
            return None
        with FeatureStore.open(self.layout.features) as store:
            made = store.fingerprint
        serving = max(reversed(generations), key=num_videos)
        return Settings(
            backbone=_anywhere(self._wanted.backbone or self._source_of_given() or made.source),
            rate=float(made.frame_rate or DEFAULT_RATE),
            fingerprint=vars(made),
            serving=serving.name,
            id=serving.card.library,
        )

    def _source_of_given(self) -> str:
        """Where the backbone that was passed came from or, if it does not say, what it is."""
        return "" if self._given is None else self._given.fingerprint.source or self._given.fingerprint.backbone

    def open_model(self, model: str) -> Encoder:
        """Return the encoder of a model. Raise FingerprintMismatch if it was trained on other features than these."""
        return encoders.open_model(model, self.fingerprint, self.device, library=self.folder)

    def begin(self, encoder: Encoder, model: str, library_id: str) -> Generation:
        """Begin a generation of a model, without an index; or return the one that an interrupted run has begun."""
        card = encoders.card_of(encoder, model, library_id)
        serving = self.layout.settings().serving if self.layout.exists() else None
        for generation in self.layout.generations():
            if generation.name != serving and generation.card == card:
                try:
                    encoders.open_generation(generation, "cpu")
                except BadLibrary:
                    continue  # damaged, so it must not be adopted
                return generation
        saved = self.folder / "model.new"
        try:
            with _disk_errors(self.folder):
                encoders.save(encoder, saved)
            return self.layout.begin_generation(card, saved)
        except Unwritable:
            self.layout.remove_leftovers()  # gives a full disk its space back
            raise

    def _expect_wanted(self) -> None:
        wanted, settings = self._wanted, self.settings
        if wanted.rate is not None and wanted.rate != settings.rate:
            raise FingerprintMismatch(
                f"{self.folder} has {settings.rate:g} frames a second, not {wanted.rate:g}; leave out --rate, or index "
                f"into a new library"
            )
        if wanted.backbone is not None and _anywhere(wanted.backbone) != settings.backbone:
            _ = self.backbone  # of another name; the fingerprint tells whether it is another
        if wanted.model is not None and not self.serves(wanted.model):
            raise BadSetting(
                f"{self.folder} is searched with {self.generation.card.model}, not {wanted.model}; to change that "
                f"without decoding anything: midreel reindex {self.folder} --model {wanted.model}"
            )

    def serves(self, model: str) -> bool:
        """Return whether the library is searched with this model, as it is now."""
        return encoders.digest(self.open_model(model)) == self.generation.card.digest

    def switch_to(self, generation: Generation) -> None:
        """Search with this generation from now on, and delete the others."""
        self.settings = replace(self.settings, serving=generation.name)
        self.layout.write(self.settings)
        if "index" in vars(self):
            self.index.close()
        for name in ("generation", "index", "encoder"):
            vars(self).pop(name, None)
        self.layout.drop_generations(but=generation.name)

    # ------------------------------------------------------------ single videos

    def remove(self, video_id: str) -> None:
        """Remove a video. If one of its files is indexed again, the video is back."""
        # The row first: a search finds only videos that have one. A kill in between leaves tokens that no search
        # returns and that the next run removes.
        self.catalogue.forget_videos([video_id])
        if video_id in self.index:
            self.index.remove(video_id)

    def add_tokens(self, video_id: str) -> None:
        """Encode the stored features of a video. Raise BadStore or BadFeatures if they are damaged."""
        frames = self.store.video(video_id).frames
        self.index.add(video_id, encoders.encode_windows(self.encoder, frames, self.generation.card.windows))


def _anywhere(spec: str) -> str:
    """Return the name of a backbone with an absolute path, so that it is the same from every working directory."""
    kind, colon, path = spec.partition(":")
    return f"{kind}:{scan.absolute(Path(path))}" if colon and f"{kind}:" == LOCAL else spec


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{folder} cannot be written ({error}). Free disk space and run again.") from error

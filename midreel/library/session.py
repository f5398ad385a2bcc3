"""A library that is open for writing: made, recovered or opened, and never with anything but what it was made with."""

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
from midreel.library import scan, tokens
from midreel.library.catalogue import NAME, Catalogue, Video
from midreel.library.layout import Generation, Layout, Settings
from midreel.methods.base import Method
from midreel.methods.loading import UNTRAINED, ZERO_SHOT, load_model, model_folder, trained_on
from midreel.ops.devices import on_device

DEFAULT_BACKBONE, DEFAULT_RATE, DTYPE = "tiny-clip", 2.0, "float16"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a library is to be made with; None is what it was made with or, if it is new, what fits the rest."""

    model: str | None = None
    backbone: str | None = None
    rate: float | None = None


class Writer:
    """A library open for writing: one at a time. What is slow to load is loaded when it is needed."""

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
        """The library in `folder`, a new one if there is none. A `backbone` that is loaded already saves loading it."""
        layout = Layout(scan.absolute(folder))
        if not layout.exists():
            layout.expect_own()
        with layout.held():
            indexer = cls(layout.folder, wanted or Wanted(), device, backbone)
            try:
                yield indexer
            finally:
                indexer._close()

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
        return tokens.open_index(self.generation, read_only=False)

    @cached_property
    def method(self) -> Method:
        """The model that the library is searched with. Damaged files of it are restored from where it came from."""
        generation = self.generation
        try:
            return tokens.load(generation, self.device)
        except BadLibrary as damaged:
            try:
                original = self.load(generation.card.model, self.fingerprint)
            except MidreelError as error:
                raise damaged from error
            if tokens.digest(original) != generation.card.digest:
                raise
            with _making_room(self.folder):
                tokens.save(original, generation.model)
            return on_device(original, self.device).eval()

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
        model, trained = self._wanted.model or ZERO_SHOT, None
        if model not in UNTRAINED:
            trained = trained_on(model_folder(model, f"or one of the words {', '.join(UNTRAINED)}"))
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
        method = self.load(model, fingerprint)
        if not (self.folder / NAME).exists():
            Catalogue(self.folder, mode="create").close()
        FeatureStore.resume(self.layout.features, fingerprint).close()
        generation = self.begin(method, model, uuid4().hex)
        tokens.ensure_index(generation)
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
        serving = max(reversed(generations), key=tokens.num_videos)
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

    def load(self, model: str, fingerprint: Fingerprint) -> Method:
        again = f"index into a new library: midreel index VIDEOS --library NEW --model {model}"
        return load_model(model, fingerprint, where=self.folder, again=again)

    def begin(self, method: Method, model: str, library_id: str) -> Generation:
        """A new generation of this model, without an index; or the one that an interrupted run has begun."""
        card = tokens.card_of(method, model if model in UNTRAINED else str(scan.absolute(Path(model))), library_id)
        serving = self.layout.settings().serving if self.layout.exists() else None
        for generation in self.layout.generations():
            if generation.name != serving and generation.card == card:
                try:
                    tokens.load(generation, "cpu")
                except BadLibrary:
                    continue  # not whole, so not to be adopted
                return generation
        saved = self.folder / "model.new"
        try:
            with _making_room(self.folder):
                tokens.save(method, saved)
            return self.layout.begin_generation(card, saved)
        except Unwritable:
            self.layout.remove_leftovers()  # a full disk has its room back
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
        """Whether it is this model, as it is now, that the library is searched with."""
        return tokens.digest(self.load(model, self.fingerprint)) == self.generation.card.digest

    # ------------------------------------------------------------ single videos

    def remove(self, video_id: str) -> None:
        """Removes a video. A later run that finds one of its files adds it again."""
        # The catalogue first: a search finds what it lists. A kill in between leaves tokens that no search returns,
        # and that the next run removes.
        self.catalogue.forget_videos([video_id])
        if video_id in self.index:
            self.index.remove(video_id)

    def add_tokens(self, video_id: str, index: EmbeddedIndex, method: Method, generation: Generation) -> Video:
        """From the features that are kept."""
        features = self.store.video(video_id)
        index.add(video_id, tokens.encode(method, features, generation.card.windows))
        return Video(id=video_id, duration=features.duration, num_frames=len(features.frames))


def _anywhere(spec: str) -> str:
    """The same backbone, from whatever folder midreel is called."""
    kind, colon, path = spec.partition(":")
    return f"{kind}:{scan.absolute(Path(path))}" if colon and f"{kind}:" == LOCAL else spec


@contextmanager
def _making_room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{folder} cannot be written ({error}); make room and run again") from error

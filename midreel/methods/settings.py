"""The settings of methods: their types and ranges, and the weights of branches that methods share. No torch."""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from midreel.errors import BadSetting, UnknownName

MOST_FRAMES = 2**12
# Settings of methods that are at least 1.
SIZES = (
    "video_width",
    "teacher_width",
    "text_width",
    "num_frames",
    "num_clips",
    "max_words",
    "width",
    "num_heads",
    "hard_pool",
)
# The weights of a clip and a frame branch in the curve, measured: docs/results/moments.md.
CLIP_CURVE_WEIGHT, FRAME_CURVE_WEIGHT = 1.0, 3.0


def check_settings(config: Any) -> None:
    """Raise unless the value of each field of a config has the type of its annotation.

    Configs come from people and from files, so a type checker does not see their values.

    Raises:
        BadSetting: a value is not a bool, an int or a finite float where the annotation says so.
        UnknownName: a value is not in the `Literal` of the annotation.
    """
    for field in fields(config):
        value, kind = getattr(config, field.name), field.type
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise UnknownName.among(field.name, value, get_args(kind))
        if kind is bool and not isinstance(value, bool):
            raise BadSetting(f"{field.name} is {value!r}, expected true or false. Choose one.")
        if kind is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise BadSetting(f"{field.name} is {value!r}, expected a whole number. The default is {field.default}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind is float and not (is_number and math.isfinite(value)):
            raise BadSetting(f"{field.name} is {value!r}, expected a number. The default is {field.default}.")


def feature_widths(config: Any) -> tuple[int, ...]:
    """Return the widths of the frame features that a method accepts, or nothing if it accepts any.

    They are the setting `video_width`, or the property `feature_widths` of a config that also accepts features with
    further columns.
    """
    own = (config.video_width,) if hasattr(config, "video_width") else ()
    return getattr(config, "feature_widths", own)


def check_ranges(
    config: Any,
    *,
    sizes: Iterable[str] = (),
    at_least_zero: Iterable[str] = (),
    positive: Iterable[str] = (),
    shares: Iterable[str] = (),
) -> None:
    """Raise unless each setting has the type of its annotation and is in range.

    The settings that methods share are known by name: sizes, dropout rates, weights, margins and first epochs. A config
    need not have all of them.

    Args:
        config: the settings.
        sizes: the names of further settings that are at least 1.
        at_least_zero: the names of further settings that are at least 0.
        positive: the names of settings above 0.
        shares: the names of settings from 0 to 1.

    Raises:
        BadSetting: a value has the wrong type or is out of range.
        UnknownName: a value is not one of the choices.
    """
    check_settings(config)
    # Attention takes memory by the square of the number of frames. The sizes of the weights do not show this.
    if config.num_frames > MOST_FRAMES:
        raise BadSetting(f"num_frames is {config.num_frames}, expected at most {MOST_FRAMES}. Try 128.")
    for name in (*(name for name in SIZES if hasattr(config, name)), *sizes):
        if getattr(config, name) < 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least 1. Use a larger one.")
    names = [field.name for field in fields(config)]
    for name in names:
        if name.endswith("dropout") and not 0 <= getattr(config, name) < 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least 0 and below 1. Try 0.2.")
    for name in (*(name for name in names if name.endswith(("_weight", "margin", "_from_epoch"))), *at_least_zero):
        if getattr(config, name) < 0:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least 0. Raise it.")
    for name in positive:
        if getattr(config, name) <= 0:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected a number above 0. Raise it.")
    for name in shares:
        if not 0 <= getattr(config, name) <= 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected 0 to 1. Choose a share.")
    if config.num_clips > config.num_frames:
        raise BadSetting(
            f"num_clips is {config.num_clips}, expected at most num_frames = {config.num_frames}. Lower it."
        )

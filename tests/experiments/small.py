"""A recipe that fits the features of the tiny random CLIP and trains in seconds."""

SETTINGS = {
    "video_width": 24,
    "text_width": 32,
    "width": 8,
    "num_heads": 2,
    "num_frames": 12,
    "num_clips": 6,
    "min_clips": 2,
    "max_words": 16,
    "epochs": 2,
    "patience": 99,
    "batch_size": 3,
    "seed": 1,
}


def as_options(**changes: object) -> list[str]:
    """Return settings as options of a command line."""
    return [word for name, value in (SETTINGS | changes).items() for word in ("--set", f"{name}={value}")]

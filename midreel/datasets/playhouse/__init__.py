"""The playhouse: a generated dataset of small untrimmed videos with sentences about their parts.

generate  descriptions of videos from a seed: small, repeated and large ones
scenes    the description of a video, and its frames
files     mp4 files, annotations, and the settings of a folder
stills    single frames with captions, to train a backbone
sheet     an overview image
troupe    the things, colours and backdrops of a dataset
motion    the motion of the actors: a pure function of the action and the time
art       things, colours and backdrops as vector shapes
words     the vocabulary, and the sentences
"""

from midreel.datasets.playhouse.files import DESCRIPTION, VERSION, can_draw, draw_frames, write_dataset, write_file
from midreel.datasets.playhouse.generate import (
    DEFAULT_KIND,
    KINDS,
    SPLITS,
    annotations,
    find_video,
    make_split,
    make_troupe,
    make_video,
)
from midreel.datasets.playhouse.motion import COVERS, HIDING, PAIR_ACTIONS, SOLO_ACTIONS, Pose
from midreel.datasets.playhouse.scenes import FRAME_SIZE, Event, Frame, PlayhouseVideo, frame_times, frames, render
from midreel.datasets.playhouse.sheet import contact_sheet
from midreel.datasets.playhouse.stills import Still, in_view, still_captions, stills
from midreel.datasets.playhouse.troupe import EVERYTHING, Troupe, TroupeSize

__all__ = [
    "COVERS",
    "DEFAULT_KIND",
    "DESCRIPTION",
    "EVERYTHING",
    "FRAME_SIZE",
    "HIDING",
    "KINDS",
    "PAIR_ACTIONS",
    "SOLO_ACTIONS",
    "SPLITS",
    "VERSION",
    "Event",
    "Frame",
    "PlayhouseVideo",
    "Pose",
    "Still",
    "Troupe",
    "TroupeSize",
    "annotations",
    "can_draw",
    "contact_sheet",
    "draw_frames",
    "find_video",
    "frame_times",
    "frames",
    "in_view",
    "make_split",
    "make_troupe",
    "make_video",
    "render",
    "still_captions",
    "stills",
    "write_dataset",
    "write_file",
]

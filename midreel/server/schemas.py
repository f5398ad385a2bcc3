"""What goes over the wire; server and client share it. Times are seconds, paths are names: see `listing`."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LONGEST_QUERY = 500  # characters; backbones read some 75 words
LONGEST_NAME = 4096
MOST_HITS = 100
MOST_VIDEOS = 1000  # that a search may be restricted to
MOST_A_PAGE = 200
MOST_POINTS = 500  # of a curve: more than a screen shows of one

# Something to be read, and nothing that a terminal or a log would obey.
_TEXT = r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$"

QueryText = Annotated[
    str, Field(min_length=1, max_length=LONGEST_QUERY, pattern=_TEXT, description="What happens in the part you want.")
]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=_TEXT)]
Id = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _number(value: object) -> object:
    """JSON has numbers; "3" and true are none, though Python would take them."""
    if isinstance(value, str | bool):
        raise ValueError("expected a number")
    return value


_IsNumber = BeforeValidator(_number)


class _Asked(BaseModel):
    """What a client sends: a misspelt field is said to be one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True)


# ---------------------------------------------------------------- search


class SearchRequest(_Asked):
    query: QueryText
    top: Annotated[int, _IsNumber] = Field(10, ge=1, le=MOST_HITS, description="How many videos, at most.")
    threshold: Annotated[float, _IsNumber] | None = Field(
        None, allow_inf_nan=False, description="Leave out what scores less."
    )
    videos: list[Id] | None = Field(None, min_length=1, max_length=MOST_VIDEOS, description="Search these only.")
    folder: Name | None = Field(None, description="Search this folder only, one of those that /v1/library lists.")


class Moment(_Told):
    start: Seconds
    end: Seconds
    peak: Seconds = Field(description="When the query fits best.")
    score: float


class Curve(_Told):
    """How well the query fits over time; of a long video, the best of each of so many equal parts."""

    times: list[float] = Field(max_length=MOST_POINTS)
    values: list[float] = Field(max_length=MOST_POINTS)


class Video(_Told):
    id: Id
    title: str
    folder: str
    file: str
    duration: Seconds
    size: int = Field(description="Bytes.")
    date: datetime = Field(description="When its file was last modified.")
    copies: int = Field(description="In how many places it lies.")
    tags: list[str] = []
    thumbnail: str = Field(description="Address of a picture of it.")
    stream: str = Field(description="Address of the file.")


class Hit(_Told):
    rank: int
    video: Video
    score: float
    branch_scores: dict[str, float]
    start: Seconds = Field(description="Of the best moment.")
    end: Seconds
    peak: Seconds = Field(description="When in it the query fits best.")
    alternatives: list[Moment] = Field(description="Other moments of the video, best first.")
    curve: Curve
    thumbnail: str = Field(description="Address of a picture of the moment.")
    stream: str = Field(description="Address of the file, with the moment as a fragment, as browsers read it.")


class SearchResponse(_Told):
    query: str
    hits: list[Hit]
    below_threshold: int = Field(description="How many hits the threshold left out.")
    milliseconds: float = Field(description="From the request's arrival to its answer.")


class CurveResponse(_Told):
    video: Video
    query: str
    score: float
    moments: list[Moment]
    curve: Curve


# ---------------------------------------------------------------- what is there


class VideoPage(_Told):
    videos: list[Video]
    total: int = Field(description="Of all pages.")
    offset: int
    limit: int


class Folder(_Told):
    name: str
    videos: int


class LibraryInfo(_Told):
    videos: int
    seconds: float
    quarantined: int = Field(description="Files that could not be read.")
    unsearchable: int | None = Field(
        description="Videos that no search finds, for what the library keeps of them is damaged, as far as searches "
        "have come across that; null, where that is not known. To make it good: midreel index --library LIBRARY --retry"
    )
    unsearchable_files: list[str] = Field(max_length=MOST_A_PAGE, description="The first of these.")
    folders: list[Folder]
    roots: list[str] = Field(description="Where /v1/index may look for videos.")
    writable: bool
    model: str
    backbone: str
    examples: list[str] = Field(description="Queries to begin with.")


class Quarantined(_Told):
    file: str
    reason: str


class QuarantinePage(_Told):
    files: list[Quarantined]
    total: int
    offset: int
    limit: int


# ---------------------------------------------------------------- jobs


class IndexRequest(_Asked):
    path: Name = Field(description="A root of /v1/library, or a video or folder in one, such as Videos/holidays.")


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Job(_Told):
    id: Id
    path: str
    state: JobState
    done: int = Field(description="Files that were dealt with.")
    total: int | None = Field(description="Files to be dealt with; not known until the folder was looked through.")
    latest: str = Field(description="The file that was dealt with last.")
    added: int = Field(description="Videos that are new or have changed.")
    left_out: list[Quarantined] = Field(description="Files that could not be read, and why.")
    seconds: float = Field(description="Since it began.")
    seconds_left: float | None
    message: str = Field(description="How it ended.")


class JobList(_Told):
    jobs: list[Job]


# ---------------------------------------------------------------- the rest


class SessionRequest(_Asked):
    token: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class Health(_Told):
    status: str


class FieldProblem(_Told):
    where: str
    message: str


class Problem(_Told):
    """RFC 9457: what is wrong, in a form that programs and people can read."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []

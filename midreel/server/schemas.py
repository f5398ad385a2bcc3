"""The JSON bodies of the API, shared by the server and the client.

All times are in seconds. Files and folders have names, not paths: see `listing`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from midreel.ops.calibration import THRESHOLD

MAX_QUERY_LENGTH = 500  # characters; backbones read about 75 words
MAX_NAME_LENGTH = 4096  # characters
MAX_HITS = 100
MAX_FILTER_VIDEOS = 1000
MAX_PAGE_SIZE = 200
MAX_CURVE_POINTS = 500  # more than fit on a screen

# At least one visible character, and no control characters, which terminals and logs would interpret.
_TEXT = r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$"

QueryText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_QUERY_LENGTH,
        pattern=_TEXT,
        description="A sentence that describes any part of a video, or sentences with the operators AND, OR, NOT and "
        "THEN in capitals.",
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, pattern=_TEXT)]
Id = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SecondsRange = Annotated[list[Seconds], Field(min_length=2, max_length=2)]
_RANGE = "Two times between which the true {} is, with 80 % confidence; null if unknown."


def _reject_non_numbers(value: object) -> object:
    """Reject "3" and true, which pydantic would convert to numbers."""
    if isinstance(value, str | bool):
        raise ValueError("expected a number")
    return value


_IsNumber = BeforeValidator(_reject_non_numbers)


class _RequestModel(BaseModel):
    """A request body. Unknown fields are an error, so that a misspelt field is not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _ResponseModel(BaseModel):
    model_config = ConfigDict(frozen=True)


# ---------------------------------------------------------------- search


class Example(_RequestModel):
    """A moment of a video in the library, as an image to search with."""

    video: Id
    time: Annotated[float, _IsNumber] = Field(ge=0, allow_inf_nan=False, description="Time in seconds.")


class SearchRequest(_RequestModel):
    """A query, and optional limits on the result."""

    query: QueryText
    top: Annotated[int, _IsNumber] = Field(10, ge=1, le=MAX_HITS, description="Maximum number of hits.")
    threshold: Annotated[float, _IsNumber] = Field(
        THRESHOLD, ge=0, le=1, allow_inf_nan=False, description="Least probability of a confident match."
    )
    videos: list[Id] | None = Field(
        None, min_length=1, max_length=MAX_FILTER_VIDEOS, description="Search only these videos."
    )
    folder: Name | None = Field(
        None, description="Search only this folder and its subfolders. `GET /v1/library` lists the folders."
    )
    like: Example | None = Field(
        None, description="Search for moments like this one that the query describes. Its video is not a hit."
    )


class Moment(_ResponseModel):
    """A part of a video that matches the query."""

    start: Seconds
    end: Seconds
    start_range: SecondsRange | None = Field(description=_RANGE.format("start"))
    end_range: SecondsRange | None = Field(description=_RANGE.format("end"))
    peak: Seconds = Field(description="Time of the best match.")
    score: float = Field(description="Score at the peak.")
    part: str = Field("", description="Part of the query that the moment shows, if the query has operators.")


class Curve(_ResponseModel):
    """The score of the query over time.

    The curve of a long video is thinned: it is split into equal parts, and the highest value of each part is kept.
    """

    times: list[float] = Field(max_length=MAX_CURVE_POINTS)
    values: list[float] = Field(max_length=MAX_CURVE_POINTS)


class Line(_ResponseModel):
    """A line of subtitles that fits the query."""

    start: Seconds
    end: Seconds
    text: str


class Video(_ResponseModel):
    """A video of the library."""

    id: Id = Field(description="Identifies the content of the video. Copies of a file share one id.")
    title: str = Field(description="File name without its extension.")
    folder: str = Field(description="Folder of the file, starting with the name of a root.")
    file: str = Field(description="File name.")
    duration: Seconds
    size: int = Field(description="File size in bytes.")
    date: datetime = Field(description="Time of the last modification of the file.")
    copies: int = Field(description="Number of files with this content.")
    tags: list[str] = []
    thumbnail: str = Field(description="URL of a thumbnail from the middle of the video.")
    stream: str = Field(description="URL of the file.")


class Hit(_ResponseModel):
    """A video found, with its best moment."""

    rank: int = Field(description="Position in the result, starting at 1.")
    video: Video
    score: float
    confidence: float | None = Field(
        description="Probability that the video matches the query; null if the library is not calibrated yet."
    )
    branch_scores: dict[str, float] = Field(
        description="Score of each branch of the model. Empty if the query has operators."
    )
    part: str = Field("", description="Part of the query that the best moment shows, if the query has operators.")
    start: Seconds = Field(description="Start of the best moment.")
    end: Seconds = Field(description="End of the best moment.")
    start_range: SecondsRange | None = Field(description=_RANGE.format("start"))
    end_range: SecondsRange | None = Field(description=_RANGE.format("end"))
    peak: Seconds = Field(description="Time of the best match in the moment.")
    alternatives: list[Moment] = Field(description="Other moments in this video, best first.")
    curve: Curve
    said: list[Line] = Field(default_factory=list, description="Lines of subtitles that fit the query, best first.")
    thumbnail: str = Field(description="URL of a thumbnail of the moment.")
    stream: str = Field(description="URL of the file, with the moment as a media fragment (`#t=START,END`).")


class SearchResponse(_ResponseModel):
    """The hits of a search, best first."""

    query: str
    hits: list[Hit]
    confident: bool | None = Field(
        description="Whether any hit has a confidence of at least the threshold; null if no hit has a confidence. If "
        "false, the hits are the best guesses."
    )
    threshold: float = Field(description="Threshold of the request.")
    milliseconds: float = Field(description="Time the server took to answer.")


class CurveResponse(_ResponseModel):
    """The score of a query over time in one video."""

    video: Video
    query: str
    score: float
    moments: list[Moment] = Field(description="Moments that match the query, best first.")
    curve: Curve


# ---------------------------------------------------------------- feedback


class FeedbackRequest(_RequestModel):
    """Whether a moment of a video is what a query describes."""

    query: QueryText = Field(description="A plain sentence, without operators.")
    video: Id
    match: bool = Field(strict=True, description="True for “this is it”, false for “not this”.")
    start: Annotated[Seconds, _IsNumber] | None = Field(
        None, description="Start of the moment. Default: the start of the video."
    )
    end: Annotated[Seconds, _IsNumber] | None = Field(
        None, description="End of the moment. Default: the end of the video."
    )


class FeedbackItem(_ResponseModel):
    """What a user says about a moment that a query found."""

    id: int
    query: str
    video: Id = Field(description="Id of the video, which may have been removed from the library.")
    match: bool = Field(description="True for “this is it”, false for “not this”.")
    start: Seconds
    end: Seconds
    created: datetime


class FeedbackPage(_ResponseModel):
    """One page of the feedback."""

    feedback: list[FeedbackItem]
    total: int = Field(description="Number of pieces of feedback on all pages.")
    offset: int
    limit: int


# ---------------------------------------------------------------- library


class VideoPage(_ResponseModel):
    """One page of the list of videos."""

    videos: list[Video]
    total: int = Field(description="Number of videos on all pages.")
    offset: int
    limit: int


class Folder(_ResponseModel):
    """A folder and the number of videos directly in it."""

    name: str
    videos: int


class LibraryInfo(_ResponseModel):
    """The size, folders and model of the library."""

    videos: int = Field(description="Number of videos.")
    seconds: float = Field(description="Total duration of the videos.")
    quarantined: int = Field(description="Number of unreadable files.")
    unsearchable: int | None = Field(
        description="Number of videos whose index entry is damaged, so no search finds them. Searches detect the "
        "damage; null until the first search. Repair: `midreel index --library LIBRARY --retry`."
    )
    unsearchable_files: list[str] = Field(
        max_length=MAX_PAGE_SIZE, description=f"The first {MAX_PAGE_SIZE} unsearchable files."
    )
    folders: list[Folder]
    roots: list[str] = Field(description="Folders and files that `POST /v1/index` accepts.")
    writable: bool = Field(description="Whether the server can write to the library folder.")
    model: str
    backbone: str
    examples: list[str] = Field(description="Example queries.")


class Quarantined(_ResponseModel):
    """An unreadable file, and the reason."""

    file: str
    reason: str


class QuarantinePage(_ResponseModel):
    """One page of the list of unreadable files."""

    files: list[Quarantined]
    total: int = Field(description="Number of files on all pages.")
    offset: int
    limit: int


# ---------------------------------------------------------------- jobs


class IndexRequest(_RequestModel):
    """A video or folder to index."""

    path: Name = Field(
        description="A root, or a video or folder in a root, such as `Videos/holidays`. `GET /v1/library` lists the "
        "roots."
    )


class JobState(StrEnum):
    """The states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, with any result."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Job(_ResponseModel):
    """An index job and its progress."""

    id: Id
    path: str
    state: JobState
    done: int = Field(description="Number of files processed.")
    total: int | None = Field(description="Number of files to process; null until the folder is scanned.")
    latest: str = Field(description="The last file processed.")
    added: int = Field(description="Number of new or changed videos.")
    left_out: list[Quarantined] = Field(description="Files that were skipped, and why. At most 100 are listed.")
    seconds: float = Field(description="Time since the job started.")
    seconds_left: float | None = Field(description="Estimated time left; null if unknown.")
    message: str = Field(description="Result of a job that has ended; otherwise empty.")


class JobList(_ResponseModel):
    """The latest jobs, newest first."""

    jobs: list[Job]


# ---------------------------------------------------------------- sessions, health and errors


class SessionRequest(_RequestModel):
    """The token to exchange for a cookie."""

    token: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]


class Health(_ResponseModel):
    """The state of the server."""

    status: str
    library: str = Field("", description="Id of the library. A search on this machine asks only a server of its own.")


class FieldProblem(_ResponseModel):
    """An invalid field of a request."""

    where: str = Field(description="Location of the field, such as `body.top`.")
    message: str


class Problem(_ResponseModel):
    """A problem details object (RFC 9457)."""

    type: str = Field(description="URN of the kind of problem, such as `urn:midreel:problem:no-video`.")
    title: str = Field(description="Name of the status code.")
    status: int
    detail: str = Field(description="What is wrong, and how to fix it.")
    errors: Annotated[list[FieldProblem], Field(description="Invalid fields of the request.")] = []

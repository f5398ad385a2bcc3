"""The routes of feedback: what users say about hits. It is stored in the library and never sent anywhere else.

Feedback needs no turn in the queue of writes, because it is a file of its own that any process may write at any time.
"""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from midreel.errors import BadSetting
from midreel.library.catalogue import Video
from midreel.library.feedback import Feedback, FeedbackLog
from midreel.server import schemas
from midreel.server.problems import ProblemError, responses

router = APIRouter(prefix="/feedback", tags=["feedback"])
_LARGEST_ID = 2**53 - 1  # that JavaScript represents exactly


def _log(request: Request) -> FeedbackLog:
    log: FeedbackLog = request.app.state.services.searcher.storage.feedback()
    return log


@router.post("", status_code=201, responses=responses(400, 404, 507), summary="Give feedback on a moment")
def give_feedback(request: Request, response: Response, body: schemas.FeedbackRequest) -> schemas.FeedbackItem:
    """Say whether a moment is what a query describes. Replaces feedback on the same query and an overlapping moment."""
    item = request.app.state.services.listing.item(body.video)
    video = Video(id=item.id, duration=item.duration, num_frames=1)
    try:
        added = _log(request).add(video, body.query, match=body.match, start=body.start, end=body.end)
    except BadSetting as error:  # its message quotes the request only
        raise ProblemError(422, str(error), kind="invalid-request") from error
    response.headers["Location"] = f"/v1/feedback/{added.id}"
    return _schema(added)


@router.get("", responses=responses(), summary="List feedback")
def list_feedback(
    request: Request,
    query: Annotated[schemas.QueryText | None, Query(description="List only feedback on this sentence.")] = None,
    video: Annotated[schemas.Id | None, Query(description="List only feedback on this video.")] = None,
    offset: Annotated[int, Query(ge=0, le=10_000_000, description="Number of entries to skip.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=schemas.MAX_PAGE_SIZE, description="Maximum number of entries to return.")
    ] = 50,
) -> schemas.FeedbackPage:
    """Return one page of the feedback, oldest first. Feedback on removed videos is included."""
    found = _log(request).all(query=query, video_id=video)
    page = [_schema(each) for each in found[offset : offset + limit]]
    return schemas.FeedbackPage(feedback=page, total=len(found), offset=offset, limit=limit)


@router.delete("/{feedback_id}", status_code=204, responses=responses(404, 507), summary="Delete feedback")
def delete_feedback(
    request: Request,
    feedback_id: Annotated[int, Path(ge=1, le=_LARGEST_ID, description="Id of a piece of feedback.")],
) -> None:
    """Delete a piece of feedback. What `midreel adapt` has learned from it stays until the next `midreel adapt`."""
    _log(request).remove(feedback_id)


def _schema(feedback: Feedback) -> schemas.FeedbackItem:
    return schemas.FeedbackItem(
        id=feedback.id,
        query=feedback.query,
        video=feedback.video_id,
        match=feedback.match,
        start=feedback.start,
        end=feedback.end,
        created=datetime.fromtimestamp(feedback.created, UTC),
    )

"""The feedback of a library in PostgreSQL."""

import time

from midreel.errors import MissingFeedback
from midreel.index.postgres.database import Connection, Pool
from midreel.library.feedback import Feedback, FeedbackLog, moment_in, plain
from midreel.library.records import Video

_COLUMNS = 'id, query, video_id, is_match, start, "end", created'


class PostgresFeedback(FeedbackLog):
    """The feedback of a library in PostgreSQL. See `FeedbackLog` for its methods.

    Args:
        database: Runs the transactions.
        place: The library, for messages.
    """

    def __init__(self, database: Pool, place: str) -> None:
        self._database, self._place = database, place

    def all(self, *, query: str | None = None, video_id: str | None = None) -> list[Feedback]:
        """Return the feedback, oldest first.

        Args:
            query: Return only feedback on this sentence.
            video_id: Return only feedback on this video.
        """
        values = {"query": None if query is None else plain(query), "video_id": video_id}
        conditions = [f"{column} = %({column})s" for column, value in values.items() if value is not None]
        statement = f"SELECT {_COLUMNS} FROM feedback WHERE {' AND '.join(['TRUE', *conditions])} ORDER BY id".encode()
        rows = self._database.run(lambda connection: connection.execute(statement, values).fetchall())
        return [_feedback(*row) for row in rows]

    def add(
        self,
        video: Video,
        query: str,
        *,
        match: bool,
        start: float | int | None = None,
        end: float | int | None = None,
    ) -> Feedback:
        """Add feedback on a moment of a video. It replaces feedback on the same query and an overlapping moment.

        Args:
            video: The video.
            query: A plain sentence.
            match: True for "this is it", False for "not this".
            start: The start of the moment in seconds. Default: the start of the video.
            end: The end of the moment in seconds. Default: the end of the video.
        """
        text, (first, last) = plain(query), moment_in(video, start, end)

        def work(connection: Connection) -> Feedback:
            connection.execute(
                'DELETE FROM feedback WHERE query = %s AND video_id = %s AND start < %s AND "end" > %s',
                (text, video.id, last, first),
            )
            columns = _COLUMNS.removeprefix("id, ")
            statement = f"INSERT INTO feedback ({columns}) VALUES (%s, %s, %s, %s, %s, %s) RETURNING {_COLUMNS}"
            row = connection.execute(statement.encode(), (text, video.id, match, first, last, time.time())).fetchone()
            assert row is not None
            return _feedback(*row)

        return self._database.run(work)

    def remove(self, number: int) -> None:
        """Delete a piece of feedback. Raise MissingFeedback if there is none with this id."""
        if not self._deleted("WHERE id = %s", number):
            raise MissingFeedback(f"there is no feedback {number}. List all: midreel feedback {self._place}")

    def clear(self) -> int:
        """Delete all feedback, and return how many pieces there were."""
        return self._deleted("")

    def _deleted(self, where: str, *values: object) -> int:
        statement = f"DELETE FROM feedback {where}".encode()
        return self._database.run(lambda connection: connection.execute(statement, values).rowcount, repeatable=False)


def _feedback(
    number: int, query: str, video_id: str, match: bool, start: float, end: float, created: float
) -> Feedback:
    return Feedback(id=number, query=query, video_id=video_id, match=match, start=start, end=end, created=created)

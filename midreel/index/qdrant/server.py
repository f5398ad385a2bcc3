"""The connection to a Qdrant server: requests that survive a lost connection, and errors without keys.

The URL never holds a key. It comes from the environment variable QDRANT_API_KEY.
"""

import os
import time
from typing import Any
from urllib.parse import urlsplit

import grpc
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from midreel.errors import BadIndex, BadSetting, MidreelError, Unreachable, Unwritable

KEY = "QDRANT_API_KEY"
_PAUSES = (0.05, 0.1, 0.2, 0.5)  # seconds before each new attempt; the last one repeats
_AWAY = (408, 429, 500, 502, 503, 504)  # statuses of HTTP after which the same request may succeed
_AWAY_GRPC = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED)
_REFUSED_GRPC = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Server:
    """Sends requests to a server. All requests of the index can be repeated: they set or delete points by their id.

    Args:
        place: http://HOST:6333 or https://HOST:6333, or a client. Vectors go by gRPC, at the next port.
        patience: The seconds to wait for a server that does not answer.

    Raises:
        BadSetting: The URL cannot be read, or holds a key.
    """

    def __init__(self, place: str | QdrantClient, *, patience: float = 5.0) -> None:
        self._patience, self._is_own = patience, isinstance(place, str)
        if isinstance(place, QdrantClient):
            self.place, self._client = "Qdrant", place
            return
        check_url(place)
        parts = urlsplit(place)
        port = parts.port or 6333
        self.place = f"{parts.scheme}://{parts.hostname}:{port}"
        self._client = QdrantClient(
            url=self.place,
            grpc_port=port + 1,
            prefer_grpc=True,
            api_key=os.environ.get(KEY),
            timeout=60,
            check_compatibility=False,
        )

    def call(self, method: str, *values: Any, **settings: Any) -> Any:
        """Call a method of the client, again if the server does not answer.

        Args:
            method: The name of the method.
            values: Its arguments by position.
            settings: Its arguments by name.

        Raises:
            Unreachable: The server does not answer, or refuses the key.
            Unwritable: Its disk is full.
            BadIndex: Any other error of the server.
        """
        deadline, attempt = time.monotonic() + self._patience, 0
        while True:
            try:
                return getattr(self._client, method)(*values, **settings)
            except (ApiException, grpc.RpcError, OSError, ValueError) as error:
                if isinstance(error, MidreelError):
                    raise
                found = translated(error, self.place)
                if not _is_away(error) or time.monotonic() >= deadline:
                    raise found from None  # the original may quote headers
            time.sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            attempt += 1

    def close(self) -> None:
        """Close the connection, unless the client was given."""
        if self._is_own:
            self._client.close()


def check_url(url: str) -> None:
    """Raise BadSetting unless a URL names a Qdrant server and holds no key."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise BadSetting("the URL of Qdrant cannot be read, expected http://HOST:6333 or https://HOST:6333.")
    if parts.username or parts.password or parts.query:
        raise BadSetting(f"the URL of Qdrant holds more than host and port. Put the key into {KEY} instead.")


def translated(error: BaseException, place: str) -> MidreelError:
    """Return an error of the client as one of midreel, without the key.

    Args:
        error: The error.
        place: The server, for the message.
    """
    secret = os.environ.get(KEY, "")
    text = str(error).strip().split("\n")[0][:200] or type(error).__name__
    text = text.replace(secret, "***") if secret else text
    if "No space left" in str(error) or "disk" in str(error).lower():
        return Unwritable(f"{place}: {text}. Free space on the server.")
    if _is_away(error) or _is_refused(error):
        return Unreachable(f"{place}: {text}. Start the server, check {KEY}, or try again later.")
    return BadIndex(f"{place}: {text}. Open the index again, or rebuild it.")


def _is_away(error: BaseException) -> bool:
    if isinstance(error, grpc.RpcError):
        return error.code() in _AWAY_GRPC
    if isinstance(error, UnexpectedResponse):
        return error.status_code in _AWAY
    return isinstance(error, ResponseHandlingException | OSError)


def _is_refused(error: BaseException) -> bool:
    if isinstance(error, grpc.RpcError):
        return error.code() in _REFUSED_GRPC
    return isinstance(error, UnexpectedResponse) and error.status_code in (401, 403)

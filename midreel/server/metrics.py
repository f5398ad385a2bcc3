"""What a monitor may ask: how many requests, how long they took, what waits. Each application counts for itself."""

import time

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = CONTENT_TYPE_LATEST
_METHODS = frozenset(("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"))
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "midreel_http_requests", "Requests.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "midreel_http_seconds", "Until the answer began.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.search_seconds = Histogram(
            "midreel_search_seconds", "One batch of searches.", buckets=_SECONDS, registry=self.registry
        )
        self.batch_size = Histogram(
            "midreel_search_batch_size", "Queries in one batch.", buckets=(1, 2, 4, 8, 16), registry=self.registry
        )
        self.searches_waiting = Gauge("midreel_searches_waiting", "Queries that wait.", registry=self.registry)
        self.videos = Gauge("midreel_videos", "Videos in the library.", registry=self.registry)
        self.jobs = Gauge("midreel_jobs_unfinished", "Jobs that run or wait.", registry=self.registry)
        self.thumbnails = Counter("midreel_thumbnails", "Thumbnails.", ["cache"], registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Counted:
    """Counts what passes through it, by the route's pattern: addresses are endless, patterns are few."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.requests.labels(method, route, message["status"]).inc()
                self._metrics.seconds.labels(route).observe(time.perf_counter() - start)
            await send(message)

        await self._app(scope, receive, counted)

"""Prometheus metrics of one application: requests, searches, jobs and thumbnails."""

import time

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = CONTENT_TYPE_LATEST
_METHODS = frozenset(("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"))
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # seconds


class Metrics:
    """The metrics of one application. Each application has its own registry, so two of them do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "midreel_http_requests", "HTTP requests.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "midreel_http_seconds",
            "Seconds until a response started.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.search_seconds = Histogram(
            "midreel_search_seconds", "Seconds for one batch of searches.", buckets=_BUCKETS, registry=self.registry
        )
        self.batch_size = Histogram(
            "midreel_search_batch_size", "Queries in one batch.", buckets=(1, 2, 4, 8, 16), registry=self.registry
        )
        self.searches_waiting = Gauge("midreel_searches_waiting", "Queries in the queue.", registry=self.registry)
        self.videos = Gauge("midreel_videos", "Videos in the library.", registry=self.registry)
        self.jobs = Gauge("midreel_jobs_unfinished", "Queued and running jobs.", registry=self.registry)
        self.thumbnails = Counter(
            "midreel_thumbnails", "Thumbnails, by cache hit or miss.", ["cache"], registry=self.registry
        )

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Count and time the requests of each route.

    The label is the pattern of the route, such as `/v1/videos/{video_id}`. A label per URL would grow without limit.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.requests.labels(method, route, message["status"]).inc()
                self._metrics.seconds.labels(route).observe(time.perf_counter() - start)
            await send(message)

        await self._app(scope, receive, send_counted)

"""Metrics of a server, in the form that Prometheus reads."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        at = {"namespace": "rewardedit", "registry": self.registry}
        self.requests = Counter("requests", "Answered requests", ("path", "status"), **at)
        self.seconds = Histogram("request_seconds", "Time to answer", ("path",), buckets=SECONDS, **at)
        self.scores = Counter("scores", "Scores by scorer and outcome", ("scorer", "outcome"), **at)
        self.batches = Histogram("batch_edits", "Edits scored at once", buckets=BATCH_SIZES, **at)
        self.queue = Gauge("queue_edits", "Edits that wait", **at)
        self.workers = Gauge("workers_ready", "Workers that can score", **at)
        self.restarts = Counter("worker_restarts", "Workers that died and were started again", **at)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

"""The same application on Ray Serve, for fleets: each replica has its own queue and its own scorers."""

import dataclasses
import re
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from rewardedit.models.extras import install_command
from rewardedit.serving.batching import FAILED
from rewardedit.serving.run import SIGNALS, listen, url_of
from rewardedit.serving.scorer_set import LoadedScorers, ScorerSet
from rewardedit.serving.settings import TOKEN, ServeConfig
from rewardedit.untrusted import printable

NAME = "rewardedit"
END_SECONDS = 60.0  # that a replica has to answer what it has accepted
ERROR = re.compile(r"[\w.]*(Error|Exception): ")  # how the last line of a traceback begins


@dataclass(frozen=True)
class ReadyScorers(ScorerSet):
    """Scorers that this process has loaded."""

    loaded: LoadedScorers | None = None

    def load(self, batch_size: int) -> LoadedScorers:
        assert self.loaded is not None
        return self.loaded


class Replica:
    """One of Ray's replicas, which ends it and starts another once its scorers have failed for good."""

    app: FastAPI  # set by Ray Serve

    def check_health(self) -> None:
        """Raises RuntimeError if nothing can be scored any more; Ray Serve calls it every few seconds."""
        if self.app.state.service.batcher.failed:
            raise RuntimeError(FAILED)


def ray_application(scorers: ScorerSet, config: ServeConfig, gpus: float) -> Any:
    """The application as Ray Serve deploys it, with `config.replicas` replicas.

    Args:
        gpus: that each replica has for itself.

    Raises:
        ValueError: if Ray Serve is not installed.
    """
    serve = _ray_serve()
    one_replica = dataclasses.replace(config, replicas=1)  # in each of Ray's

    def build() -> Any:
        from rewardedit.serving.app import make_app

        # here, as Ray reports no error of an application's start
        loaded = scorers.load(one_replica.batch_size)
        return make_app(ReadyScorers(scorers.specs, scorers.options, loaded), one_replica, wait=True)

    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        name=NAME,
        num_replicas=config.replicas,
        max_ongoing_requests=config.max_queue,
        graceful_shutdown_timeout_s=END_SECONDS,
        ray_actor_options={"num_gpus": gpus},
    )
    return deployment.bind()


def run_on_ray_serve(scorers: ScorerSet, config: ServeConfig) -> None:
    """Deploys the application on the Ray cluster at RAY_ADDRESS, or on this machine, until SIGTERM or SIGINT.

    Raises:
        ValueError: if Ray Serve is not installed, the address cannot be listened on, a Ray Serve that runs on
            the cluster has no place for the application, or the scorers cannot be loaded.
    """
    serve = _ray_serve()
    import ray

    is_own_ray = not ray.is_initialized()
    if is_own_ray:
        ray.init(log_to_driver=False)
    try:
        is_shared = _has_place(config)
        port = config.port
        if not is_shared:
            # Ray reports late that it cannot listen, and not which port it took for 0
            with listen(config) as listener:
                port = listener.getsockname()[1]
        names = ", ".join(scorers.specs)
        address = url_of(config.host, port)
        print(f"loading {names} for {address} (its page: /docs)", file=sys.stderr, flush=True)
        if not is_shared:
            serve.start(http_options={"host": config.host, "port": port})
        gpus = 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0
        try:
            _run(serve, ray_application(scorers, config, gpus))
        finally:
            if not is_shared and not serve.status().applications:  # others may have come
                serve.shutdown()
    finally:
        if is_own_ray:
            ray.shutdown()


def _has_place(config: ServeConfig) -> bool:
    """True if a Ray Serve that runs on the cluster has a place for the application; False if none runs.

    Raises:
        ValueError: if it listens on another address than the settings', which it would not follow; without a
            token; if another application is at / or has this one's name.
    """
    from ray.serve.context import _get_global_client  # no public function tells where Ray Serve listens

    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return False
    at = client.http_config
    if (at.host, at.port) != (config.host, config.port):
        raise ValueError(
            f"expected --host {at.host} --port {at.port}, on which the cluster's Ray Serve listens; got "
            f"{config.host} and {config.port}; give these, or take another cluster"
        )
    if config.token is None:
        raise ValueError(
            f"the cluster's Ray Serve is shared: expected a token; got none; set {TOKEN}, e.g. to the output "
            "of: openssl rand -hex 32"
        )
    for name, application in client.get_serve_details()["applications"].items():
        if name == NAME or application["route_prefix"] == "/":
            raise ValueError(
                f"expected a Ray Serve whose / is free; {printable(name, 100)} is there; delete it, or take "
                "another cluster"
            )
    return True


def _run(serve: Any, application: Any) -> None:
    """Runs the application until SIGTERM or SIGINT."""
    from ray.serve.exceptions import RayServeException

    try:
        try:
            serve.run(application, name=NAME, route_prefix="/")
        except (RuntimeError, RayServeException) as error:
            raise ValueError(_reason(serve, str(error))) from error
        print("ready", file=sys.stderr, flush=True)
        _wait_for_signal()
    finally:
        serve.delete(NAME)  # once its replicas have answered what they accepted


def _reason(serve: Any, message: str) -> str:
    """The error of a replica that could not be started, from the end of its traceback; else what Ray told."""
    application = serve.status().applications.get(NAME)
    deployment = application.deployments.get(NAME) if application else None
    lines = deployment.message.splitlines() if deployment else []
    errors = [line for line in lines if ERROR.match(line)]
    return printable(errors[-1] if errors else message, 300)


def _wait_for_signal() -> None:
    """Returns at SIGTERM or SIGINT; Ray's own handler of SIGTERM reports a crash."""
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in SIGNALS}
    ended.wait()
    for number, handler in before.items():
        signal.signal(number, handler)


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ValueError(f"engine ray needs Ray Serve: {install_command('ray-serve')}") from error
    return serve

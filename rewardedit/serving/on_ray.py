"""The same application on Ray Serve, for fleets: each replica has its own queue and its own scorers."""

import dataclasses
from typing import Any

from fastapi import FastAPI

from rewardedit.models.extras import install_command
from rewardedit.serving.batching import FAILED
from rewardedit.serving.scorer_set import ScorerSet
from rewardedit.serving.settings import ServeConfig

NAME = "rewardedit"


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
    own = dataclasses.replace(config, replicas=1)  # in each of Ray's

    def build() -> Any:
        from rewardedit.serving.app import make_app

        return make_app(scorers, own, wait=True)

    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        name=NAME,
        num_replicas=config.replicas,
        max_ongoing_requests=config.max_queue,
        ray_actor_options={"num_gpus": gpus},
    )
    return deployment.bind()


def run_on_ray_serve(scorers: ScorerSet, config: ServeConfig) -> None:
    """Deploys the application on the Ray cluster at RAY_ADDRESS, or on this machine, and blocks until it is
    interrupted.

    Raises:
        ValueError: if Ray Serve is not installed.
    """
    serve = _ray_serve()
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    gpus = 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0
    serve.start(http_options={"host": config.host, "port": config.port})
    try:
        serve.run(ray_application(scorers, config, gpus), name=NAME, route_prefix="/", blocking=True)
    finally:
        serve.shutdown()


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ValueError(f"engine ray needs Ray Serve: {install_command('ray-serve')}") from error
    return serve

"""The application: routes of all protocols over one service."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from rewardedit import __version__
from rewardedit.serving import flow_factory, unirl, v1
from rewardedit.serving.budget import Refusal
from rewardedit.serving.guards import Guard
from rewardedit.serving.scorer_set import ScorerSet
from rewardedit.serving.service import Service
from rewardedit.serving.settings import ServeConfig
from rewardedit.serving.wire import Health, Problem, ScoreForm, ScoreMany, ScoreOne

DESCRIPTION = (
    "Scores of instruction-guided image edits. Higher is better; an edit that cannot be scored is invalid, "
    "with its reason, and never 0 or NaN."
)
OnFailure = Callable[[BaseException], None]
OnReady = Callable[[], None]


def make_app(
    scorers: ScorerSet,
    config: ServeConfig,
    on_failure: OnFailure | None = None,
    on_ready: OnReady | None = None,
    wait: bool = False,
) -> FastAPI:
    """The application that serves these scorers; it loads them when it is started.

    Args:
        on_failure: is called with the error if the scorers cannot be loaded or fail for good.
        on_ready: is called once they are loaded.
        wait: do not finish starting before the scorers are loaded.
    """
    service = Service(scorers, config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        work = asyncio.create_task(service.batcher.run())
        work.add_done_callback(lambda task: _report(task, on_failure))
        started = asyncio.create_task(_wait_for(service, on_ready))
        if wait:
            await asyncio.wait((started, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        yield
        started.cancel()
        work.cancel()
        await asyncio.wait((work,))
        service.decoders.shutdown(wait=False)

    app = FastAPI(title="rewardedit", version=__version__, description=DESCRIPTION, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(Guard, config=config, metrics=service.metrics)
    app.add_exception_handler(Refusal, _answer_refusal)
    for router in (v1.router, unirl.router, flow_factory.router):
        app.include_router(router)
    _add_operations(app, service)
    _complete_page(app)
    return app


async def _wait_for(service: Service, on_ready: OnReady | None) -> None:
    """Waits until the scorers are loaded."""
    await service.batcher.started.wait()
    if on_ready is not None:
        on_ready()


def _report(work: asyncio.Task[None], on_failure: OnFailure | None) -> None:
    if not work.cancelled() and (error := work.exception()) is not None and on_failure is not None:
        on_failure(error)


async def _answer_refusal(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return JSONResponse({"error": refusal.reason}, refusal.status, refusal.headers)


def _add_operations(app: FastAPI, service: Service) -> None:
    """Adds the routes for those who run the server."""

    async def health(request: Request, response: Response) -> Health:
        """ok once all models are loaded; 503 before. Names of scorers are given with the token only."""
        if not service.is_ready:
            response.status_code = 503
            return Health(status="loading")
        return Health(status="ok", rewards=unirl.rewards_of(service) if request.state.authorised else None)

    async def metrics() -> Response:
        """Requests, scores, batches and the queue, as Prometheus reads them."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    loading: dict[int | str, dict[str, Any]] = {
        503: {"model": Health, "description": "models are still loading"}
    }
    options: dict[str, Any] = {"tags": ["operation"], "response_model_exclude_none": True}
    for path in ("/health", "/flow-factory/{scorer:path}/health"):
        app.add_api_route(path, health, summary="State of the server", responses=loading, **options)
    text = {200: {"content": {"text/plain": {}}}}
    refused: dict[int | str, dict[str, Any]] = {401: {"model": Problem, "description": "the token is wrong"}}
    app.add_api_route(
        "/metrics",
        metrics,
        summary="Metrics",
        response_class=Response,
        responses=text | refused,
        tags=["operation"],
    )


def _complete_page(app: FastAPI) -> None:
    """Adds the bodies that routes read themselves to the OpenAPI page."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            models = (ScoreMany, ScoreOne, ScoreForm, unirl.Samples, flow_factory.ComputeRequest)
            v1.add_schemas(plain(), *models)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

"""`--engine`: the executor of the shards of a command's stages."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

PROCESSES = "processes"
ENGINES = (PROCESSES, "ray")  # the names of `executors.ENGINES`; `rewardedit --help` imports no library


def add_engine_option(parser: Any) -> None:
    """Adds the option to a command that has stages."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=PROCESSES,
        help="how work is distributed: local processes, or the Ray cluster at RAY_ADDRESS "
        "(default: processes)",
    )


def stages_made_by(engine: str | None) -> AbstractContextManager[None]:
    """Context in which this engine computes the stages; None for a command without stages."""
    if engine in (None, PROCESSES):
        return nullcontext()
    from rewardedit.stages.executors import use_engine

    return use_engine(engine)

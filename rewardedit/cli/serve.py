"""`rewardedit serve --scorer NAME …`: scores over HTTP."""

import argparse
from typing import Any

from rewardedit.cli.score import EXAMPLES, JUDGE, chosen_scorers
from rewardedit.cli.score_input import add_world_option

THREADS = "processes"  # name of the engine that needs no cluster
PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")


def add_parser(commands: Any) -> None:
    epilog = "Off loopback the environment variable REWARDEDIT_TOKEN holds the token that clients must send."
    p = commands.add_parser("serve", help="serve scores over HTTP", epilog=epilog)
    p.add_argument(
        "--scorer", nargs="+", action="extend", metavar="NAME", help=f"{EXAMPLES} (default: {JUDGE})"
    )
    p.add_argument("--checkpoint", help="for the scorers that read one: a hub name or a folder")
    add_world_option(p)
    _add_settings(p)
    p.add_argument(
        "--engine",
        choices=(THREADS, "ray"),
        default=THREADS,
        help="what runs the replicas: processes of this machine, or Ray Serve on the cluster at RAY_ADDRESS "
        "(default: processes)",
    )
    p.set_defaults(run=run, parser=p, words=None)


SETTINGS: dict[str, tuple[type, str]] = {
    "host": (str, "address to listen on; 0.0.0.0: all, which needs REWARDEDIT_TOKEN (default: 127.0.0.1)"),
    "port": (int, "port to listen on; 0: any free one (default: 8008)"),
    "replicas": (int, "processes that score, each with a GPU of its own if there are several (default: 1)"),
    "batch_size": (int, "most edits scored at once; fewer above a megapixel (default: 16)"),
    "max_wait_ms": (float, "longest wait in milliseconds for a batch to fill (default: 5)"),
    "max_queue": (int, "edits that may wait; more are refused with 429 (default: 1024)"),
    "max_items": (int, "edits in one request (default: 256)"),
    "max_pixels": (int, "pixels of one image (default: 16777216)"),
    "max_body_mb": (int, "MiB of one request (default: 128)"),
}


def _add_settings(p: argparse.ArgumentParser) -> None:
    for name, (kind, text) in SETTINGS.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    p.add_argument(
        "--allow-host",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="further names by which clients may address this server",
    )


def run(args: argparse.Namespace) -> None:
    from rewardedit.cli.announce import announce_models
    from rewardedit.cli.small_models import world_of

    config = _config(args)
    options = {"checkpoint": args.checkpoint} if args.checkpoint else {}
    specs = chosen_scorers(args.scorer, world_of(args.world), **options)
    announce_models(specs, **options)

    from rewardedit.serving.scorer_set import ScorerSet

    scorers = ScorerSet(specs, options)
    if args.engine == "ray":
        from rewardedit.serving.on_ray import run_on_ray_serve

        run_on_ray_serve(scorers, config)
    else:
        from rewardedit.serving.run import run_server

        run_server(scorers, config)


def _config(args: argparse.Namespace) -> Any:
    """The settings of the server.

    Raises:
        ValueError: if a package for serving is missing, or a setting does not fit.
    """
    from importlib.util import find_spec

    from rewardedit.models.extras import install_command
    from rewardedit.serving.settings import ServeConfig, token_of_environment

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"serve needs {', '.join(missing)}: {install_command('serve')}")
    values = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    return ServeConfig(**values, allow_host=tuple(args.allow_host or ()), token=token_of_environment())

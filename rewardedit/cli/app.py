"""`rewardedit app`: a page in the browser that edits uploaded images and shows their scores."""

import argparse
import dataclasses
from typing import Any

from rewardedit.cli.edit import (
    add_editor_options,
    load_edit_model,
    print_speedups,
    require_used,
    sampling_options,
)
from rewardedit.cli.score import EXAMPLES, JUDGE, chosen_scorers
from rewardedit.cli.score_input import add_world_option
from rewardedit.models import EDITOR

PACKAGES = ("gradio", "fastapi", "uvicorn", "prometheus_client")
SERVER: dict[str, tuple[type, str]] = {
    "host": (str, "address to listen on; 0.0.0.0: all, which needs REWARDEDIT_TOKEN (default: 127.0.0.1)"),
    "port": (int, "port to listen on; 0: any free one (default: 7860)"),
    "max_pixels": (int, "pixels of an upload (default: 16777216)"),
    "max_body_mb": (int, "MiB of an upload (default: 32)"),
}
LIMITS: dict[str, tuple[type, str]] = {
    "max_candidates": (int, "most candidates of one request (default: 8)"),
    "max_waiting": (int, "requests that may wait for their turn (default: 16)"),
    "size": (int, "shorter side in pixels (default: the image's own, at most the editor's)"),
    "target_score": (float, "score that a reward-conditioned editor's prompt asks for, 0–10 (default: 10)"),
}
DEFAULTS = {"port": 7860, "max_body_mb": 32}


def add_parser(commands: Any) -> None:
    epilog = (
        "Off loopback the environment variable REWARDEDIT_TOKEN holds the password that browsers ask for."
    )
    p = commands.add_parser("app", help="edit and score in the browser", epilog=epilog)
    p.add_argument(
        "--scorer",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"scorers to choose from, {EXAMPLES} (default: {JUDGE})",
    )
    p.add_argument("--checkpoint", help="for the scorers that read one: a hub name or a folder")
    add_world_option(p)
    add_editor_options(p)
    for name, (kind, text) in {**SERVER, **LIMITS}.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    p.add_argument(
        "--allow-host",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="further names by which browsers may address this server",
    )
    p.set_defaults(run=run, parser=p, words=None)


def run(args: argparse.Namespace) -> None:
    config = _config(args)
    from rewardedit.cli.announce import announce_editor, announce_models
    from rewardedit.cli.small_models import world_of

    options = {"checkpoint": args.checkpoint} if args.checkpoint else {}
    world = world_of(args.world)
    specs = chosen_scorers(args.scorer, world, **options)
    args.model = args.model or (world.editor if world else EDITOR)
    announce_editor(args.model)
    announce_models(specs, **options)

    from rewardedit import devices
    from rewardedit.app.run import run_app
    from rewardedit.app.workbench import Workbench
    from rewardedit.scorers import load_scorer

    device = devices.default_device()
    scorers = {name: load_scorer(spec, device=device, **options) for name, spec in specs.items()}
    editor = load_edit_model(args, device)
    require_used(args, editor)
    editor.settings = dataclasses.replace(editor.settings, **sampling_options(args))
    workbench = Workbench(args.model, editor, scorers, device, config)
    run_app(workbench, args.world)

    print_speedups(editor)


def _config(args: argparse.Namespace) -> Any:
    """The settings of the page.

    Raises:
        ValueError: if a package is missing, or a setting does not fit.
    """
    from importlib.util import find_spec

    from rewardedit.models.extras import install_command

    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ValueError(f"app needs {', '.join(missing)}: {install_command('app')}")

    from rewardedit.app.settings import AppConfig
    from rewardedit.serving.settings import ServeConfig, token_of_environment

    server = DEFAULTS | given(args, SERVER)
    hosts = tuple(args.allow_host or ())
    return AppConfig(
        ServeConfig(**server, allow_host=hosts, token=token_of_environment()), **given(args, LIMITS)
    )


def given(args: argparse.Namespace, names: Any) -> dict[str, Any]:
    """The options of these names that the command line gives."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}

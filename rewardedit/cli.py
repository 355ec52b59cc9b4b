"""The `rewardedit` command: train, relabel, edit, score, recipes, data."""

import argparse
import dataclasses
import difflib
import importlib
import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardedit import config as configs

RELABEL_SETTINGS = ("data", "candidates", "relabel")  # of a reward-conditioned recipe, what `relabel` uses
TRAINERS = ("autoencoder", "contrastive", "editor", "refl", "reward_conditioned", "vifi_clip")
JUDGE = "vifi_clip"  # of --best-of: the best without captions, which nobody gives here; see benchmarks/best_of_n.py


class UserError(ValueError):
    """Something the user can put right; the message says how."""


def recipe_folder() -> Path:
    """Where the packaged recipes are."""
    from rewardedit import recipes

    return Path(next(iter(recipes.__path__)))


def recipe_names() -> list[str]:
    return sorted(path.stem for path in recipe_folder().glob("*.yaml"))


def load_recipe(name: str, words: Sequence[str]) -> tuple[Any, Any]:
    """A recipe's trainer module and its resolved config.

    Raises:
        ValueError: on an unknown recipe, trainer or setting.
    """
    path = Path(name)
    if path.suffix != ".yaml":
        path = recipe_folder() / f"{name}.yaml"
        if not path.is_file():
            near = difflib.get_close_matches(name, recipe_names(), 1)
            raise UserError(f"no recipe {name!r}; " + (f"did you mean {near[0]}?" if near else "see rewardedit recipes"))
    values = configs.override({"name": path.stem, **configs.load_yaml(path)}, list(words))
    trainer = values.pop("trainer", None)
    if trainer not in TRAINERS:
        raise UserError(f"{path.name}: trainer: expected one of {', '.join(TRAINERS)}; got {trainer!r}")
    module = importlib.import_module(f"rewardedit.trainers.{trainer}")
    return module, configs.build(module.Config, values)


def train(args: argparse.Namespace) -> None:
    module, config = load_recipe(args.recipe, args.settings)
    folder = Path(args.out or Path("runs") / config.name)
    if args.dry_run:
        print(configs.dump(config))
        print("\n".join(module.plan(config)))
        return
    from rewardedit.trainers import _run

    _run.clear(folder, args.resume, args.overwrite)
    module.main(config, folder, resume=args.resume)


def relabel(args: argparse.Namespace) -> None:
    from rewardedit.trainers import _run, reward_conditioned

    values = configs.override({}, args.settings)
    config = configs.build(reward_conditioned.Config, {"name": "relabel", **values})
    unused = [key for key in values if key not in RELABEL_SETTINGS]
    if unused:
        raise UserError(f"relabel does not use the setting {unused[0]}; it uses those of {', '.join(RELABEL_SETTINGS)}")
    folder = Path(args.out)
    found = reward_conditioned.relabel(config, reward_conditioned.rows_of(config, folder), folder)
    valid = sum(label is not None for label in found.label)
    words = config.relabel.reward_prompt(found.scale).words
    labels = ", ".join(f"{word} {found.label.count(i)}" for i, word in enumerate(words))
    if _run.processes().is_main_process:
        print(f"{len(found.label)} rows, {valid} valid; {labels}\nshards: {folder / 'relabelled'}")


def edit(args: argparse.Namespace) -> None:
    from rewardedit import devices
    from rewardedit.diffusion.editors import load_editor
    from rewardedit.jobs import Request, read_jobs, run_jobs
    from rewardedit.scorers import load_scorer

    jobs = read_jobs(args.input, args.instruction)
    device = devices.default_device()
    judge = args.scorer or (JUDGE if args.best_of > 1 else None)
    scorer = load_scorer(judge).to(device) if judge else None
    dtype = devices.inference_dtype(args.dtype)
    editor = load_editor(args.model, attention=args.attention, device=device, dtype=dtype)
    print(editor.attention)
    given = {"steps": args.steps, "text_guidance": args.text_guidance, "image_guidance": args.image_guidance}
    request = Request(
        model=args.model,
        settings=dataclasses.replace(editor.settings, **{k: v for k, v in given.items() if v is not None}),
        seed=args.seed,
        score=args.score,
        size=args.size,
        best_of=args.best_of,
        scorer=judge,
        mask=args.mask,
        dtype=str(dtype).removeprefix("torch."),
    )
    failed = run_jobs(editor, scorer, jobs, request, Path(args.out))
    if len(failed) < len(jobs):
        print(f"gallery: {Path(args.out) / 'gallery.html'}")
    if failed:
        name, reason = next(iter(failed.items()))
        raise UserError(f"{len(failed)} of {len(jobs)} not edited; {name}: {reason}")


def score(args: argparse.Namespace) -> None:
    from rewardedit import devices
    from rewardedit.batch import EditSample
    from rewardedit.data import Data, open_rows
    from rewardedit.data.table import Table
    from rewardedit.images import load_image, load_mask
    from rewardedit.scorers import load_scorer
    from rewardedit.scoring import score_edits, write_scores

    out = Path(args.out) if args.out else None
    pair = {"--source-caption": args.source_caption, "--target-caption": args.target_caption}
    pair = {**pair, "--target": args.target, "--mask": args.mask}
    given = [option for option, value in pair.items() if value is not None]
    if given and len(args.input) != 3:
        raise UserError(f"{given[0]} goes with SOURCE EDITED INSTRUCTION; rows of a table or data set have their own")
    if out is not None and out.suffix not in (".parquet", ".json"):
        raise UserError(f"--out {args.out}: expected a name that ends in .parquet or .json")
    size, policy, rows = args.size, "crop", None
    if all("=" in word for word in args.input):
        data = configs.build(Data, configs.override({}, args.input))
        size, policy, rows = size or data.size, data.policy, open_rows(data)
    elif len(args.input) == 3:
        source, edited, instruction = args.input
        if not instruction.strip():
            raise UserError("the instruction is empty; say what was to change")
        captions = {"source_caption": args.source_caption, "target_caption": args.target_caption}
        others = {"target": load_image(args.target) if args.target else None}
        if args.mask:
            others["mask"] = load_mask(args.mask)
        rows = [EditSample(Path(edited).stem, load_image(source), instruction, load_image(edited), **others, **captions)]
    elif len(args.input) == 1:
        rows = Table(args.input[0])
    else:
        raise UserError('expected SOURCE EDITED "INSTRUCTION", a table, or settings such as name=magicbrush path=…')
    device = devices.default_device()
    options = {"checkpoint": args.checkpoint} if args.checkpoint else {}
    scorers = {name: load_scorer(name, **options).to(device) for name in args.scorer}
    if args.heatmap:
        if len(rows) != 1 or len(scorers) != 1:
            raise UserError(f"--heatmap: expected one edit and one scorer; got {len(rows)} and {len(scorers)}")
        draw_heatmap(rows[0], next(iter(scorers.values())), Path(args.heatmap), device)
    records = score_edits(rows, scorers, size, policy, device)
    if out is not None:
        write_scores(records, out)
        print(f"{len(records)} scores, {sum(not r['valid'] for r in records)} invalid: {out}", file=sys.stderr)
    if args.json:
        print(json.dumps(records, indent=2))
    elif out is None:
        for r in records:
            parts = "".join(f"  {name} {value:.4f}" for name, value in r["parts"].items())
            print(f"{r['id']}  {r['scorer']}  " + (f"{r['score']:.4f}{parts}" if r["valid"] else f"invalid: {r['reason']}"))
    if not any(r["valid"] for r in records):
        raise UserError(f"nothing could be scored; {records[0]['id']}: {records[0]['reason']}")


def draw_heatmap(sample: Any, scorer: Any, path: Path, device: str) -> None:
    """Writes source, edit and heat map side by side."""
    import torch

    from rewardedit.batch import collate
    from rewardedit.heatmap import draw_heat, heat_map
    from rewardedit.images import to_pil
    from rewardedit.scoring import at_source_size

    batch = collate([at_source_size(sample)]).to(device)
    heat = draw_heat(batch.edited, heat_map(scorer, batch))
    to_pil(torch.cat([batch.source[0], batch.edited[0], heat[0]], dim=2)).save(path)
    print(f"heat map: {path} (source, edit, heat; green: this change raised the score, red: it lowered it)", file=sys.stderr)


def recipes(args: argparse.Namespace) -> None:
    for name in recipe_names():
        first = (recipe_folder() / f"{name}.yaml").read_text().splitlines()[0].lstrip("# ")
        print(f"{name:<36}{first}")


def data(args: argparse.Namespace) -> None:
    from rewardedit.data.shapes import BACKDROPS, Shapes
    from rewardedit.data.shapes.sheet import draw_sheet

    world = Shapes(args.split, args.seed, tuple(args.backdrops or BACKDROPS))
    if args.n < 1:
        raise UserError(f"-n: expected at least 1; got {args.n}")
    draw_sheet(Path(args.sheet), world, args.n)
    print(args.sheet)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="rewardedit", description="Reward models for instruction-guided image editing.")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    p = commands.add_parser("train", help="run a recipe: rewardedit train quickstart train.lr=1e-4")
    p.add_argument("recipe", help="a name from `rewardedit recipes`, or a path to a .yaml file")
    p.add_argument("settings", nargs="*", metavar="key=value", help="settings laid over the recipe; dots reach inside groups")
    p.add_argument("--out", help="the run's folder (default: runs/NAME)")
    p.add_argument("--dry-run", action="store_true", help="check everything and print the plan, without computing")
    p.add_argument("--resume", action="store_true", help="go on where an interrupted run stopped")
    p.add_argument("--overwrite", action="store_true", help="remove an earlier run in the same folder first")
    p.set_defaults(run=train, parser=p, words="settings")

    p = commands.add_parser("relabel", help="score a data set into Parquet shards with labels and texts")
    p.add_argument(
        "settings", nargs="*", metavar="key=value", help="e.g. data.name=table data.path=edits relabel.scorer=clip_d"
    )
    p.add_argument("--out", required=True, help="folder for the shards")
    p.set_defaults(run=relabel, parser=p, words="settings")

    p = commands.add_parser("edit", help="edit pictures")
    p.add_argument(
        "input", metavar="INPUT", help="a picture, a folder of them, or a table with the columns source and instruction"
    )
    p.add_argument(
        "instruction", nargs="*", metavar="INSTRUCTION", help="what to change; several are applied one after another"
    )
    p.add_argument("--out", required=True, help="folder for the edited pictures")
    p.add_argument("--model", default="shapes-editor", help="hub name, pipeline folder or run folder (default: %(default)s)")
    p.add_argument(
        "--score",
        type=float,
        default=10.0,
        help="what a reward-conditioned editor is asked for, 0–10 (default: its best)",
    )
    p.add_argument("--best-of", type=int, default=1, metavar="N", help="make N edits and keep the one with the best score")
    p.add_argument("--scorer", help=f"e.g. clip_d:0.7,l1:0.3; chooses, and is written down (with --best-of: {JUDGE})")
    p.add_argument("--mask", help='"auto": a second round where the first changed the picture; or a mask file, white: change')
    p.add_argument("--size", type=int, help="scale the shorter side to this many pixels")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--steps", type=int)
    p.add_argument("--text-guidance", type=float)
    p.add_argument("--image-guidance", type=float)
    p.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of the editor's weights (default: float16 on a GPU, float32 on a CPU)",
    )
    p.add_argument("--attention", choices=("auto", "xformers", "sdpa"), default="auto")
    p.set_defaults(run=edit, parser=p, words="instruction")

    p = commands.add_parser("score", help="score edits", epilog="pictures of another size than the source's are brought to it")
    p.add_argument(
        "input",
        nargs="+",
        metavar="INPUT",
        help='SOURCE EDITED "INSTRUCTION"; or a table with these columns; or a data set, e.g. name=magicbrush path=FOLDER',
    )
    p.add_argument("--scorer", nargs="+", default=["clip_d"], metavar="NAME", help="e.g. clip_d l1 clip_d:0.7,l1:0.3")
    p.add_argument("--checkpoint", help="for the scorers that read one: a hub name or a folder")
    p.add_argument("--source-caption", help="of a pair")
    p.add_argument("--target-caption", help="of a pair")
    p.add_argument("--target", metavar="FILE", help="of a pair: the ground-truth edit")
    p.add_argument("--mask", metavar="FILE", help="of a pair: white where change is wanted")
    p.add_argument("--size", type=int, help="bring pictures to this many pixels a side (cutting) and score in batches")
    p.add_argument("--out", metavar="FILE", help="write all scores to a .parquet or .json file")
    p.add_argument("--json", action="store_true", help="print all scores as JSON")
    p.add_argument("--heatmap", metavar="FILE", help="draw where a differentiable scorer sees one edit succeed or fail (.png)")
    p.set_defaults(run=score, parser=p, words="input")

    p = commands.add_parser("recipes", help="list the recipes")
    p.set_defaults(run=recipes, parser=p, words=None)

    p = commands.add_parser("data", help="look at a data set")
    p.add_argument("name", choices=("shapes",))
    p.add_argument("--sheet", required=True, help="where to draw the contact sheet (.png)")
    p.add_argument("--split", choices=("train", "val", "test"), default="val")
    p.add_argument("--backdrops", nargs="*", choices=("plain", "textured", "photo"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("-n", type=int, default=14, help="how many samples (default: %(default)s)")
    p.set_defaults(run=data, parser=p, words=None)
    return top


def quiet() -> None:
    """Keeps the libraries' chatter off the terminal: a missing torchvision is expected, weights load without a bar."""
    import transformers
    from diffusers.utils import logging as diffusers_logging

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; settings and instructions may stand before, between and after options.

    argparse takes words of a list in one place only and leaves the others: they are added here.
    """
    args, left = parser().parse_known_args(argv)
    if left and (args.words is None or any(word.startswith("-") for word in left)):
        args.parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        setattr(args, args.words, [*getattr(args, args.words), *left])
    return args


def sentence(error: Exception) -> str:
    """The first line of what an error says, without Python's quotes around it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    words = error.args[0] if isinstance(error, KeyError) and error.args else error
    lines = str(words).splitlines()
    return lines[0] if lines else type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit codes: 0 done, 1 stopped by what was computed, 2 the user's to put right, 130 interrupted."""
    args = parse(argv)
    try:
        if args.run is not recipes:  # which needs none of the libraries
            quiet()
        args.run(args)
    except KeyboardInterrupt:
        print("interrupted; go on with --resume", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        print(f"rewardedit: {sentence(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        print(f"rewardedit: {type(error).__name__}: {sentence(error)} (--debug shows where)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

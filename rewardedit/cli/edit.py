"""`rewardedit edit INPUT INSTRUCTION …`"""

import argparse
import dataclasses
import inspect
from pathlib import Path
from typing import Any

from rewardedit.cli.score import JUDGE, read_scorer
from rewardedit.cli.score_input import add_columns_option, add_world_option, read_columns_option
from rewardedit.models import EDITOR, names_in
from rewardedit.scorer_spec import ScorerSpec, spec_name

OUT = "edited"  # the default folder
BEST = 10.0  # the default score that is requested from a reward-conditioned editor


def add_parser(commands: Any) -> None:
    p = commands.add_parser("edit", help="edit images")
    p.add_argument(
        "input",
        metavar="INPUT",
        help="an image, a folder of them, or a table with the columns source and instruction",
    )
    p.add_argument(
        "instruction",
        nargs="*",
        metavar="INSTRUCTION",
        help="what to change; several are applied one after another",
    )
    p.add_argument("--out", default=OUT, help=f"folder for the edited images (default: {OUT})")
    add_editor_options(p)
    add_world_option(p)
    p.add_argument(
        "--target-score",
        type=float,
        help="the score that a reward-conditioned editor's prompt asks for, 0–10 (default: its best)",
    )
    p.add_argument(
        "--best-of",
        type=int,
        default=1,
        metavar="N",
        help="make N edits and keep the one with the best score; up to 16 are made at once, fewer if memory "
        "runs out",
    )
    p.add_argument(
        "--scorer",
        help=f"scorer that ranks the candidates; its score is saved (with --best-of: {JUDGE}), "
        "e.g. clip_d:0.7,l1:0.3",
    )
    p.add_argument(
        "--mask",
        help='a second round where the first changed the image ("auto"), or where the objects are that the '
        'instruction names ("{bpm: {regions: …}}", with its models); or a mask file, where change is wanted '
        "transparent, or white in one without transparency",
    )
    p.add_argument(
        "--overwrite", action="store_true", help="replace edits in --out that another request made"
    )
    add_columns_option(p)
    p.add_argument("--size", type=int, help="scale the shorter side to this many pixels")
    p.add_argument("--seed", type=int, default=0, help="random seed of the first edit (default: 0)")
    p.set_defaults(run=run, parser=p, words="instruction")


def add_editor_options(p: argparse.ArgumentParser) -> None:
    """The options of commands that edit images: the editor, and how it samples."""
    p.add_argument(
        "--model",
        help=f"hub name, pipeline folder or run folder (default: {EDITOR})",
    )
    p.add_argument(
        "--lora", metavar="FOLDER", help="LoRA weights for the model, as diffusers or a recipe saved them"
    )
    p.add_argument("--steps", type=int, help="denoising steps (default: the editor's own)")
    p.add_argument("--guidance-scale", type=float, help="weight of the instruction (default: the editor's)")
    p.add_argument("--image-guidance-scale", type=float, help="weight of the source (default: the editor's)")
    p.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="number type of the editor's weights (default: float32 on a CPU; on a GPU float16 for Stable "
        "Diffusion, bfloat16 for FLUX and Qwen)",
    )
    p.add_argument(
        "--quantize",
        choices=("4bit",),
        help="store the editor's linear layers in 4 bits (FLUX and Qwen, for smaller GPUs; default: as they "
        "are, or as they were when its LoRA was trained)",
    )
    p.add_argument(
        "--attention",
        choices=("auto", "xformers", "sdpa", "eager"),
        default="auto",
        help="implementation of attention (default: the faster of xformers and sdpa, by a short test)",
    )
    p.add_argument(
        "--compile",
        action="store_true",
        help="compile the editor's blocks with torch.compile: the first edit takes longer, later ones less",
    )
    p.add_argument(
        "--graphs",
        action="store_true",
        help="record the editor's steps as CUDA graphs and replay them: for small batches on a GPU",
    )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of sampling that the command line gives, by their names in `SamplingConfig`."""
    options = {
        "num_inference_steps": args.steps,
        "guidance_scale": args.guidance_scale,
        "image_guidance_scale": args.image_guidance_scale,
    }
    return {name: value for name, value in options.items() if value is not None}


def load_edit_model(args: argparse.Namespace, device: str) -> Any:
    """Loads the editor that `add_editor_options` describe."""
    from rewardedit import devices
    from rewardedit.diffusion.editors import load_editor

    dtype = "auto" if args.dtype is None else devices.inference_dtype(args.dtype)
    return load_editor(
        args.model,
        lora=args.lora,
        attention=args.attention,
        device=device,
        dtype=dtype,
        compile=args.compile,
        graphs=args.graphs,
        quantize=args.quantize or "auto",
    )


def has_models(mask: ScorerSpec | None) -> bool:
    """True for a mask that BPM's models find: no file, and not the change itself."""
    return mask == "bpm" or isinstance(mask, dict)


def require_used(args: argparse.Namespace, editor: Any) -> None:
    """Raises ValueError if an option has no effect on an editor."""
    if args.target_score is not None and editor.prompt is None:
        raise ValueError(
            f"--target-score has no effect on {args.model}, which is not reward-conditioned; leave it out, "
            "or --model a run of reward conditioning"
        )
    taken = inspect.signature(editor.pipe.__call__).parameters
    if args.image_guidance_scale is not None and "image_guidance_scale" not in taken:
        raise ValueError(f"--image-guidance-scale has no effect on {args.model}; leave it out")


def print_speedups(editor: Any) -> None:
    """Prints what became of `--compile` and `--graphs`, once the editor has run."""
    for record in (editor.compilation, editor.replay):
        if record is not None:
            print(record, flush=True)


def run(args: argparse.Namespace) -> None:
    from rewardedit import devices
    from rewardedit.cli.announce import announce_editor, announce_models, announce_scorers
    from rewardedit.cli.small_models import MODEL, SCORER, file_size, in_world, warn_of_small_models, world_of
    from rewardedit.data.edit_jobs import read_jobs
    from rewardedit.diffusion.editors import SamplingConfig
    from rewardedit.editing import EditRunConfig, open_masks, require_numbers, run_edits
    from rewardedit.scorers import load_scorer
    from rewardedit.scorers.load import packaged_models

    # Faults of the input are reported before a model is loaded.
    jobs = read_jobs(args.input, args.instruction, read_columns_option(args.columns))
    target_score = BEST if args.target_score is None else args.target_score
    require_numbers(args.best_of, args.size, target_score)
    options = sampling_options(args)
    SamplingConfig(**options)  # refuses values that no editor takes
    mask = read_scorer(args.mask) if args.mask else None
    if mask not in (None, "auto") and not has_models(mask):
        open_masks(mask, "cpu")
    device = devices.default_device()
    world = world_of(args.world)
    args.model = args.model or (world.editor if world else EDITOR)
    judge = read_scorer(args.scorer) if args.scorer else world.judge if world else JUDGE
    judge = in_world(judge, world) if args.scorer or args.best_of > 1 else None
    mask = in_world(mask, world) if has_models(mask) else mask
    size = file_size(jobs[0].path)
    warn_of_small_models({"--model": names_in(args.model)}, size, MODEL)
    warn_of_small_models({"--scorer": packaged_models(judge) if judge else set()}, size, SCORER)
    used = [spec for spec in (judge, mask if has_models(mask) else None) if spec]
    announce_scorers(used)
    announce_editor(args.model)
    announce_models({spec_name(spec): spec for spec in used})
    scorer = load_scorer(judge, device=device) if judge else None
    editor = load_edit_model(args, device)
    print(editor.attention)
    require_used(args, editor)

    config = EditRunConfig(
        model=args.model,
        settings=dataclasses.replace(editor.settings, **options),
        seed=args.seed,
        target_score=target_score,
        size=args.size,
        best_of=args.best_of,
        scorer=judge,
        mask=mask,
        dtype=str(editor.pipe.dtype).removeprefix("torch."),
        lora=args.lora,
        quantize=editor.quantize,
    )
    failed = run_edits(editor, scorer, jobs, config, Path(args.out), args.overwrite)

    print_speedups(editor)
    if len(failed) < len(jobs):
        print(f"edited images are in {args.out}; gallery: {Path(args.out) / 'gallery.html'}")
    if failed:
        name, reason = next(iter(failed.items()))
        raise ValueError(f"{len(failed)} of {len(jobs)} not edited; {name}: {reason}")

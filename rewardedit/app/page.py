"""The page itself: fields for a request on the left, its candidates on the right."""

import logging
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from rewardedit.app.photo import photo_field, read_photo
from rewardedit.app.workbench import CAPTIONS, MAX_SEED, MAX_STEPS, Candidate, EditRequest, Ranking, Workbench
from rewardedit.untrusted import printable

KEPT_SECONDS = 3600  # that uploads and edits stay on disk, checked as often
STYLE = """
.candidates .grid-wrap {min-height: 0 !important; max-height: none !important; height: auto !important}
.candidates .gallery-container:has(.preview) {min-height: 420px}
.downloads .label-clear-button {display: none}
@media (max-width: 700px) {
  .candidates .grid-container {grid-template-columns: repeat(2, minmax(0, 1fr)) !important}
}
.scores {overflow-x: auto}
.scores table {border-collapse: collapse; width: 100%; border: 0 !important}
.scores th, .scores td {padding: 4px 8px !important; text-align: right !important}
.scores th, .scores td {border: 0 !important; border-bottom: 1px solid #8884 !important}
.scores tr {border: 0 !important}
.scores th:first-child, .scores td:first-child {text-align: left !important; white-space: nowrap}
.scores .best {font-weight: bold}
.scores td.reason {color: #c33; font-size: 85%; white-space: normal}
"""
ERROR_SECONDS = 20
logger = logging.getLogger(__name__)


def make_page(workbench: Workbench, examples: Sequence[tuple[str, str]], note: str = "") -> gr.Blocks:
    """The page of an editor and its scorers.

    Args:
        examples: files of images in gradio's folder, each with an instruction.
        note: below the title.
    """
    names = list(workbench.scorers)
    with gr.Blocks(analytics_enabled=False, title="rewardedit", delete_cache=(KEPT_SECONDS,) * 2) as page:
        gr.Markdown(f"# rewardedit\nEditor: {printable(workbench.model, 200)}. {note}")
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                fields = _request_fields(workbench, names)
                button = gr.Button("Edit", variant="primary")
            with gr.Column(scale=2, min_width=320):
                results = _result_fields()
        if examples:
            gr.Examples(list(map(list, examples)), fields[:2], label="Examples")
        button.click(
            _handler(workbench),
            fields,
            results,
            api_name="edit",
            concurrency_limit=1,
            show_progress_on=results[1],
        )
    return page.queue(max_size=workbench.config.max_waiting, default_concurrency_limit=1, api_open=False)


def _request_fields(workbench: Workbench, names: list[str]) -> list[Any]:
    """Fields of a request, in the order of the arguments of `_handler`."""
    several = len(names) > 1
    most = workbench.config.max_candidates
    steps = workbench.editor.settings.num_inference_steps
    photo = photo_field(label="Image", sources=["upload", "clipboard"], height=300, buttons=[])
    instruction = gr.Textbox(label="Instruction", placeholder="make it winter", max_length=1000)
    count = gr.Slider(1, most, value=min(4, most), step=1, precision=0, label="Candidates", visible=most > 1)
    ranked_by = gr.Radio(names, value=names[0], label="Choose the best by", visible=several)
    shown = gr.CheckboxGroup(names, value=names, label="Show the scores of", visible=several)
    with gr.Accordion("More", open=False):
        seed = gr.Number(0, label="Seed of the first candidate", precision=0, minimum=0, maximum=MAX_SEED)
        least = min(steps, MAX_STEPS)
        step_count = gr.Slider(1, MAX_STEPS, value=least, step=1, precision=0, label="Denoising steps")
        captions = []
        for name in CAPTIONS:
            which = "image" if name == "source_caption" else "edit"
            captions.append(gr.Textbox(label=f"Caption of the {which}, for scorers that read one"))
    return [photo, instruction, count, ranked_by, shown, seed, step_count, *captions]


def _result_fields() -> list[Any]:
    """Fields of a ranking, in the order of the values of `show`."""
    summary = gr.Markdown("The candidates appear here.")
    looks: dict[str, Any] = {"columns": 4, "height": "auto", "object_fit": "contain", "interactive": False}
    looks |= {"show_label": False, "buttons": ["download", "fullscreen"], "elem_classes": "candidates"}
    with gr.Tab("Edits"):
        edits = gr.Gallery(**looks)
    with gr.Tab("Changed area"):
        gr.Markdown("White: the edit differs from the image.")
        changed = gr.Gallery(**looks)
    with gr.Tab("Heat map"):
        legend = gr.Markdown()
        heat = gr.Gallery(**looks)
    scores = gr.HTML(padding=False)
    files = gr.Files(label="Download", interactive=False, visible=False, elem_classes="downloads")
    return [summary, edits, changed, legend, heat, scores, files]


def _handler(workbench: Workbench) -> Any:
    """The function behind the button, which says its errors in words."""

    def edit(
        photo: str | None,
        instruction: str,
        count: float,
        ranked_by: str,
        shown: list[str],
        seed: float | None,
        steps: float | None,
        source_caption: str,
        target_caption: str,
    ) -> tuple[Any, ...]:
        try:
            if photo is None:
                raise ValueError("image: expected one; got none; upload it first")
            request = EditRequest(
                read_photo(photo, workbench.config.server.max_pixels),
                instruction or "",
                int(count),
                ranked_by,
                tuple(shown),
                int(seed or 0),
                None if steps is None else int(steps),
                {"source_caption": source_caption or "", "target_caption": target_caption or ""},
            )
            return show(workbench.edit(request), request)
        except ValueError as error:
            raise gr.Error(in_words(error), duration=ERROR_SECONDS, print_exception=False) from None
        except Exception as error:  # any: models may be others' code
            logger.exception("an edit failed")
            said = f"{type(error).__name__}: {in_words(error)}"
            raise gr.Error(said, duration=ERROR_SECONDS, print_exception=False) from None

    return edit


def in_words(error: Exception) -> str:
    """The first line of an error's message, without markup."""
    lines = str(error).splitlines() or [type(error).__name__]
    return escape(printable(lines[0], 300), quote=False)


def show(ranking: Ranking, request: EditRequest) -> tuple[Any, ...]:
    """The values of `_result_fields`; images are written to a folder of gradio's."""
    folder = Path(tempfile.mkdtemp(dir=gr.utils.get_upload_folder()))
    galleries: dict[str, list[tuple[str, str]]] = {"edited": [], "changed": [], "heat": []}
    for place, candidate in enumerate(ranking.candidates, 1):
        caption = _caption(place, candidate, request.ranked_by)
        for kind, images in galleries.items():
            image = getattr(candidate, kind)
            if image is not None:
                file = folder / f"{_file_name(place, candidate, kind)}.png"
                image.save(file)
                images.append((str(file), caption))
    legend = "No chosen scorer has a gradient, so there is no heat map."
    if ranking.heat_of is not None:
        legend = f"Green: the change raised {_short(ranking.heat_of)}. Red: it lowered it. Grey: no effect."
    best = ranking.candidates[0]
    summary = f"Best of {len(ranking.candidates)} by {_short(request.ranked_by)}: seed {best.seed}."
    files = gr.Files([file for file, _ in galleries["edited"]], visible=True, interactive=False)
    table = scores_table(ranking.candidates)
    return summary, galleries["edited"], galleries["changed"], legend, galleries["heat"], table, files


def _file_name(place: int, candidate: Candidate, kind: str) -> str:
    prefix = "best" if place == 1 else str(place)
    return f"{prefix}-seed-{candidate.seed}" + ("" if kind == "edited" else f"-{kind}")


def _caption(place: int, candidate: Candidate, ranked_by: str) -> str:
    prefix = "★ best" if place == 1 else str(place)
    return f"{prefix}: {_number(candidate.scores[ranked_by])}"


def _short(name: str) -> str:
    """A scorer's name as it fits into a caption."""
    return printable(name, 40)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def scores_table(candidates: Sequence[Candidate]) -> str:
    """All scores as HTML, the best candidate first; reasons stand below those that have none."""
    names = list(candidates[0].scores)
    heads = "".join(f"<th>{escape(printable(name, 60))}</th>" for name in names)
    rows = []
    for place, candidate in enumerate(candidates, 1):
        cells = "".join(f"<td>{_number(candidate.scores[name])}</td>" for name in names)
        first = f"{'★' if place == 1 else place} seed {candidate.seed}"
        kind = ' class="best"' if place == 1 else ""
        rows.append(f"<tr{kind}><td>{first}</td>{cells}</tr>")
        for name, reason in candidate.reasons.items():
            line = escape(f"{printable(name, 60)}: {printable(reason, 300)}")
            rows.append(f'<tr><td class="reason" colspan="{len(names) + 1}">{line}</td></tr>')
    return f'<div class="scores"><table><tr><th></th>{heads}</tr>{"".join(rows)}</table></div>'

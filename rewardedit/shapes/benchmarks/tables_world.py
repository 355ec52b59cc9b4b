"""Tables of the offline world, by their names in the pages; benchmarks/tables.py writes them."""

from collections.abc import Callable
from functools import partial

from table_parts import recorded
from tables_adiee import (
    adiee,
    adiee_ablations,
    adiee_data,
    adiee_graded,
    model_or_data,
    vifi_rows,
    vlm,
)
from tables_bench import bench, bench_attacks, bench_editors, bench_reserved, bench_transfer
from tables_bpm import bpm, bpm_best_of, bpm_guidance, bpm_parts, bpm_regions
from tables_dice import dice_ablations, dice_augmented, dice_coherence, dice_detection, dice_editors
from tables_editors import (
    best_of_n,
    by_edit_type,
    comparison,
    editors,
    flow_editor,
    guidance,
    hacking,
    labellers,
    refl,
    refl_watch,
    regions,
    reward_conditioning,
    reward_guidance,
    steps_of_editor,
    text_to_image,
)
from tables_online import online_rl
from tables_scorers import agreement, agreement_by_edit_type, heat, retrieval
from tables_summary import summary

OF_THE_WORLD: dict[str, Callable[[], str]] = {
    "reward-conditioning": reward_conditioning,
    "labellers": labellers,
    "summary": summary,
    **{
        name: partial(recorded, result, write)
        for name, result, write in (
            ("quickstart", "quickstart", comparison),
            ("quickstart-without-captions", "quickstart-without-captions", comparison),
            ("shapes-reward-conditioned", "shapes-reward-conditioned", comparison),
            ("shapes-editor", "shapes-editor", by_edit_type),
            ("steps-of-editor", "shapes-editor", steps_of_editor),
            ("flow-editor", "flow-editor", flow_editor),
            ("shapes-text-to-image", "shapes-text-to-image", text_to_image),
            ("shapes-editors", "shapes-editors", editors),
            ("regions", "shapes-detector", regions),
            ("dice-detection", "dice", dice_detection),
            ("dice-coherence", "dice", dice_coherence),
            ("dice-ablations", "dice-ablations", dice_ablations),
            ("dice-augmented", "dice", dice_augmented),
            ("dice-editors", "dice", dice_editors),
            ("guidance", "guidance", guidance),
            ("best-of-n", "best-of-n", best_of_n),
            ("reward-guidance", "reward-guidance", reward_guidance),
            ("refl", "shapes-refl", refl),
            ("refl-watch", "shapes-refl", refl_watch),
            ("online-rl", "online-rl", online_rl),
            ("hacking", "hacking", hacking),
            ("retrieval", "retrieval", retrieval),
            ("agreement", "agreement", agreement),
            ("agreement-by-kind", "agreement", agreement_by_edit_type),
            ("heat", "heat", heat),
            ("adiee-data", "adiee-data", adiee_data),
            ("adiee-data-damaged", "adiee-data-damaged", adiee_graded),
            ("adiee-data-compared", "adiee-data-compared", adiee_graded),
            ("adiee-data-moved", "adiee-data-moved", adiee_graded),
            ("shapes-vlm", "shapes-vlm", vlm),
            ("adiee", "adiee", adiee),
            ("model-or-data", "model-or-data", model_or_data),
            ("adiee-ablations", "adiee-ablations", adiee_ablations),
            ("vifi-rows", "vifi-rows", vifi_rows),
            ("bpm", "bpm", bpm),
            ("bpm-regions", "bpm", bpm_regions),
            ("bpm-parts", "bpm-parts", bpm_parts),
            ("bpm-guidance", "bpm-guidance", bpm_guidance),
            ("bpm-best-of-8", "bpm-guidance", bpm_best_of),
            ("bench", "bench", bench),
            ("bench-reserved", "bench", bench_reserved),
            ("bench-editors", "bench", bench_editors),
            ("bench-attacks", "bench", bench_attacks),
            ("bench-transfer", "bench", bench_transfer),
        )
    },
}

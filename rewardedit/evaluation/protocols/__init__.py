"""Published benchmarks of scorers: one file each, opened by name."""

from importlib import import_module

from rewardedit.evaluation.protocols.protocol import Benchmark
from rewardedit.nearest import hint

# name on the command line: module and class; imported when it is asked for
BENCHMARKS = {
    "imagenhub": "rewardedit.evaluation.protocols.imagenhub:ImagenHub",
    "genai_bench": "rewardedit.evaluation.protocols.genai_bench:GenAIBench",
    "aurora": "rewardedit.evaluation.protocols.aurora:AuroraPointwise",
    "aurora_pairs": "rewardedit.evaluation.protocols.aurora_pairs:AuroraPairwise",
    "bpm": "rewardedit.evaluation.protocols.bpm:BpmAlignment",
    "bpm_truth": "rewardedit.evaluation.protocols.bpm_truth:BpmTruth",
    "magicbrush": "rewardedit.evaluation.protocols.magicbrush:MagicBrushTable",
    "humanedit": "rewardedit.evaluation.protocols.humanedit:HumanEditRetrieval",
    "editreward_bench": "rewardedit.evaluation.protocols.editreward_bench:EditRewardBench",
}

__all__ = ["BENCHMARKS", "Benchmark", "find_benchmark"]


def find_benchmark(name: str) -> type[Benchmark]:
    """The class of a benchmark.

    Raises:
        ValueError: if there is none of this name.
    """
    if name not in BENCHMARKS:
        raise ValueError(
            f"bench: expected one of {', '.join(BENCHMARKS)}; got {name!r}{hint(name, BENCHMARKS)}"
        )
    module, _, kind = BENCHMARKS[name].partition(":")
    return getattr(import_module(module), kind)

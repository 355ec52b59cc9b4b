"""Access to the programs of the top-level benchmarks/; the programs of this folder import this first."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RESULTS = Path(__file__).parent / "results"
sys.path.append(str(ROOT / "benchmarks"))

from command_line import CommandLine, read_command_line  # noqa: E402

import rewardedit  # noqa: E402
from rewardedit.data.worlds import world  # noqa: E402
from rewardedit.scorer_spec import ScorerSpec, with_options  # noqa: E402
from rewardedit.scorers import Scorer  # noqa: E402

__all__ = ["RESULTS", "ROOT", "CommandLine", "in_world", "load_scorer", "read_command_line"]


def in_world(spec: ScorerSpec) -> ScorerSpec:
    """Returns a scorer's spec with the small models, where it names none itself."""
    return with_options(spec, world("shapes").scorers)


def load_scorer(spec: ScorerSpec, **options: Any) -> Scorer:
    """Loads a scorer with the small models, where none are named."""
    return rewardedit.load_scorer(in_world(spec), **options)

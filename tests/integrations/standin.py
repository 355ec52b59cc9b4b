"""Other projects' packages: those that are installed, else stand-ins written from their stated contracts.

Installed in the suite's environment: unirl and torchmetrics. Stand-ins: Flow-Factory, UniRL's reward service,
ComfyUI. verl-omni and lmms-eval call plain functions and need none.
"""

import sys
from pathlib import Path

import pytest
import yaml

from tests.readme import ROOT, blocks

FOLDER = Path(__file__).parent / "standins"
PAGE = (ROOT / "docs" / "integrations.md").read_text()


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the stand-ins importable, behind everything that is installed."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])


def settings(word: str) -> dict:
    """The page's block of YAML that holds a word."""
    (block,) = [block for block in blocks(PAGE, "yaml") if word in block]
    return yaml.safe_load(block)

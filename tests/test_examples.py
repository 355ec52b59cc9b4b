"""Notebooks of examples/: made from their sources, and run on tiny models under the published names."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

from tests.readme import ROOT, write_images, write_pairs
from tests.test_readme_tasks import SHORT

SOURCES = sorted((ROOT / "examples" / "sources").glob("*.py"))
# replaced before a notebook is run: a short training, and small images
SHORTER = {
    "name=own": f"name=own {shlex.join(SHORT)}",
    "size: 256": "size: 64",
    ", 256)": ", 64)",
    ", 512)": ", 64)",
}


def notebook(source: Path) -> Any:
    return nbformat.read(ROOT / "examples" / f"{source.stem}.ipynb", as_version=4)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_its_source_without_outputs(source):
    """Made anew by: jupytext --to ipynb -o examples/NAME.ipynb examples/sources/NAME.py"""

    def cells(made: Any) -> list[tuple[str, str]]:
        return [(cell.cell_type, cell.source) for cell in made.cells]

    found = notebook(source)
    assert cells(found) == cells(jupytext.read(source))
    assert not any(cell.get("outputs") for cell in found.cells)
    assert not any(re.match(r"%%bash\n#", cell.source) for cell in found.cells), "its commands are comments"
    assert f"]({Path('..', 'examples', source.stem)}.ipynb)" in (ROOT / "docs" / "index.md").read_text()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: Path) -> Path:
    """A folder with the files of a reader, and an environment for the kernel's process."""
    write_images(tmp_path)
    write_pairs(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs(source, here):
    from nbclient import NotebookClient

    found = notebook(source)
    for cell in found.cells:
        for text, shorter in SHORTER.items():
            cell.source = cell.source.replace(text, shorter)
    where = {"metadata": {"path": str(here)}}
    NotebookClient(found, timeout=600, kernel_name="python3", resources=where).execute()

    shown = [output.get("data", {}) for cell in found.cells for output in cell.get("outputs", [])]
    pictures = [data["text/html"] for data in shown if "text/html" in data]
    assert pictures
    assert all("data:image/jpeg;base64," in html for html in pictures)
    if source.stem in ("score", "choose"):
        assert not any("invalid because" in html for html in pictures)

"""`rewardedit bench`: the list, its options, and an end by force."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from rewardedit.cli import main
from rewardedit.evaluation.protocols import BENCHMARKS, find_benchmark
from rewardedit.evaluation.protocols.protocol import Benchmark
from rewardedit.models import resolve_model
from tests.evaluation.protocols.files import photograph, stored, write_table

FILES = ("bench.json", "bench.csv", "bench.html")


def comparisons(folder, n):
    """Comparisons in GenAI-Bench's columns."""
    rows = []
    for i in range(n):
        texts = {"source_prompt": f"photograph {i}", "target_prompt": "", "instruct_prompt": "darker"}
        images = {
            "source_image": stored(photograph(i)),
            "left_output_image": stored(photograph(i, 0.8)),
            "right_output_image": stored(photograph(i, 0.4 + i % 5 / 8)),
        }
        models = {"left_model": "A", "right_model": "B"}
        rows.append({**texts, **images, **models, "vote_type": ("leftvote", "rightvote")[i % 2]})
    return write_table(folder / "test_v1-00000.parquet", rows).parent


def test_the_list_names_paper_size_licence_and_download(capsys):
    assert main(["bench"]) == 0
    said = capsys.readouterr().out
    for name in BENCHMARKS:
        kind = find_benchmark(name)
        assert issubclass(kind, Benchmark)
        about = kind.about
        for text in (name, about.paper, about.size, about.licence, about.download):
            assert text in said


def test_wrong_words_are_refused_by_name(tmp_path, capsys):
    data = str(comparisons(tmp_path / "data", 2))
    out = ["--out", str(tmp_path / "out")]
    scores = tmp_path / "x.csv"
    scores.write_text("id,judge\n0-left,1\n")
    given = ["genai_bench", data, "--from-scores", str(scores)]
    refused = {
        "expected one of imagenhub, genai_bench": ["genai"],
        "expected NAME and at most one PATH": ["genai_bench", data, data],
        "--scorer: name at least one": ["genai_bench", data],
        "--limit: expected at least 2, of a benchmark of retrieval": ["genai_bench", data, "--limit", "3"],
        "--edits: expected EDITOR=FOLDER": ["genai_bench", data, "--edits", "folder"],
        "expected a folder of images; there is none": ["genai_bench", data, "--edits", "a=b"],
        "--edits: the files of genai_bench hold": ["genai_bench", data, "--edits", f"a={tmp_path}"],
        "--scorer: --from-scores gives": [*given, "--scorer", "l1"],
    }
    for message, words in refused.items():
        assert main(["bench", *words, *out]) == 2
        assert message in capsys.readouterr().err


def test_overlap_is_told_and_left_out_on_request(tmp_path, capsys):
    """A scorer whose run was trained on MagicBrush's dev split is measured on nothing of GenAI-Bench."""
    data = str(comparisons(tmp_path / "data", 3))
    run = tmp_path / "run"
    shutil.copytree(resolve_model("shapes/clip"), run / "scorer")
    split = {"name": "magicbrush", "path": "osunlp/MagicBrush", "split": "dev"}
    (run / "config.yaml").write_text(yaml.safe_dump({"data": split}))
    scorer = ["--scorer", f"{{clip_t: {{checkpoint: {run / 'scorer'}}}}}"]
    words = ["bench", "genai_bench", data, *scorer, "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "trained on magicbrush (dev), which holds the sources of 6 items; --exclude-overlap" in said
    rows = json.loads((tmp_path / "out" / "bench.json").read_text())["tables"][0]["rows"]
    assert rows[0]["cells"]["2 answers"]["n"] == 3
    assert main([*words, "--exclude-overlap"]) == 0
    assert "which are left out" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "bench.json").read_text())["tables"][0]["rows"]
    assert rows[0]["cells"]["2 answers"] == {
        "value": None,
        "ci95": None,
        "n": 0,
        "reason": "no pair has an entry for both edits",
    }
    assert rows[1]["cells"]["2 answers"]["n"] == 3  # l1 was trained on nothing


def test_a_refused_item_has_no_score_and_a_reason(tmp_path, capsys):
    """l1 outside of a mask, where there is no mask: its row says why, and l1's own is there."""
    data = str(comparisons(tmp_path / "data", 2))
    words = ["--scorer", "{l1: {region: outside}}", "--out", str(tmp_path / "out")]
    assert main(["bench", "genai_bench", data, *words]) == 0
    said = capsys.readouterr().out
    assert "l1(region=outside): 4 of 4 items without a score: 0-left: " in said
    (table,) = json.loads((tmp_path / "out" / "bench.json").read_text())["tables"]
    assert [row["name"] for row in table["rows"][:2]] == ["l1(region=outside)", "l1"]
    assert table["rows"][0]["cells"]["2 answers"]["value"] == 0


def test_nothing_readable_is_an_error(tmp_path, capsys):
    folder = comparisons(tmp_path / "data", 2)
    rows = [{"source_prompt": "", "target_prompt": "", "instruct_prompt": "darker", "vote_type": "leftvote"}]
    rows[0] |= {
        name: stored(b"broken") for name in ("source_image", "left_output_image", "right_output_image")
    }
    rows[0] |= {"source_prompt": "a photograph", "left_model": "A", "right_model": "B"}
    write_table(folder / "test_v1-00000.parquet", rows)
    words = ["--scorer", "psnr", "--out", str(tmp_path / "out")]
    assert main(["bench", "genai_bench", str(folder), *words]) == 2
    assert "psnr: nothing could be scored; 0-left: source_image: the bytes are not" in capsys.readouterr().err


@pytest.mark.slow
def test_a_kill_leaves_the_same_bytes(tmp_path):
    """Killed once the first of two shards is there, the command goes on and writes the same files."""
    data = str(comparisons(tmp_path / "data", 520))

    def command(out):
        return [
            sys.executable,
            "-m",
            "rewardedit",
            "bench",
            "genai_bench",
            data,
            "--scorer",
            "ssim",
            "--out",
            out,
        ]

    whole = tmp_path / "whole"
    subprocess.run(command(str(whole)), check=True, capture_output=True)
    killed = tmp_path / "killed"
    process = subprocess.Popen(command(str(killed)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not list(killed.rglob("scores-00000.parquet")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    done = {path: path.stat().st_mtime_ns for path in killed.rglob("scores-*.parquet")}
    assert not (killed / "bench.json").exists()
    subprocess.run(command(str(killed)), check=True, capture_output=True)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for name in FILES:
        assert (killed / name).read_bytes() == (whole / name).read_bytes()

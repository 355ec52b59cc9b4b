"""Records stored with scores and labels: the fingerprint of a judge, and the usage of its endpoint."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rewardedit import scoring
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli import main
from rewardedit.data import datasets
from rewardedit.data.digests import file_digests
from rewardedit.scorers import Scorer, WeightedSum, load_scorer
from rewardedit.scorers.load import scorer_fingerprints
from rewardedit.scorers.vlm_judge import VlmJudge
from tests.scorers.test_vlm_judge import Handler, completion, served

HUB_NAME = "me/judge"
ROWS = ["name=shapes", "limit=3", "size=32"]
TOLD = {"model", "endpoint", "model_hash", "seed", "criteria", "apart", "prompt_hash", "decoding"}


@pytest.fixture
def short_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 64 rows."""
    monkeypatch.setattr(datasets, "SHARD_BATCHES", 1)


@pytest.fixture
def on_the_hub(tiny_judge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a judge in the hub's cache, as HUB_NAME: no setting names a file of it."""
    root = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    monkeypatch.setenv("HF_HUB_CACHE", str(root))
    repo = root / f"models--{HUB_NAME.replace('/', '--')}"
    shutil.copytree(tiny_judge, repo / "snapshots" / "abc")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    return repo / "snapshots" / "abc"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from served(monkeypatch)


def train_further(folder: Path) -> None:
    """Moves one weight of a model."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[0]
    weights[name].flatten()[1] += 0.5
    save_file(weights, file, {"format": "pt"})


def interrupted_in(number: int) -> Callable[..., dict[str, Scores]]:
    """Replacement of `score_batch`, interrupted after scoring batch `number` and before it is stored."""
    real = scoring.score_batch
    done: list[int] = []

    def score_batch(batch: EditBatch, scorers: dict[str, Scorer]) -> dict[str, Scores]:
        found = real(batch, scorers)
        done.append(len(batch))
        if len(done) == number:
            raise KeyboardInterrupt
        return found

    return score_batch


def judged_by(name: str, **options: Any) -> str:
    return json.dumps({"vlm_judge": {"checkpoint": name, **options}})


def in_files(folder: Path, text: str) -> list[str]:
    """The files in which a text stands."""
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


# Fingerprints.


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_judge_s_fingerprint_stands_beside_scores_that_are_equal_each_time(
    kind, tiny_judge, tmp_path, capsys
):
    out = tmp_path / f"scores.{kind}"
    words = ["score", *ROWS, "--scorer", "l1", judged_by(tiny_judge), "--out", str(out)]
    assert main(words) == 0
    beside = tmp_path / f"scores.{kind}.made_of.json"
    assert f"made of: {beside}" in capsys.readouterr().err.splitlines()
    first = out.read_bytes(), beside.read_bytes()
    made_of = json.loads(beside.read_text())
    name = f"vlm_judge(checkpoint={tiny_judge})"
    (told,) = made_of["fingerprints"].values()
    assert list(made_of["fingerprints"]) == [name]
    assert told.keys() == TOLD
    assert told == VlmJudge.from_pretrained(tiny_judge).fingerprint
    assert len(told["model_hash"]) == len(told["prompt_hash"]) == 64
    assert told["decoding"] == {"answer": "digits", "dtype": "float32"}
    assert list(made_of["scorers"]) == ["l1", name]
    assert made_of["rows"] == 3
    assert made_of["usage"] == {}
    out.unlink()
    beside.unlink()
    assert main(words) == 0
    assert (out.read_bytes(), beside.read_bytes()) == first


def test_the_fingerprint_of_a_judge_in_a_sum_is_told_by_its_name(tiny_judge, tmp_path):
    judge = {"checkpoint": tiny_judge, "criteria": "hq_edit"}
    spec = json.dumps({"vlm_judge": {"weight": 0.7, **judge}, "l1": {"weight": 0.3}})
    out = tmp_path / "scores.json"
    assert main(["score", *ROWS, "--scorer", spec, "--out", str(out)]) == 0
    made_of = json.loads((tmp_path / "scores.json.made_of.json").read_text())
    (told,) = made_of["fingerprints"].values()
    assert told == {"vlm_judge": VlmJudge.from_pretrained(**judge).fingerprint}
    inner = WeightedSum({"judge": VlmJudge.from_pretrained(**judge)}, {"judge": 1})
    outer = WeightedSum({"inner": inner, "l1": load_scorer("l1")}, {"inner": 1, "l1": 1})
    assert outer.fingerprint == {"inner": {"judge": told["vlm_judge"]}}


def test_scorers_without_a_fingerprint_are_not_loaded_for_it_and_leave_no_file(tiny_judge, tmp_path):
    assert scorer_fingerprints({"a": "l1", "b": "clip_d:0.7,l1:0.3"}, pytest.fail) == {}
    out = tmp_path / "scores.json"
    assert main(["score", *ROWS, "--scorer", judged_by(tiny_judge), "--out", str(out)]) == 0
    assert len(list(tmp_path.iterdir())) == 2
    assert main(["score", *ROWS, "--scorer", "l1", "--out", str(out)]) == 0
    assert list(tmp_path.iterdir()) == [out], "what the scores before were made of"


def test_what_stands_beside_scores_is_no_input_of_them(tmp_path):
    (tmp_path / "data.txt").write_text("what is read")
    before = file_digests({"path": str(tmp_path)}, tmp_path / "scores.parquet")
    (tmp_path / "scores.parquet.made_of.json").write_text("{}")
    assert file_digests({"path": str(tmp_path)}, tmp_path / "scores.parquet") == before
    assert file_digests({"path": str(tmp_path)}) != before


def test_scores_by_other_weights_of_one_name_are_not_gone_on_with(
    on_the_hub, tmp_path, monkeypatch, capsys, short_shards
):
    rows = ["name=shapes", "limit=66", "size=32"]
    out = tmp_path / "scores.parquet"
    words = ["score", *rows, "--scorer", judged_by(HUB_NAME), "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "score_batch", interrupted_in(2))
        assert main(words) == 130
    assert len(list((tmp_path / "scores.parquet.parts").glob("scores-*.parquet"))) == 1
    shutil.copytree(on_the_hub, tmp_path / "before")
    train_further(on_the_hub)
    capsys.readouterr()
    assert main(words) == 2
    refusal = capsys.readouterr().err
    assert f"made with other settings: fingerprints.vlm_judge(checkpoint={HUB_NAME}).model_hash: " in refusal
    assert refusal.count(" there, ") == 1, "nothing else has changed"
    shutil.copytree(tmp_path / "before", on_the_hub, dirs_exist_ok=True)
    assert main(words) == 0
    assert "66 scores, 0 invalid" in capsys.readouterr().err


def test_labels_by_other_weights_of_one_name_are_not_gone_on_with(on_the_hub, tmp_path, capsys):
    words = ["relabel", *[f"data.{word}" for word in ROWS], f"relabel.scorer={judged_by(HUB_NAME)}"]
    words += ["--out", str(tmp_path / "labels")]
    assert main(words) == 0
    labels = tmp_path / "labels" / "relabelled"
    told = VlmJudge.from_pretrained(HUB_NAME).fingerprint
    assert json.loads((labels / "made_of.json").read_text())["fingerprints"] == {"vlm_judge": told}
    scale = json.loads((labels / "scale.json").read_text())
    assert scale["fingerprint"] == told
    assert "usage" not in scale
    assert main(words) == 0
    train_further(on_the_hub)
    capsys.readouterr()
    assert main(words) == 2
    assert "made with other settings: fingerprints.vlm_judge.model_hash: " in capsys.readouterr().err


# Endpoints.


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_what_an_endpoint_was_asked_is_said_and_stands_beside_the_scores(kind, server, tmp_path, capfd):
    out = tmp_path / f"scores.{kind}"
    scorer = judged_by(f"{server}#m", key_variable="OPENAI_API_KEY")
    assert main(["score", *ROWS, "--scorer", scorer, "--out", str(out)]) == 0
    said = capfd.readouterr()
    line = f"endpoint {server}#m: 12 calls, 0 of them failed; 1200 prompt and 84 completion tokens"
    assert line in said.err.splitlines()
    made_of = json.loads((tmp_path / f"scores.{kind}.made_of.json").read_text())
    assert made_of["usage"] == {
        f"{server}#m": {"calls": 12, "failures": 0, "prompt_tokens": 1200, "completion_tokens": 84}
    }
    (told,) = made_of["fingerprints"].values()
    assert (told["model"], told["endpoint"], told["model_hash"], told["seed"]) == ("m", server, None, 0)
    assert told["decoding"] == {"answer": "text", "temperature": 0.0, "max_new_tokens": 256}
    assert Handler.seen[0]["key"] == "Bearer sk-secret"
    assert "sk-secret" not in said.out + said.err
    assert in_files(tmp_path, f"{server}#m") != []
    assert in_files(tmp_path, "sk-secret") == []
    assert len(list(tmp_path.iterdir())) == 2


def test_calls_are_counted_where_the_endpoint_counts_no_tokens(server, tmp_path, capsys):
    def without_usage(text: str) -> tuple[int, bytes]:
        answer = json.loads(completion("Grade: 7"))
        del answer["usage"]
        return 200, json.dumps(answer).encode()

    Handler.reply = staticmethod(without_usage)
    assert main(["score", *ROWS, "--scorer", "vlm_judge", "--checkpoint", f"{server}#m"]) == 0
    line = f"endpoint {server}#m: 12 calls, 0 of them failed; it counts no tokens"
    assert line in capsys.readouterr().err.splitlines()


def test_what_was_asked_before_an_interruption_counts_too(
    server, tmp_path, monkeypatch, capsys, short_shards
):
    """64 rows are kept; the last two are judged in vain, and again."""
    rows = ["name=shapes", "limit=66", "size=32"]
    out = tmp_path / "scores.parquet"
    words = ["score", *rows, "--scorer", "vlm_judge", "--checkpoint", f"{server}#m", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "score_batch", interrupted_in(2))
        assert main(words) == 130
    assert main(words) == 0
    assert len(Handler.seen) == 4 * 68
    assert f"endpoint {server}#m: 272 calls, 0 of them failed; " in capsys.readouterr().err
    made_of = json.loads((tmp_path / "scores.parquet.made_of.json").read_text())
    assert made_of["usage"][f"{server}#m"]["calls"] == 272
    assert not (tmp_path / "scores.parquet.parts").exists()


def has_credit_for(calls: int) -> Callable[[str], tuple[int, bytes]]:
    """Replies of an endpoint that demands payment after some calls."""
    left = [calls]

    def reply(text: str) -> tuple[int, bytes]:
        left[0] -= 1
        return (402, b"{}") if left[0] < 0 else (200, completion("Grade: 7"))

    return reply


@pytest.mark.parametrize("kind", ["", "json", "parquet"])
def test_scores_whose_endpoint_has_no_credit_left_end_and_say_what_was_asked(kind, server, tmp_path, capfd):
    Handler.reply = staticmethod(has_credit_for(5))
    words = ["score", *ROWS, "--scorer", "vlm_judge", "--checkpoint", f"{server}#m"]
    out = ["--out", str(tmp_path / f"scores.{kind}")] if kind else []
    assert main([*words, *out]) == 1
    said = capfd.readouterr().err
    assert "402" in said
    failed = len(Handler.seen) - 5
    assert f"endpoint {server}#m: {len(Handler.seen)} calls, {failed} of them failed; 500 prompt and " in said
    assert not [path for path in tmp_path.iterdir() if path.suffix == f".{kind}"]

    Handler.reply = staticmethod(has_credit_for(100))
    assert main([*words, *out]) == 0
    if kind == "parquet":  # what was in vain is to be paid too
        assert f"endpoint {server}#m: {len(Handler.seen)} calls, " in capfd.readouterr().err


def test_labels_whose_endpoint_has_no_credit_left_end_and_say_what_was_asked(server, tmp_path, capfd):
    words = ["relabel", *[f"data.{word}" for word in ROWS], "relabel.scale=range"]
    words += [f"relabel.scorer={judged_by(f'{server}#m')}", "--out", str(tmp_path / "labels")]
    Handler.reply = staticmethod(has_credit_for(5))
    assert main(words) == 1
    said = capfd.readouterr()
    failed = len(Handler.seen) - 5
    assert f"endpoint {server}#m: {len(Handler.seen)} calls, {failed} of them failed; 500" in said.out
    Handler.reply = staticmethod(has_credit_for(100))
    assert main(words) == 0
    assert (
        f"endpoint {server}#m: {len(Handler.seen)} calls, {failed} of them failed" in capfd.readouterr().out
    )


def test_what_an_endpoint_was_asked_for_labels_is_said_and_stands_with_the_scale(server, tmp_path, capfd):
    words = ["relabel", *[f"data.{word}" for word in ROWS], "relabel.scale=range"]
    words += [f"relabel.scorer={judged_by(f'{server}#m')}", "--out", str(tmp_path / "labels")]
    assert main(words) == 0
    said = capfd.readouterr()
    line = f"endpoint {server}#m: 12 calls, 0 of them failed; 1200 prompt and 84 completion tokens"
    assert line in said.out.splitlines()
    labels = tmp_path / "labels" / "relabelled"
    counts = {"calls": 12, "failures": 0, "prompt_tokens": 1200, "completion_tokens": 84}
    scale = json.loads((labels / "scale.json").read_text())
    assert scale["usage"] == {f"{server}#m": counts}
    assert scale["fingerprint"]["endpoint"] == server
    names = {path.name for path in labels.iterdir()}
    assert names == {"made_of.json", "part-00000.parquet", "scale.json", "usage.json"}
    assert "sk-secret" not in said.out + said.err
    assert in_files(tmp_path, "sk-secret") == []
    assert main(words) == 0
    assert len(Handler.seen) == 12, "labels that are there are not made again"
    assert line in capfd.readouterr().out.splitlines(), "what they cost is known still"


@pytest.mark.parametrize(
    "options",
    [
        "{checkpoint: 'http://me:sesame@localhost:1/v1#m'}",
        "{checkpoint: 'https://localhost:1/v1?key=sesame#m'}",
        "{checkpoint: 'http://localhost:1/v1#m', key_variable: sk-sesame}",
        "{checkpoint: 'http://localhost:1/v1#m', key_variable: gsk_sesame}",
        "{checkpoint: 'http://localhost:1/v1#m?key=sesame'}",
        "{checkpoint: 'http://localhost:1/v1;key=sesame#m'}",
        "{checkpoint: 'HTTP://me:sesame@localhost:1/v1#m'}",
        "{checkpoint: 'http://sesame℀@localhost:1/v1#m'}",
    ],
)
@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_key_in_a_setting_is_refused_before_it_is_written_or_told(options, more, tmp_path, capfd):
    words = ["train", "quickstart", f"relabel.scorer={{vlm_judge: {options}}}"]
    assert main([*words, "--out", str(tmp_path / "run"), *more]) == 2
    said = capfd.readouterr()
    assert "variable" in said.err
    assert "sesame" not in said.out + said.err
    assert in_files(tmp_path, "sesame") == []


def test_a_training_whose_labels_are_broken_off_says_what_they_cost(server, tmp_path, capfd):
    out = tmp_path / "run"
    words = ["train", "quickstart", "data.limit=14", "data.size=32", "candidates=null", "--out", str(out)]
    words += [f"relabel.scorer={judged_by(f'{server}#m')}", "relabel.scale=range", "train.tracker=none"]
    Handler.reply = staticmethod(has_credit_for(9))
    assert main(words) == 1
    assert f"endpoint {server}#m: {len(Handler.seen)} calls, " in capfd.readouterr().out
    assert not list(out.rglob("scale.json")), "labels without answers are none"


@pytest.mark.slow
def test_a_training_says_what_its_labels_and_its_evaluation_asked(server, tiny_editor, tmp_path, capfd):
    out = tmp_path / "run"
    words = ["train", "quickstart", f"base={tiny_editor}", "data.limit=14", "data.size=32", "candidates=null"]
    words += [f"relabel.scorer={judged_by(f'{server}#m')}", "relabel.scale=range", "train.max_steps=1"]
    words += ["train.batch_size=2", "train.lr_warmup_steps=1", "train.tracker=none", "variants=[conditioned]"]
    words += ["evaluate.n=7", "evaluate.val_n=7", "evaluate.num_inference_steps=[1]"]
    words += ["evaluate.guidance_scale=[1.4]", "--out", str(out)]
    assert main(words) == 0
    labels = 4 * 14
    assert len(Handler.seen) > labels, "the evaluation has asked too"
    said = capfd.readouterr()
    assert f"endpoint {server}#m: {len(Handler.seen)} calls, 0 of them failed; " in said.out
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["usage"][f"{server}#m"]["calls"] == len(Handler.seen)
    assert metrics["usage"][f"{server}#m"]["prompt_tokens"] == 100 * len(Handler.seen)
    assert metrics["oracle"]["n"] == 7
    assert json.loads((out / "relabelled" / "usage.json").read_text())[f"{server}#m"]["calls"] == labels
    assert "sk-secret" not in said.out + said.err
    assert in_files(out, "sk-secret") == []

    asked = len(Handler.seen)
    assert main([*words, "evaluate=null", "--resume"]) == 0
    assert len(Handler.seen) == asked
    assert f"endpoint {server}#m: {asked} calls, " in capfd.readouterr().out, "of the whole run"
    assert json.loads((out / "metrics.json").read_text())["usage"] == metrics["usage"]

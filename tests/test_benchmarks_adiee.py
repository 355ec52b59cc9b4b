"""The benchmark of trained scorers, with scorers of which it is known how good they are."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rewardedit import load_editor
from rewardedit.batch import EditBatch, Scores
from rewardedit.cli.recipes import load_recipe
from rewardedit.data import DataConfig
from rewardedit.data.labelled import encode_png
from rewardedit.diffusion.editors import SamplingConfig
from rewardedit.files import read_log
from rewardedit.language.vlm import load_vlm
from rewardedit.scorers import Scorer, load_scorer
from rewardedit.shapes import Shapes, ShapesOracle, join
from rewardedit.synthesis.label_rules import ANOTHER_TURN, OUTPUT_RULES, OWN_LABELS
from rewardedit.synthesis.multi_turn import turn_edits, turn_rule
from rewardedit.trainers.adiee_scorer import Config, TrainConfig
from rewardedit.training.environment import environment
from tests.data.layouts import write_labelled_shapes
from tests.models import save_vlm
from tests.readme import BENCHMARKS, WORLD

sys.path[:0] = [str(BENCHMARKS), str(WORLD / "benchmarks")]

pytestmark = pytest.mark.world


class Knowing(Scorer):
    """The oracle as a scorer, with the truth looked up by source and instruction: a perfect scorer."""

    def __init__(self, *samples):
        super().__init__()
        self.known = {
            self.key(s.source[i], s.instruction[i]): s[i : i + 1] for s in samples for i in range(len(s))
        }

    @staticmethod
    def key(source, instruction):
        return (source.numpy().tobytes(), instruction)

    def score(self, batch, prepared):
        score = torch.full((len(batch),), torch.nan)
        rows = [self.known.get(self.key(*pair)) for pair in zip(batch.source, batch.instruction, strict=True)]
        there = [i for i, row in enumerate(rows) if row is not None]
        if there:
            score[there] = ShapesOracle().rate(join([rows[i] for i in there]), batch.edited[there]).score
        return Scores.make(score)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    import adiee
    import edits

    val, test = Shapes("val").batch(0, 28), Shapes("test").batch(0, 28)
    scorers = {
        "adiee": Knowing(val, test),
        "l1": load_scorer("l1"),
        "vifi_clip": load_scorer("vifi_clip", checkpoint="shapes/vifi-clip"),
    }
    settings = {
        "good": SamplingConfig(2, 1.25, 1.0),
        "poor": SamplingConfig(1, 1.0, 1.0),
        "new": SamplingConfig(1, 3.0, 1.0),
        "other": SamplingConfig(4, 1.5, 1.0),
    }
    runs = tmp_path_factory.mktemp("runs")
    with torch.no_grad():
        paths = dict.fromkeys(settings, "shapes/editor")
        early = edits.edits_of(paths, settings, "val", 28, runs)
        late = edits.edits_of(paths, settings, "test", 28, runs)
        return adiee.measure(scorers, ["new", "other"], val, early, test, late)


def test_choices_look_at_val_alone():
    import adiee

    val = Shapes("val").batch(0, 28)
    scorers = {"adiee": Knowing(val), "l1": load_scorer("l1")}
    early = {"seen": val.target, "new": val.source.lerp(val.target, 0.5), "other": val.source}
    found = adiee.on_val(scorers, ["new", "other"], val, early)
    assert found["unseen"]["adiee"] == pytest.approx(1.0)
    assert found["unseen"]["l1"] < 0  # what is untouched is nearest to the source
    assert set(found["seen"]) == {"adiee", "l1"}
    assert found["checks"]["true_edits"] > 9
    assert found["checks"]["untouched_sources"] < 1


def test_edits_are_kept_until_weights_or_settings_change(tmp_path, monkeypatch):
    import edits

    paths = {"a": "shapes/editor"}
    asked = {"a": SamplingConfig(1, 1.0, 1.0)}
    with torch.no_grad():
        first = edits.edits_of(paths, asked, "val", 7, tmp_path)["a"]
        monkeypatch.setattr(edits, "edit", None)  # nothing is made again
        assert edits.edits_of(paths, asked, "val", 7, tmp_path)["a"].equal(first)
        assert edits.edits_of(paths, asked, "val", 5, tmp_path)["a"].equal(first[:5])
        for changed in (
            {"n": 8},
            {"settings": {"a": SamplingConfig(1, 2.0, 1.0)}},
            {"seed": 1},
            {"split": "test"},
        ):
            words = {"settings": asked, "split": "val", "n": 7, "runs": tmp_path, **changed}
            with pytest.raises(TypeError):
                edits.edits_of(paths, **words)
        editor = load_editor("shapes/editor")
        next(editor.pipe.unet.parameters()).view(-1)[0] += 1
        monkeypatch.setattr(edits, "load_editor", lambda path: editor)
        with pytest.raises(TypeError):
            edits.edits_of(paths, asked, "val", 7, tmp_path)


def test_a_scorer_that_knows_the_truth_agrees_wholly(figures):
    for found, editors in ((figures, 2), (figures["seen"], 2)):
        assert found["n"] == 28 * editors
        assert found["pairs"] == 28
        assert found["best_rival"] in ("l1", "vifi_clip")
        assert found["spearman"]["adiee"] == pytest.approx(1)
        assert found["pairwise"]["adiee"] > 0.95
        assert found["ci95_vs_best_rival"][0] > 0
        assert found["ci95_pairwise_vs_best_rival"][0] > 0
        assert found["pairwise"]["random"] == pytest.approx(1 / 3)
        assert set(found["pairwise"]) == {"adiee", "l1", "vifi_clip", "prior", "always a tie", "random"}
    assert figures["own_margins"]["pairwise"]["adiee"] > 0.95
    rivals = {name: rho for name, rho in figures["val_spearman"].items() if name != "adiee"}
    assert figures["best_rival"] == max(rivals, key=rivals.__getitem__)
    assert figures["best_rival_pairwise"] in rivals
    assert figures["spearman_within_editors"]["adiee"] == pytest.approx(1)
    assert 0 < abs(figures["spearman"]["prior"]) < 0.9  # who made an edit is not how good it is
    assert set(figures["ci95_vs"]) == {"l1", "vifi_clip", "prior"}
    assert figures["ci95_vs"]["prior"][0] > 0
    assert figures["ci95_vs"][figures["best_rival"]] == figures["ci95_vs_best_rival"]


def test_a_rival_without_a_figure_is_not_the_best():
    import adiee

    assert adiee.best_of({"adiee": 1.0, "constant": float("nan"), "l1": -0.5, "same_labels": 0.9}) == "l1"


def test_checks_show_what_a_scorer_does_not_look_at(figures):
    import adiee

    assert figures["checks"]["true_edits"] > 9
    assert figures["checks"]["untouched_sources"] < 3
    samples = Shapes("val").batch(0, 28)
    with torch.no_grad():
        blind = adiee.checks(load_scorer("l1"), samples)  # blind to the instruction
        seeing = adiee.checks(load_scorer("vifi_clip", checkpoint="shapes/vifi-clip"), samples)
    assert blind["other_instructions"] == pytest.approx(blind["true_edits"])
    assert blind["source_and_edit_exchanged"] == pytest.approx(blind["true_edits"])
    assert seeing["other_instructions"] < seeing["true_edits"] - 1
    assert seeing["source_and_edit_exchanged"] < seeing["true_edits"] - 1


def test_of_pairs_that_are_no_tie_the_better_edit_counts_whatever_the_margin():
    import adiee

    ratings = {"a": np.array([9.0, 1.0, 5.0, 5.0]), "b": np.array([1.0, 9.0, 5.5, 5.0])}
    scores = {
        "adiee": {"a": np.array([0.2, 0.1, 0.9, 0.0]), "b": np.array([0.1, 0.2, 0.1, 0.9])},
        "wrong": {"a": np.array([0.1, 0.1, 0.9, 0.0]), "b": np.array([0.2, 0.1, 0.1, 0.9])},
    }
    found = adiee.order_pairs(scores, ratings, ["a", "b"])
    assert found == {"pairs": 4, "unequal_pairs": 2, "unequal_pairwise": {"adiee": 1.0, "wrong": 0.0}}

    chosen = adiee.Chosen({"adiee": 0.5, "wrong": 0.5}, {}, {"wrong": 1.0})
    judged = adiee.judge_pairs(scores, ratings, ["a", "b"], list("1234"), chosen)
    assert judged["pairwise"]["adiee"] == 0.0
    assert judged["pairwise"]["always a tie"] == 0.5
    assert judged["best_rival_pairwise"] == "wrong"


def test_a_margin_is_that_of_the_editors_whose_pairs_chose_it():
    import adiee

    # The same scores: among seen editors' pairs the first two are ties, among the others' none.
    ratings = {
        "a": np.array([5.0, 5.0, 9.0]),
        "b": np.full(3, 5.0),
        "c": np.full(3, 9.0),
        "d": np.full(3, 5.0),
    }
    better, worse = np.array([0.5, 1.0, 3.0]), np.zeros(3)
    scores = {"adiee": {"a": better, "b": worse, "c": better, "d": worse}}
    scores["l1"] = {name: -values for name, values in scores["adiee"].items()}
    seen, own = (adiee.choose_on_val(scores, ratings, names) for names in (["a", "b"], ["c", "d"]))
    assert own.margins["adiee"] <= 0.5 < 1 < seen.margins["adiee"] <= 3
    assert own.rival_in_pairs == "l1"

    def share(names, chosen):
        return adiee.judge_pairs(scores, ratings, names, list("123"), chosen)["pairwise"]["adiee"]

    assert share(["a", "b"], seen) == share(["c", "d"], own) == 1.0
    assert share(["c", "d"], seen) == pytest.approx(1 / 3)


def test_pairs_are_judged_with_a_margin():
    import adiee

    difference = np.array([0.5, -0.1, 0.05, -2.0])
    assert adiee.said(difference, 0.2).tolist() == [1, 0, 0, -1]
    truth = np.array([1, 0, 0, -1])
    assert 0.1 < adiee.best_margin(difference, truth) <= 0.5
    values = {"a": np.array([1.0, 2.0]), "b": np.array([0.0, 5.0]), "c": np.array([1.0, 1.0])}
    assert adiee.differences(values, ["a", "b", "c"]).tolist() == [1, -3, 0, 1, -1, 4]


def test_what_is_not_scored_is_worse_than_all_else(figures):
    import adiee

    samples = Shapes("val").batch(0, 7)
    known = Knowing(samples[:5])
    found = adiee.scores_of(known, samples, {"a": samples.target, "b": samples.source})
    assert found["a"][5:].tolist() == found["b"][5:].tolist()
    assert found["a"][5] < min(found["b"][:5])


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Sources with label 0 and targets with label 10; and the samples."""
    path = write_labelled_shapes(tmp_path_factory.mktemp("labelled"))
    return {"rows": DataConfig(name="labelled", path=path, size=64)}, Shapes("train").batch(0, 14)


def test_vifi_clip_learns_the_same_labels(labelled, tmp_path):
    import same_labels

    data, samples = labelled
    train = TrainConfig(
        max_steps=40, batch_size=14, questions_per_edit=2, tracker="none", mixed_precision="no"
    )
    config = Config("same", data, train=train)
    folder = same_labels.train(config, tmp_path)
    scorer = same_labels.load_same_labels(folder)
    good = EditBatch(samples.source, samples.instruction, samples.target)
    bad = EditBatch(samples.source, samples.instruction, samples.source)
    with torch.no_grad():
        assert scorer(good).score.mean() > scorer(bad).score.mean() + 3
        assert not any(parameter.requires_grad for parameter in scorer.parameters())


def test_vifi_clip_reads_what_rows_share_once():
    import same_labels

    torch.manual_seed(0)
    scorer = same_labels.LabelledViFiClip.from_pretrained(same_labels.START)
    samples = Shapes("train").batch(0, 4)
    with torch.no_grad():
        words = scorer.text_features(samples.instruction)
        source, edited = scorer.frame(samples.source[:2]), scorer.frame(samples.target[:2])
        shared = scorer.read(source, edited, words)
        twice = torch.tensor([0, 0, 1, 1])
        alone = scorer.read(scorer.frame(samples.source[twice]), scorer.frame(samples.target[twice]), words)
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-5)
    assert (shared[0] - shared[2]).abs().max() > 1e-3


def test_a_model_learns_to_write_the_score(labelled, tmp_path):
    import adiee_ablations

    data, samples = labelled
    save_vlm(str(tmp_path / "vlm"), "llava_next")
    train = TrainConfig(
        max_steps=60,
        batch_size=8,
        questions_per_edit=2,
        tracker="none",
        lr=3e-3,
        mixed_precision="no",
        log_every=10,
        gradient_checkpointing=False,
    )
    config = Config("text", data, str(tmp_path / "vlm"), train=train, side=64, lora_rank=None)
    folder = adiee_ablations.train_in_text(config, tmp_path / "run")
    losses = [line["loss"] for line in read_log(tmp_path / "run")]
    assert losses[-1] < 0.5 * losses[0]
    scorer = adiee_ablations.ScoreInText(load_vlm(str(folder)))
    found = adiee_ablations.measure(scorer, samples[:4], {"a": samples.target[:4], "b": samples.source[:4]})
    assert found["n"] == 8


def test_rank_correlation_of_a_variant_is_also_that_within_editors():
    import adiee_ablations

    samples = Shapes("val").batch(0, 7)
    right = torch.arange(7)[:, None, None, None]
    edits = {
        name: torch.where(right < count, samples.target, samples.source)
        for name, count in (("good", 5), ("bad", 2))
    }

    class Turned(Knowing):
        """Knows the better editor, and of each editor's edits takes the worst for the best."""

        def score(self, batch, prepared):
            bonus = 100.0 * bool((batch.edited == edits["good"][: len(batch)]).all())
            return Scores.make(bonus - super().score(batch, prepared).score)

    found = adiee_ablations.measure(Turned(samples), samples, edits)
    assert found["within_editors"] < -0.6
    assert found["rho"] > found["within_editors"] + 0.5
    assert found["unscored"] == 0
    assert adiee_ablations.measure(Knowing(samples[:4]), samples, edits)["unscored"] == 6


def test_an_audit_rates_rows_by_rule_method_and_type_of_edit():
    import adiee_data

    samples = Shapes("train", 3, ("textured",)).batch(0, 4)
    shared = {"sequence_id": None, "method": "editor", "label": 10.0}
    rows = [
        {**shared, "rule": rule, "source_id": f"shapes:train-0-{i}", "edited": encode_png(images[i])}
        for rule, i, images in (
            ("unreached", 3, samples.target),
            ("unreached", 3, samples.source),
            ("target", 1, samples.target),
            ("another_word", 1, samples.target),
        )
    ]
    config = {
        "data": {"shapes": {"name": "shapes", "shapes": {"seed": 3, "backdrops": ["textured"]}}},
        "sequences": {},
    }
    rating = adiee_data.rate_rows(rows, config)
    assert rating[0] > 9
    assert rating[1] == 0
    assert rating[2] > 9
    assert np.isnan(rating[3])
    found = adiee_data.by_rule_and_method(rows, rating)
    half = {"n": 2, "oracle_mean": pytest.approx(float(rating[:2].mean())), "agree": 0.5}
    of_type = f"unreached, {samples.edit_type[3]}"
    assert found == {
        "unreached": half,
        "unreached, editor": half,
        of_type: half,
        "target": {"n": 1, "oracle_mean": pytest.approx(float(rating[2])), "agree": 1.0},
        "another_word": {"n": 1, "oracle_mean": None, "agree": None},
    }


def test_an_audit_rates_rows_of_the_types_of_edit_that_a_data_set_has():
    import adiee_data

    samples = Shapes("train", kinds=("move", "replace")).batch(0, 4)
    shared = {"sequence_id": None, "method": None, "label": 10.0, "rule": "target"}
    rows = [
        {**shared, "source_id": f"shapes:train-0-{i}", "edited": encode_png(samples.target[i])}
        for i in range(4)
    ]
    data = {"name": "shapes", "edit_types": ["move", "replace"]}
    assert (adiee_data.rate_rows(rows, {"data": {"shapes": data}, "sequences": {}}) > 9).all()
    assert {row["edit_type"] for row in rows} == {"move", "replace"}


def test_a_data_set_of_damages_and_compared_outputs_has_both_correlations_in_its_table():
    from tables_adiee import adiee_graded

    graded = {"rho": 0.75, "ci95": [0.5, 0.875]}
    result = {"rows": 1000, "minutes": 2.0, "rules": {}, "command": "this", **environment(), "date": "today"}
    both = adiee_graded({**result, "damage_spearman": graded, "unreached_spearman": graded})
    assert "over damaged targets ρ = 0.75 [+0.50, +0.88], over outputs that are compared" in both
    assert "damaged" not in adiee_graded({**result, "unreached_spearman": graded})


def test_the_rival_on_the_same_labels_has_the_rows_and_steps_of_all_legs():
    import same_labels

    config = same_labels.config_of_phases([])
    phases = same_labels.phases_of_scorer()
    assert config.train.max_steps == sum(phase.train.max_steps for phase in phases)
    assert config.data.keys() == {"more", "damaged", "compared", "moved"}
    assert {own.limit for own in config.data.values()} == {None}  # in whole
    asked = same_labels.config_of_phases(["train.max_steps=10", "data.damaged.limit=7"])
    assert (asked.train.max_steps, asked.data["damaged"].limit) == (10, 7)
    assert asked.data["damaged"].path == config.data["damaged"].path
    assert [phase.model for phase in phases] == ["shapes/vlm", *(f"phase-{n}/scorer" for n in (1, 2, 3))]


def test_variants_are_settings_of_the_recipe(labelled):
    import adiee_ablations
    import vifi_rows

    found = {name: adiee_ablations.config_of(name, [], Path("kept")) for name in adiee_ablations.VARIANTS}
    first = found.pop("the first phase")
    assert first.data["more"].path == "kept/rows-more/rows"
    assert len({config.name for config in found.values()}) == len(found)
    for name, config in found.items():
        assert config.train == first.train, name
        assert replace(config, name=first.name) != first, name
    assert {data.edit_types for data in found["turns alone"].data.values()} == {tuple(adiee_ablations.TURNS)}
    turns = {turn_rule(edit.source, edit.target, edit.edited) for edit in turn_edits(3)}
    assert {*adiee_ablations.TURNS} == {*turns, ANOTHER_TURN}
    assert {*adiee_ablations.OWN} == {*OWN_LABELS} - {"another_word"}
    assert {*adiee_ablations.BY_METHOD} == {rule.name for rule in OUTPUT_RULES}
    with_outputs = found["methods' outputs as well"].data
    assert with_outputs.keys() == {*first.data, "outputs"}
    no_turns = found["methods' outputs as well, no turns"].data
    assert {name: replace(data, edit_types=()) for name, data in no_turns.items()} == with_outputs
    for data in no_turns.values():
        assert data.edit_types
        assert not {*data.edit_types} & {*adiee_ablations.TURNS}
    data = {"rows": replace(labelled[0]["rows"], fraction=0.3)}
    assert adiee_ablations.of_so_many(replace(first, data=data), 10**6).data["rows"].fraction == 1.0
    words = [["held_out=null", *change] for change in vifi_rows.VARIANTS.values()]
    configs = [load_recipe("shapes/vifi-clip", change)[1] for change in words]
    assert [config.data.limit for config in configs] == [2800, 5600, 11200, 22400, 22400]
    assert [len(config.negatives) for config in configs] == [3, 3, 3, 3, 2]


def test_the_table_of_variants_says_which_gives_one_score_for_all():
    from tables_adiee import adiee_ablations

    figures = {
        "a": {"rho": 0.5, "ci95": [0.4, 0.6], "within_editors": 0.3, "rows": 1200},
        "b": {"rho": None, "ci95": [None, None], "within_editors": None, "rows": 7},
    }
    made = {"command": "python x.py", "device": "CPU", "date": "2026-11-26"}
    page = adiee_ablations({"n": 1120, "steps": 9, "spearman": figures, **made})
    assert "| a | 1,200 | 0.50 [+0.40, +0.60] | 0.30 |" in page
    assert "| b | 7 | – (one score for all) | – |" in page
    assert "n = 1,120 edits by unseen editors; 9 steps each" in page


def test_variants_are_measured_once(tmp_path):
    from variants import figures_of

    called = []

    def make(folder):
        called.append(folder)
        (folder / "weights").write_text("trained")
        return {"rho": len(called)}

    assert figures_of(tmp_path / "a", {"lr": 1}, make) == {"rho": 1}
    assert figures_of(tmp_path / "a", {"lr": 1}, make) == {"rho": 1}
    assert figures_of(tmp_path / "a", {"lr": 2}, make) == {"rho": 2}
    assert len(called) == 2

    def broken_off(folder):
        assert not (folder / "weights").exists()  # of other settings
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        figures_of(tmp_path / "a", {"lr": 3}, broken_off)
    assert (tmp_path / "a" / "weights").read_text() == "half"
    found = figures_of(tmp_path / "a", {"lr": 3}, lambda folder: {"left": (folder / "weights").read_text()})
    assert found == {"left": "half"}


def test_the_tokens_of_answers_end_the_texts(tmp_path):
    import adiee_ablations

    save_vlm(str(tmp_path), "llava_next")
    vlm = load_vlm(str(tmp_path))
    tokenizer = vlm.processor.tokenizer
    answers = [f" It is 3.3.{tokenizer.eos_token}", f" It is 10.0.{tokenizer.eos_token}"]
    texts = [f"{'why ' * i}{text}" for i, text in enumerate(answers)]
    where = adiee_ablations.tokens_of(answers, texts, tokenizer)
    for ids, chosen, text in zip(vlm.tokens(texts), where, answers, strict=True):
        assert ids[chosen].tolist() == tokenizer(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize(
    ("said", "number"),
    [("It is 6.7.", 6.7), ("it is 1 0 . 0 .", 10.0), ("it is 3", 3.0), ("nothing", None), ("", None)],
)
def test_a_written_score_is_read(said, number):
    import adiee_ablations

    found = adiee_ablations.number_in(said)
    assert np.isnan(found) if number is None else found == number

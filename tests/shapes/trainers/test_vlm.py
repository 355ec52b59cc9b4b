"""The small vision-language model and what it learns."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import OwlViTForObjectDetection

from rewardedit.language.answers import text_of
from rewardedit.language.vlm import load_vlm
from rewardedit.models import resolve_model
from rewardedit.shapes import Shapes, vlm_tasks
from rewardedit.shapes.trainers import vlm as shapes_vlm
from rewardedit.shapes.vlm_tasks import ANSWER_PREFIXES, PHRASINGS, QUESTIONS
from rewardedit.training.fit import SmallTrainConfig
from tests.models import save_vlm

pytestmark = pytest.mark.world

LAYERS = 2  # of the tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("vlm"))
    save_vlm(folder, "llava_next")
    return folder


def test_the_small_vision_language_model_is_made_from_clip_and_saved(tmp_path):
    train = SmallTrainConfig(
        max_steps=3, batch_size=4, lr_warmup_steps=1, mixed_precision="no", tracker="none", log_every=1
    )
    asked = shapes_vlm.Config("vlm", width=32, layers=1, samples=14, evaluate_n=7, train=train)
    before = shapes_vlm.make_vlm(asked)
    out = shapes_vlm.train(asked, tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(metrics["right"]) == {*QUESTIONS, "altered"}
    assert metrics["n"] == 7
    assert metrics["minutes"] > 0

    vlm = load_vlm(str(out))
    towers = [made.model.model.vision_tower.state_dict() for made in (before, vlm)]
    assert all(torch.allclose(towers[0][name], towers[1][name], atol=2e-3) for name in towers[0])
    length = vlm.processor.tokenizer.init_kwargs.get("max_length")
    assert length is None, "CLIP's, of which each call would warn"
    text = vlm.prompt([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}])
    (answer,) = vlm.answer([text], Shapes("val").batch(0, 1).source[None], max_new_tokens=4)
    assert "</w>" not in text_of(answer)
    ids = vlm.processor.tokenizer("a small red circle, at top left").input_ids
    assert vlm.processor.tokenizer.decode(ids, skip_special_tokens=True) == "a small red circle , at top left"
    tokenizer = vlm.processor.tokenizer
    for text in ("It is 10.", 'say "7" ?', "grade: 3"):
        ids = tokenizer(text).input_ids
        assert tokenizer.eos_token_id not in ids[:-1], text  # the text's own end
        said = tokenizer.decode(ids, skip_special_tokens=True)
        assert said.replace(" ", "") == text.lower().replace(" ", "")
    assert len({tuple(tokenizer(str(digit)).input_ids) for digit in range(10)}) == 10
    assert Path(out / "preprocessor_config.json").is_file() or Path(out / "processor_config.json").is_file()


def test_the_small_model_is_asked_what_images_and_instructions_show():
    samples = shapes_vlm._samples(shapes_vlm.Config("vlm"), "train", 70)
    rows = list(range(70))
    generator = torch.Generator().manual_seed(0)
    images, questions, said = vlm_tasks.make_examples(samples, rows, "choice", generator)
    assert torch.equal(images, samples["images"].float() / 255)
    assert said == samples["instruction"]
    offered = [re.findall('"(.*?)"', question) for question in questions]
    places = [pair.index(own) for pair, own in zip(offered, said, strict=True)]
    others = [pair[1 - place] for pair, place in zip(offered, places, strict=True)]
    assert 20 < sum(places) < 50  # in any order
    near = [other == own for other, own in zip(others, samples["other_instruction"], strict=True)]
    assert 15 < sum(near) < 50  # the others are other rows'
    assert all(other != own for other, own in zip(others, said, strict=True))
    assert None in samples["other_instruction"]  # of one object there are few edits

    images, questions, said = vlm_tasks.make_examples(samples, rows, "result", generator)
    assert torch.equal(images, samples["images"][:, :1].float() / 255)
    assert said == samples["target_caption"]
    assert all(text in question for text, question in zip(samples["instruction"], questions, strict=True))

    images, _, said = vlm_tasks.make_examples(samples, rows, "caption", generator)
    late = [text == own for text, own in zip(said, samples["target_caption"], strict=True)]
    shown = samples["images"].float() / 255
    for i, second in enumerate(late):
        assert torch.equal(images[i, 0], shown[i, int(second)])
        assert said[i] == samples["target_caption" if second else "source_caption"][i]


def test_the_small_model_goes_on_from_an_earlier_leg(model):
    before = load_vlm(model).model.state_dict()
    vlm = shapes_vlm.make_vlm(shapes_vlm.Config("vlm", init_from=model, layers=LAYERS))
    assert all(torch.equal(value, before[name]) for name, value in vlm.model.state_dict().items())
    assert all(parameter.requires_grad for parameter in vlm.model.parameters())


def test_layers_on_top_change_nothing_at_first(model):
    images = Shapes("val").batch(0, 2)
    pair = torch.stack([images.source, images.target], 1)
    asked = (pair, ["what?"] * 2, images.instruction)
    before, after = (
        shapes_vlm.make_vlm(shapes_vlm.Config("vlm", init_from=model, layers=n)) for n in (LAYERS, LAYERS + 2)
    )
    with torch.no_grad():
        assert torch.equal(
            vlm_tasks.answer_logits(before, *asked)[0], vlm_tasks.answer_logits(after, *asked)[0]
        )
    assert len(after.model.model.get_decoder().layers) == LAYERS + 2
    assert after.model.config.text_config.num_hidden_layers == LAYERS + 2
    loss = vlm_tasks.answer_logits(after, *asked)[0].square().mean()
    loss.backward()
    top = after.model.model.get_decoder().layers[-1].self_attn.o_proj.weight
    assert top.grad is not None
    assert top.grad.abs().sum() > 0  # but they learn
    with pytest.raises(ValueError, match=f"has {LAYERS} already; got {LAYERS - 1}"):
        shapes_vlm.make_vlm(shapes_vlm.Config("vlm", init_from=model, layers=LAYERS - 1))


def test_a_detector_gives_the_model_its_tower(tmp_path):
    first = shapes_vlm.make_vlm(shapes_vlm.Config("vlm", width=32, layers=1))
    first.model.save_pretrained(tmp_path)
    first.processor.save_pretrained(tmp_path)
    asked = shapes_vlm.Config("vlm", init_from=str(tmp_path), layers=1, vision_tower="shapes/detector")
    after = shapes_vlm.make_vlm(asked).model
    detector = OwlViTForObjectDetection.from_pretrained(resolve_model("shapes/detector"), dtype=torch.float32)
    pixels = Shapes("val").batch(0, 2).source
    with torch.no_grad():
        seen = after.model.vision_tower(pixels).last_hidden_state
        wanted = detector.owlvit.vision_model(pixels).last_hidden_state
        before = first.model.model.vision_tower(pixels).last_hidden_state
    assert torch.allclose(seen, wanted, atol=1e-4)
    assert not torch.allclose(before, wanted, atol=0.1)
    kept = first.model.state_dict()
    assert all(torch.equal(v, kept[k]) for k, v in after.state_dict().items() if "vision_tower" not in k)
    with pytest.raises(ValueError, match="train it first: shapes/detector"):
        shapes_vlm.make_vlm(replace(asked, vision_tower=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("asked", "opening"),
    [(QUESTIONS["match"], ""), (PHRASINGS[1], ANSWER_PREFIXES[1]), (PHRASINGS[4], ANSWER_PREFIXES[1])],
)
def test_many_instructions_about_one_edit_are_answered_as_each_alone(asked, opening):
    vlm = load_vlm("shapes/vlm")
    samples = shapes_vlm._samples(shapes_vlm.Config("vlm"), "val", 3)
    images = samples["images"].float() / 255
    instructions = vlm_tasks.instructions_of(samples, [0, 1, 2], torch.Generator().manual_seed(0))
    tokenizer = vlm.processor.tokenizer
    yes, no = (tokenizer(text, add_special_tokens=False).input_ids[0] for text in (" yes", " no"))
    with torch.no_grad():
        odds, words = vlm_tasks.match_logits(vlm, images, instructions, asked, opening)
        for i, own in enumerate(instructions):
            for j, text in enumerate(own):
                said = f"{opening} yes".strip()
                logits, _, _ = vlm_tasks.answer_logits(vlm, images[i : i + 1], [asked.format(text)], [said])
                place = len(tokenizer(opening, add_special_tokens=False).input_ids)
                alone = logits[place, yes] - logits[place, no]
                torch.testing.assert_close(odds[i, j], alone, atol=1e-3, rtol=1e-3)
        # the words of the first ones, as the answer to the question's beginning
        for i, own in enumerate(instructions):
            text = vlm_tasks.prompt(vlm, asked.format(own[0]), 2)
            inputs = vlm.inputs([text], images[i : i + 1])
            ids = inputs["input_ids"]
            hidden = vlm.model.model(**inputs, use_cache=False).last_hidden_state
            logits = vlm.model.lm_head(hidden)[0, :-1].log_softmax(-1)
            own_ids = tokenizer(own[0], add_special_tokens=False).input_ids
            after = len(tokenizer(f"{asked.split('{}')[1]} :", add_special_tokens=False).input_ids)
            begin = ids.shape[1] - after - len(own_ids)
            assert ids[0, begin : begin + len(own_ids)].tolist() == own_ids
            likely = [float(logits[begin - 1 + k, token]) for k, token in enumerate(own_ids)]
            assert float(words[i]) == pytest.approx(-sum(likely) / len(own_ids), abs=1e-3)


def test_instructions_are_matched_where_the_model_is(model, standin_device):
    """The images come from the CPU."""
    vlm = load_vlm(model, device=standin_device)
    odds, words = vlm_tasks.match_logits(vlm, torch.rand(2, 2, 3, 64, 64), [["add a star", "remove it"]] * 2)
    loss = vlm_tasks.match_loss(odds, words, torch.tensor([True, False]))
    assert loss.device.type == standin_device
    assert loss.isfinite()


def test_of_the_instructions_about_an_edit_the_first_was_followed():
    samples = {
        "instruction": ["draw a red star", "remove it", "shift the square left", "use a mint background"],
        "other_instruction": ["draw a cross", None, "C", "D"],
    }
    found = vlm_tasks.instructions_of(samples, [3, 0, 1, 2], torch.Generator().manual_seed(0))
    own = [texts[0] for texts in found]
    assert own == [samples["instruction"][i] for i in (3, 0, 1, 2)]
    assert [texts[1] for texts in found] == ["D", "draw a cross", "shift the square left", "C"]
    assert [texts[4] for texts in found] == [*own[2:], *own[:2]]
    for text, texts in zip(own, found, strict=True):
        for other in texts[2:4]:
            words = [a != b for a, b in zip(text.split(), other.split(), strict=False)]
            assert text == "remove it" or 0 < sum(words) <= 2  # the word, and its article
    assert found[2][2:4] == [own[0]] * 2  # which has no word to alter
    again = vlm_tasks.instructions_of(samples, [3, 0, 1, 2], torch.Generator().manual_seed(1))
    assert again != found


def test_untouched_rows_show_the_source_twice():
    images = torch.rand(400, 2, 3, 2, 2)
    shown, followed = vlm_tasks.replace_some_by_source(images, torch.Generator().manual_seed(0))
    assert torch.equal(shown[:, 0], images[:, 0])
    assert torch.equal(shown[followed, 1], images[followed, 1])
    assert torch.equal(shown[~followed, 1], images[~followed, 0])
    assert 25 < int((~followed).sum()) < 75


def test_whether_an_instruction_was_followed_is_asked_in_all_ways():
    generator = torch.Generator().manual_seed(0)
    found = {vlm_tasks.sample_phrasing(generator) for _ in range(300)}
    assert found == {(asked, opening) for asked in PHRASINGS for opening in ANSWER_PREFIXES}
    assert all(asked.count("{}") == 1 for asked in PHRASINGS)


@pytest.mark.parametrize("ways", [False, True])
def test_a_model_is_asked_in_several_ways_where_its_recipe_says_so(tmp_path, monkeypatch, ways):
    asked = []
    original = shapes_vlm.match_logits

    def match_logits(vlm, images, instructions, *how):
        asked.append(how)
        return original(vlm, images, instructions, *how)

    monkeypatch.setattr(shapes_vlm, "match_logits", match_logits)
    train = SmallTrainConfig(max_steps=6, lr_warmup_steps=1, mixed_precision="no", tracker="none")
    shapes_vlm.train(
        shapes_vlm.Config(
            "vlm",
            width=32,
            layers=1,
            samples=14,
            evaluate_n=7,
            tasks=("match",),
            match_size=2,
            vary_phrasing=ways,
            train=train,
        ),
        tmp_path,
    )
    in_training = asked[:6]
    assert asked[6:] == [()]  # val is asked in one way
    assert (len(set(in_training)) > 1) == ways
    assert all(len(how) == 2 * ways for how in in_training)


def test_match_loss_by_hand():
    odds = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, -1.0]])
    words = torch.tensor([3.0, 5.0, 100.0])
    e = torch.e
    log = torch.log1p(torch.tensor([e**-1, 1.0, 1.0, e**2, e**3, e**-1]))
    likeliest = (torch.log(torch.tensor(1 + e**-1)) + torch.log(torch.tensor(1 + e**2))) / 2
    yes = (log[0] + log[2]) / 2
    no = (log[1] + log[3] + log[4] + log[5]) / 4
    found = vlm_tasks.match_loss(odds, words, torch.tensor([True, True, False]))
    torch.testing.assert_close(found, likeliest + (yes + no) / 2 + 0.5 * 4.0)
    nothing = vlm_tasks.match_loss(odds[2:], words[2:], torch.tensor([False]))
    torch.testing.assert_close(nothing, (log[4] + log[5]) / 2 / 2)


def test_half_of_the_images_go_through_the_editors_autoencoder():
    clean = shapes_vlm._samples(shapes_vlm.Config("vlm"), "val", 8)
    seen = shapes_vlm._samples(shapes_vlm.Config("vlm", editor="shapes/editor"), "val", 8)
    changed = (clean["images"].float() - seen["images"].float()).abs().flatten(2).amax(2) > 0
    assert changed.tolist() == [[False, False], [True, False], [True, True], [False, True]] * 2
    assert clean["instruction"] == seen["instruction"]

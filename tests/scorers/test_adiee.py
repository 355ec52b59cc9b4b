"""The ADIEE scorer on small random vision-language models of every kind."""

import copy
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rewardedit.batch import EditBatch
from rewardedit.language.prefix import AttentionInParts, PrefixLayer, as_cache, dense_attention, split_rows
from rewardedit.language.vlm import Vlm, load_vlm
from rewardedit.scorers.adiee import Adiee, width_of
from rewardedit.scorers.adiee_head import AdieeSettings, ScoreHead
from rewardedit.scorers.adiee_text import (
    ANSWER,
    QUESTIONS,
    TOKEN,
    add_token,
    add_words,
    question,
    require_token,
)
from rewardedit.shapes import Shapes
from tests.models import VLMS, save_vlm


@pytest.fixture(scope="module", params=VLMS)
def vlm(request, tmp_path_factory) -> Vlm:
    folder = str(tmp_path_factory.mktemp(request.param))
    save_vlm(folder, request.param)
    found = load_vlm(folder)
    add_token(found.model, found.processor)
    return found


@pytest.fixture(scope="module")
def llava(tmp_path_factory) -> Vlm:
    folder = str(tmp_path_factory.mktemp("llava"))
    save_vlm(folder, "llava_next")
    found = load_vlm(folder)
    add_token(found.model, found.processor)
    return found


def near(a: Tensor, b: Tensor, share: float = 1e-4) -> bool:
    """True if two results differ by no more than a share of the spread among the rows of the first;
    a common offset of all rows cannot hide a difference.
    """
    scale = (a - a.mean(0)).norm() if len(a) > 1 else a.norm()
    return bool((a - b).norm() <= share * scale)


def make(
    vlm: Vlm,
    question: int | None = None,
    share_prefix: bool | None = None,
    bias: float = 5.0,  # scores within the range
    **settings,
) -> Adiee:
    torch.manual_seed(1)
    chosen = AdieeSettings(**{"side": 64, **settings})
    head = ScoreHead(width_of(vlm.model), chosen)
    torch.nn.init.constant_(head.layers[-1].bias, bias)
    return Adiee(vlm, head, chosen, question, share_prefix).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def batch() -> EditBatch:
    samples = Shapes("val").batch(0, 4)
    return EditBatch(samples.source, samples.instruction, samples.target)


def test_scores_are_finite_and_within_range(vlm, batch):
    scores = make(vlm)(batch)
    assert scores.valid.all()
    assert ((scores.score >= 0) & (scores.score <= 10)).all()
    assert scores.score.std() > 0
    assert scores.parts["spread"].min() > 0


def test_a_row_does_not_depend_on_its_neighbours(vlm, batch):
    scorer = make(vlm)
    alone = torch.cat([scorer(batch[i : i + 1]).parts["raw"] for i in range(4)])
    assert near(scorer(batch).parts["raw"], alone, 1e-3)


def test_source_and_edit_are_told_apart(vlm, batch):
    scorer = make(vlm)
    swapped = EditBatch(batch.edited, batch.instruction, batch.source)
    assert ((scorer(batch).parts["raw"] - scorer(swapped).parts["raw"]).abs() > 1e-4).all()
    other = EditBatch(batch.source, batch.instruction[::-1], batch.edited)
    assert ((scorer(batch).parts["raw"] - scorer(other).parts["raw"]).abs() > 1e-5).all()


@pytest.mark.parametrize("layout", ["pair", "concat"])
def test_the_state_in_training_is_that_in_use(vlm, batch, layout):
    """In training the answer goes on after the token; in use it ends there."""
    scorer = make(vlm, layout=layout, share_prefix=False)
    trained = [scorer.prompt(text, 0) + ANSWER for text in batch.instruction]
    used = scorer.texts(batch.instruction, 0)
    states = [scorer.states(scorer.inputs(texts, batch.source, batch.edited)) for texts in (trained, used)]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llava_next", "idefics3"])
def test_a_shared_prefix_gives_the_scores_and_gradients_of_whole_passes(kind, batch, tmp_path):
    save_vlm(str(tmp_path), kind)
    vlm = load_vlm(str(tmp_path))
    add_token(vlm.model, vlm.processor)
    naive = make(vlm, share_prefix=False)
    scorer = make(vlm, share_prefix=True)
    for rows in (batch, candidates(batch, 5)):
        prepared = scorer.prepare(batch.source, batch.instruction)
        if len(rows) != len(batch):
            prepared = prepared.take([1] * len(rows))
        found = []
        for one, ready in ((naive, None), (scorer, prepared)):
            with torch.no_grad():
                score = one(rows, ready).parts["raw"]
            edited = rows.edited.clone().requires_grad_(True)
            kept = one(EditBatch(rows.source, rows.instruction, edited), ready).parts["raw"]
            (gradient,) = torch.autograd.grad(kept.sum(), edited)
            found.append((score, kept.detach(), gradient))
        for a, b in zip(*found, strict=True):
            assert near(a, b, 1e-4)
        # A prefix of another source is seen.
        other = scorer.prepare(batch.edited.flip(0), batch.instruction).take([0] * len(rows))
        assert not near(found[0][0], scorer(rows, other).parts["raw"], 1e-2)


def test_the_state_at_the_token_is_decoded(llava, batch):
    """Not that of its neighbour, in texts of unlike lengths."""
    scorer = make(llava, question=0, share_prefix=False)
    instructions = ["make it red", *batch.instruction[1:]]
    texts = scorer.texts(instructions, 0)
    inputs = scorer.inputs(texts, batch.source, batch.edited)
    hidden = scorer.model.model(**inputs, use_cache=False).last_hidden_state
    places = [row.index(scorer.token) for row in inputs["input_ids"].tolist()]
    assert len(set(places)) > 1
    expected = torch.stack([row[place] for row, place in zip(hidden, places, strict=True)])
    raw = scorer.head.scores(expected)[:, 0]
    for share_prefix in (False, True):
        rows = EditBatch(batch.source, instructions, batch.edited)
        found = make(llava, question=0, share_prefix=share_prefix)(rows).parts["raw"]
        assert near(raw, found), share_prefix


def candidates(batch: EditBatch, n: int) -> EditBatch:
    """n edits of the batch's second source."""
    noise = torch.rand(n, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    edited = batch.edited[1:2].lerp(noise, 0.3)
    return EditBatch(batch.source[1:2].expand(n, -1, -1, -1), [batch.instruction[1]] * n, edited)


@pytest.mark.parametrize("prepared_within", [True, False])
def test_a_shared_prefix_works_in_mixed_precision(llava, batch, prepared_within):
    """Weights in fp32, computation in bf16: queries and values come in different types."""
    scorer = make(llava, share_prefix=True)
    exact = scorer(candidates(batch, 3)).parts["raw"]
    rows = candidates(batch, 3)
    before = scorer.prepare(batch.source[1:2], batch.instruction[1:2])
    edited = rows.edited.clone().requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16):
        prepared = scorer.prepare(batch.source[1:2], batch.instruction[1:2]) if prepared_within else before
        with torch.no_grad():
            rough = scorer(rows, prepared.take([0] * 3)).parts["raw"]
        kept = scorer(EditBatch(rows.source, rows.instruction, edited), prepared.take([0] * 3))
    assert (rough - exact).abs().max() < 0.5
    (gradient,) = torch.autograd.grad(kept.parts["raw"].sum(), edited)
    assert gradient.isfinite().all()
    assert (gradient.flatten(1).abs().sum(1) > 0).all()


def test_the_source_is_read_once_for_all_candidates_and_each_edit_once_for_all_questions(llava, batch):
    scorer = make(llava)
    rows = candidates(batch, 6)
    prepared = scorer.prepare(batch.source[1:2], batch.instruction[1:2]).take([0] * 6)
    prefixes = prepared.inputs["prefix"]
    assert all(prefix is prefixes[0] for prefix in prefixes)
    lengths: list[tuple[int, int]] = []
    layer = llava.model.model.language_model.layers[0]
    handle = layer.register_forward_hook(lambda module, args, out: lengths.append(tuple(args[0].shape[:2])))
    scorer(rows, prepared)
    scorer(rows)
    handle.remove()
    (edits, edit), *questions = lengths[:5]
    (_, prefix), *again = lengths[5:]
    assert edits == 6
    assert again == [(6, edit), *questions]
    assert prefix == len(prefixes[0])
    for number, (_, words) in enumerate(questions):
        whole = scorer.inputs(scorer.texts(rows.instruction, number), rows.source, rows.edited)["input_ids"]
        assert prefix + edit + words == whole.shape[1]


PARTS = ((1, 7), (3, 4), (3, 5))  # rows and keys: what all rows share, what is each row's, and themselves


def parts_of_attention(groups: int, shared_keys: int = 7, **options) -> tuple[Tensor, list[Tensor]]:
    """A query of three rows and, in parts, the keys and the values that two heads of keys have."""
    generator = torch.Generator().manual_seed(0)
    lengths = ((1, shared_keys), *PARTS[1:])
    query = torch.randn(3, 2 * groups, 5, 8, generator=generator)
    parts = [torch.randn(rows, 2, n, 8, generator=generator) for rows, n in 2 * lengths]
    return query.to(**options), [part.to(**options) for part in parts]


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("way", ["in parts", "in one"])
def test_attention_in_parts_is_attention(way, groups):
    """Output and gradients."""
    query, parts = parts_of_attention(groups, dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (query, *parts)]
    key, value = (
        torch.cat([part.expand(3, -1, -1, -1) for part in own], 2).repeat_interleave(groups, 1)
        for own in (parts[:3], parts[3:])
    )
    mask = torch.ones(5, 16, dtype=torch.bool).tril(11)
    logits = (0.3 * query @ key.transpose(2, 3)).masked_fill(~mask, -math.inf)
    weights = torch.randn(3, 2 * groups, 5, 8, dtype=torch.float64)
    found = []
    for out in (
        logits.softmax(-1) @ value,
        AttentionInParts.apply(query, 0.3, *parts)
        if way == "in parts"
        else dense_attention(query, parts[:3], parts[3:], 0.3),
    ):
        found.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_no_copy_of_a_shared_part_is_kept_for_the_backward_pass():
    kept = []
    for keys in (7, 700):
        query, parts = parts_of_attention(3, keys)
        own = [tensor.requires_grad_() for tensor in (query, parts[2], parts[5])]
        places = {part.data_ptr() for part in parts}
        saved: dict[int, int] = {}

        def pack(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = AttentionInParts.apply(query, None, *parts)
        assert places <= set(saved)
        kept.append(sum(size for place, size in saved.items() if place not in places))
        assert all(gradient.any() for gradient in torch.autograd.grad(out.sum(), own))
    assert kept[0] == kept[1]


def test_flash_attention_of_gpus_takes_the_parts():
    """As far as shapes go, which torch knows without a GPU."""
    query, parts = parts_of_attention(3, device="meta", dtype=torch.bfloat16)
    own = [tensor.requires_grad_() for tensor in (query, parts[2], parts[5])]
    out = AttentionInParts.apply(query, None, *parts)
    assert out.shape == query.shape
    shapes = [gradient.shape for gradient in torch.autograd.grad(out.sum(), own)]
    assert shapes == [tensor.shape for tensor in own]


def test_a_prefix_needs_images_of_their_own(llava, tmp_path):
    with pytest.raises(ValueError, match="expected the layout pair"):
        make(llava, layout="concat", share_prefix=True)
    assert not make(llava, layout="concat").share_prefix
    save_vlm(str(tmp_path), "qwen2_5_vl")
    qwen = load_vlm(str(tmp_path))
    add_token(qwen.model, qwen.processor)
    assert not make(qwen).share_prefix
    with pytest.raises(ValueError, match="expected the layout pair"):
        make(qwen, share_prefix=True)


def test_the_gradient_reaches_the_edit_through_the_clamp(vlm, batch):
    scorer = make(vlm)
    torch.nn.init.constant_(scorer.head.layers[-1].bias, 40.0)  # far beyond the range
    edited = batch.edited.clone().requires_grad_(True)
    scores = scorer(EditBatch(batch.source, batch.instruction, edited))
    assert scores.score.tolist() == [10.0] * 4
    assert scores.parts["raw"].min() > 10
    (gradient,) = torch.autograd.grad(scores.score.sum(), edited)
    assert (gradient.flatten(1).abs().sum(1) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_and_scorers_of_half_precision(llava, batch, dtype):
    exact = make(llava, side=40)(batch)
    source, edited = batch.source.to(dtype), batch.edited.to(dtype).requires_grad_()
    scores = make(llava, side=40)(replace(batch, source=source, edited=edited))
    torch.testing.assert_close(scores.score, exact.score, rtol=0.02, atol=0.02)
    scores.mean().backward()
    assert edited.grad is not None
    assert edited.grad.dtype == dtype
    half = copy.deepcopy(make(llava, side=40)).to(dtype)
    assert half.head.layers[0].weight.dtype == dtype
    torch.testing.assert_close(half(batch).score, exact.score, rtol=0.2, atol=0.2)


def test_classes_are_expected_grades(llava, batch):
    scorer = make(llava, question=0, head="classes")
    logits = torch.tensor([0.0, 1.0, 2.0])
    last = scorer.head.layers[-1]
    torch.nn.init.zeros_(last.weight)
    last.bias.data.copy_(logits)
    expected = float((logits.softmax(0) * torch.tensor([0.0, 5, 10])).sum())
    assert scorer(batch).score.tolist() == pytest.approx([expected] * 4)


def test_further_axes_are_parts(llava, batch):
    scores = make(llava, axes=("overall", "alignment", "quality"))(batch)
    assert {"alignment", "quality"} <= set(scores.parts)
    assert not torch.equal(scores.parts["alignment"], scores.parts["quality"])
    beyond = make(llava, axes=("overall", "alignment"), bias=40.0)
    edited = batch.edited.clone().requires_grad_(True)
    alignment = beyond(EditBatch(batch.source, batch.instruction, edited)).parts["alignment"]
    assert alignment.tolist() == [10.0] * 4
    (gradient,) = torch.autograd.grad(alignment.sum(), edited)
    assert (gradient.flatten(1).abs().sum(1) > 0).all()


def test_images_of_another_size_than_the_scorer_s_have_one_prefix_too(llava, batch):
    small = EditBatch(batch.source[..., :48, :], batch.instruction, batch.edited[..., :48, :])
    shared_prefix, whole = (make(llava, share_prefix=share, side=32)(small).score for share in (True, False))
    assert near(whole, shared_prefix)


def test_prefixes_that_were_computed_together_are_not_copied(llava, batch):
    scorer = make(llava, share_prefix=True)
    prefixes = scorer.prepare(batch.source, batch.instruction).inputs["prefix"]
    keys = as_cache(prefixes).layers[0].parts[0][0]
    assert keys.data_ptr() == prefixes[0].keys[0].data_ptr()
    assert len(keys) == len(batch)
    turned = as_cache(prefixes[::-1]).layers[0].parts[0][0]
    assert torch.equal(turned, keys.flip(0))
    assert torch.equal(as_cache(prefixes[:2]).layers[0].parts[0][0], keys[:2])


def test_the_mean_over_questions_is_that_of_each(llava, batch):
    each = torch.stack([make(llava, question=i)(batch).parts["raw"] for i in range(len(QUESTIONS))])
    scores = make(llava)(batch)
    torch.testing.assert_close(scores.parts["raw"], each.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores.parts["spread"], each.std(0, correction=0), rtol=1e-3, atol=1e-4)
    assert len({question(i, "add a cat", "pair") for i in range(len(QUESTIONS))}) == len(QUESTIONS)
    with pytest.raises(ValueError, match="from 0 to 3"):
        make(llava, question=4)


@pytest.mark.parametrize("steering", [TOKEN, "<image>", "<|endoftext|>"])
def test_an_instruction_cannot_bring_texts_that_steer_the_model(llava, batch, steering):
    scorer = make(llava, question=0)
    rows = EditBatch(batch.source, [f"add a {steering} {steering}"] * 4, batch.edited)
    inputs = scorer.inputs(scorer.texts(rows.instruction, 0), rows.source, rows.edited)
    assert (inputs["input_ids"] == scorer.token).sum(1).tolist() == [1] * 4
    assert scorer(rows).valid.all()


def test_a_long_instruction_is_cut_and_the_token_stays(llava, batch):
    scorer = make(llava, question=0)
    text = llava.model.config.get_text_config()
    before = text.max_position_embeddings
    asked = [scorer.prompt("", 0) + ANSWER]
    empty = scorer.inputs(asked, batch.source[:1], batch.edited[:1])["input_ids"].shape[1]
    text.max_position_embeddings = empty + 20
    try:
        rows = EditBatch(batch.source, ["make the red circle a little larger " * 60] * 4, batch.edited)
        cut = scorer.fitting(rows.instruction[0], 0, rows)
        inputs = scorer.inputs([scorer.prompt(cut, 0) + ANSWER], rows.source[:1], rows.edited[:1])
        assert empty + 10 < inputs["input_ids"].shape[1] <= empty + 20
        assert (inputs["input_ids"] == scorer.token).sum() == 1
        assert rows.instruction[0].startswith(cut[:20])
        assert scorer(rows).valid.all()
        assert scorer.fitting("make it red", 0, rows) == "make it red"
        text.max_position_embeddings = 30
        for instruction in ("make it red", rows.instruction[0]):
            with pytest.raises(ValueError, match="longer than the model's context"):
                scorer.fitting(instruction, 0, rows)
    finally:
        text.max_position_embeddings = before


def length(scorer: Adiee, instruction: str, rows: EditBatch) -> int:
    """The tokens of the first question with the answer."""
    texts = [scorer.prompt(instruction, 0) + ANSWER]
    return scorer.inputs(texts, rows.source[:1], rows.edited[:1])["input_ids"].shape[1]


INSTRUCTIONS = ["recolour the circles", "two squares, three rings!", "go"]


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_as_much_of_an_instruction_is_kept_as_fits_and_no_more(llava, batch, monkeypatch, instruction):
    scorer = make(llava, question=0)
    tokens = llava.processor.tokenizer(
        instruction, add_special_tokens=False, return_offsets_mapping=True
    ).offset_mapping
    ends = [0, *(end for _, end in tokens)]
    lengths = {end: length(scorer, instruction[:end], batch) for end in ends}
    text = llava.model.config.get_text_config()
    for limit in range(lengths[0], max(lengths.values()) + 2):
        monkeypatch.setattr(text, "max_position_embeddings", limit)
        room = limit - lengths[0]  # in tokens of the whole instruction; a cut word may have more of them
        fits = max(end for end in ends[: room + 1] if lengths[end] <= limit)
        assert scorer.fitting(instruction, 0, batch) == instruction[:fits], limit


def test_larger_images_leave_less_room(llava, batch, monkeypatch):
    """Also where the scorer has seen smaller ones before."""
    scorer = make(llava, question=0, side=None)
    wide = batch.source[..., :32], batch.edited[..., :32]
    small = EditBatch(wide[0][..., :32, :], batch.instruction, wide[1][..., :32, :])
    shorter, longer = sorted(length(scorer, "", rows) for rows in (small, batch))
    assert shorter < longer
    text = llava.model.config.get_text_config()
    monkeypatch.setattr(text, "max_position_embeddings", longer + 4)
    instruction = "make the red circle a little larger"
    for rows in (small, batch, small):
        cut = scorer.fitting(instruction, 0, rows)
        assert length(scorer, cut, rows) <= longer + 4
        assert (cut == instruction) == (length(scorer, instruction, rows) <= longer + 4)


def test_a_layer_counts_its_prefix_and_keeps_one_type_of_keys_and_values():
    k, v = torch.rand(2, 1, 2, 5, 4)
    layer = PrefixLayer([(k, v), (k[:, :, :2], v[:, :, :2])])
    assert layer.get_mask_sizes(3) == (10, 0)
    own = torch.rand(2, 1, 2, 3, 4)
    keys, values = layer.update(own[0], own[1].bfloat16())  # as the rotary embedding leaves them
    assert keys.continuation.dtype == values.continuation.dtype == torch.bfloat16
    assert [part.dtype for part in layer.continuation] == [torch.bfloat16] * 2
    cache = SimpleNamespace(layers=[SimpleNamespace(keys=k, values=v.bfloat16())])
    (prefix,) = split_rows(cache)
    assert prefix.keys[0].dtype == prefix.values[0].dtype == torch.bfloat16


def test_a_tokenizer_that_splits_the_token_is_refused(tmp_path):
    save_vlm(str(tmp_path), "llava_next")
    vlm = load_vlm(str(tmp_path))
    settings = AdieeSettings(side=64)
    with pytest.raises(ValueError, match="splits"):
        Adiee(vlm, ScoreHead(32, settings), settings)
    before = vlm.model.get_input_embeddings().num_embeddings
    number = add_token(vlm.model, vlm.processor)
    assert number == require_token(vlm.processor.tokenizer) == add_token(vlm.model, vlm.processor)
    assert vlm.model.get_input_embeddings().num_embeddings == max(before, number + 1)


def test_a_new_token_begins_as_another_one_and_a_known_one_stays(tmp_path):
    save_vlm(str(tmp_path), "llava_next")
    vlm = load_vlm(str(tmp_path))
    ids = vlm.processor.tokenizer("make it red", add_special_tokens=False).input_ids
    number = add_token(vlm.model, vlm.processor, like="make it red")
    embeddings = vlm.model.get_input_embeddings().weight.data
    assert torch.equal(embeddings[number], embeddings[ids[-1]])
    assert not torch.equal(embeddings[number], embeddings[ids[0]])
    before = embeddings.clone()
    add_token(vlm.model, vlm.processor, like="make")
    assert torch.equal(vlm.model.get_input_embeddings().weight, before)


def test_a_new_token_begins_as_the_mean_where_the_model_has_a_row_for_it_already(tmp_path):
    save_vlm(str(tmp_path), "llava_next")
    vlm = load_vlm(str(tmp_path))
    known = len(vlm.processor.tokenizer)
    vlm.model.resize_token_embeddings(known + 8)
    embeddings = vlm.model.get_input_embeddings().weight.data
    embeddings[known:] = 7.0
    number = add_token(vlm.model, vlm.processor)
    assert number == known
    embeddings = vlm.model.get_input_embeddings().weight.data
    torch.testing.assert_close(embeddings[number], embeddings[:known].mean(0))


def test_words_of_the_questions_become_tokens_of_their_own(batch, tmp_path):
    save_vlm(str(tmp_path / "vlm"), "llava_next")
    vlm = load_vlm(str(tmp_path / "vlm"))
    tokenizer, texts = vlm.processor.tokenizer, [question(number, "", "pair") for number in range(4)]
    number = add_token(vlm.model, vlm.processor)

    def tokens(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    parts, whole = tokens("somebody"), tokens("somebodys")
    embeddings = (vlm.model.get_input_embeddings, vlm.model.get_output_embeddings)
    before = [own().weight.detach().clone() for own in embeddings]
    assert len(parts) > 1
    added = add_words(vlm.model, vlm.processor, "pair")
    assert added > 20
    assert add_words(vlm.model, vlm.processor, "pair") == 0
    for text in texts:
        words = re.findall(r"[a-z]+", text.lower())
        assert len(tokens(" ".join(words))) == len(words)
    assert tokens("somebodys") == whole  # no other word is taken apart another way
    (own,) = tokens("Somebody")
    for old, new in zip(before, embeddings, strict=True):
        torch.testing.assert_close(new().weight[own], old[parts].mean(0))
        assert len(new().weight) == len(tokenizer)
    assert require_token(tokenizer) == number

    scorer = make(vlm)
    scorer.save(tmp_path / "scorer")
    again = Adiee.from_pretrained(str(tmp_path / "scorer"))
    assert len(again.vlm.processor.tokenizer("somebody", add_special_tokens=False).input_ids) == 1
    torch.testing.assert_close(again(batch).score, scorer(batch).score, rtol=1e-5, atol=1e-5)


def test_what_is_saved_scores_the_same(llava, batch, tmp_path):
    scorer = make(llava, axes=("overall", "quality"))
    scorer.save(tmp_path)
    again = Adiee.from_pretrained(str(tmp_path))
    assert again.settings == scorer.settings
    torch.testing.assert_close(again(batch).score, scorer(batch).score, rtol=1e-5, atol=1e-5)
    assert Adiee.from_pretrained(str(tmp_path), dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="dtype: expected one such as float32"):
        Adiee.from_pretrained(str(tmp_path), dtype="float33")


def test_checkpoints_that_lack_something_are_refused(llava, tmp_path):
    with pytest.raises(ValueError, match=r"expected a folder with adiee\.json"):
        Adiee.from_pretrained(str(tmp_path))
    make(llava).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "clip"}))
    with pytest.raises(ValueError, match="is a clip; expected one of"):
        Adiee.from_pretrained(str(tmp_path))
    with pytest.raises(ValueError, match="different names"):
        AdieeSettings(axes=("a", "a"))

"""BPM with the models that the paper names, at small size: the command of the page, on a real photograph."""

import shlex
import shutil

import pytest
import torch
import transformers as t
from PIL import Image
from skimage import data
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rewardedit.cli import main
from rewardedit.config import parse_value
from rewardedit.instructions.llm import OBJECTS, POSITION, SIZE
from rewardedit.models import resolve_model
from tests.models import tiny_gemma
from tests.readme import ROOT, blocks
from tests.region_models import save_detector, save_segmenter

INSTRUCTION = "make the woman's suit white"
ANSWERS = {
    OBJECTS.format(instruction=INSTRUCTION): "before: suit\nafter: white suit",
    SIZE.format(instruction=INSTRUCTION): "unchanged",
    POSITION.format(
        instruction=INSTRUCTION, source="suit", target="white suit"
    ): "relation: unchanged\nof: none",
}


def save_gemma(folder: str) -> None:
    """A tiny Gemma-2 over bytes that has learned by heart what it is asked here."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab=words, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for turn in messages %}{{ turn['content'] }}{% endfor %}|"
    model = tiny_gemma(len(words), pad_token_id=0, eos_token_id=1, bos_token_id=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    pairs = []
    for question, answer in ANSWERS.items():
        asked = tokenizer(f"{question}|").input_ids
        said = [*tokenizer(answer).input_ids, 1]
        pairs.append((torch.tensor([asked + said]), torch.tensor([[-100] * len(asked) + said])))
    for _ in range(60):
        largest = 0.0
        for ids, labels in pairs:
            loss = model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            largest = max(largest, loss.item())
        if largest < 0.005:
            break
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A folder in which the hub's names lead to small models of the same classes."""
    folder = tmp_path_factory.mktemp("hub")
    save_detector(str(folder / "IDEA-Research" / "grounding-dino-base"), "grounding-dino")
    save_segmenter(str(folder / "facebook" / "sam-vit-huge"), "sam")
    save_gemma(str(folder / "princeton-nlp" / "gemma-2-9b-it-SimPO"))
    shutil.copytree(resolve_model("shapes/clip"), folder / "openai" / "clip-vit-large-patch14")
    photo = Image.fromarray(data.astronaut()).resize((320, 240))
    photo.save(folder / "photo.jpg", quality=95)
    photo.point(lambda level: min(255, level + 30)).save(folder / "edited.png")
    return folder


def words_of_the_page() -> list[str]:
    """The command that names these models, without its program, and with the instruction known here."""
    page = (ROOT / "docs" / "score.md").read_text()
    (command,) = (block for block in blocks(page, "bash") if "gemma" in block)
    program, score, source, edited, _, *options = shlex.split(command)
    assert (program, score) == ("rewardedit", "score")
    return [score, source, edited, INSTRUCTION, *options]


def test_the_page_s_command_runs_on_a_photograph(hub, monkeypatch, capsys):
    monkeypatch.chdir(hub)
    assert main(words_of_the_page()) == 0
    said = capsys.readouterr().out
    for part in ("modify", "preserve", "size", "position"):
        assert part in said
    assert "nan" not in said
    assert Image.open(hub / "why.png").width > 320


def test_the_page_s_models_parse_locate_and_judge(hub, monkeypatch):
    """Every model is the one that is named, and each does its part."""
    from rewardedit import EditBatch, load_image, load_scorer

    monkeypatch.chdir(hub)
    words = words_of_the_page()
    options = parse_value(words[words.index("--scorer") + 1])["bpm"]
    scorer = load_scorer("bpm", **options)
    finder = scorer.locator.finder
    assert type(finder.detector.model) is t.GroundingDinoForObjectDetection
    assert type(finder.segmenter.model) is t.SamModel
    assert type(scorer.model) is t.CLIPModel
    (parsed,) = scorer.parser([INSTRUCTION])
    assert (parsed.source, parsed.target, parsed.size) == ("suit", "white suit", "unchanged")
    source, edited = (load_image(name)[None] for name in ("photo.jpg", "edited.png"))
    scores = scorer(EditBatch(source, [INSTRUCTION], edited))
    assert scores.valid.all()
    regions = scorer.masks(source, edited, [INSTRUCTION])
    assert regions.shape == (1, 1, 240, 320)
    assert 0 < regions.mean() < 1

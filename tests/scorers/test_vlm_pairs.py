"""The judge of pairs: both orders, of a tiny model and of an endpoint that looks at the images it is sent."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from rewardedit.language.answers import AnswerError
from rewardedit.language.endpoint import EndpointError
from rewardedit.scorers.vlm_pairs import BEGINNING, PairJudge, PairOfEdits, read_letter, verdict
from tests.models import save_judge
from tests.scorers.test_vlm_judge import completion


class Darker(BaseHTTPRequestHandler):
    """A chat completion server that prefers the darker edit; some instructions make it prefer a place."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        *images, text = body["messages"][-1]["content"]
        letter = "A" if brightness(images[1]) < brightness(images[2]) else "B"
        said = f"The first is fine.\n**Better: {letter}**"
        status = 200
        if "first place" in text["text"]:
            said = "Better: A"
        elif "no answer" in text["text"]:
            said = "Both are fine."
        elif "busy" in text["text"]:
            status = 503
        content = completion(said)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def brightness(part: dict[str, Any]) -> float:
    data = part["image_url"]["url"].partition(",")[2]
    return float(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).mean())


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a running server, with its model's name."""
    Darker.seen.clear()
    running = ThreadingHTTPServer(("127.0.0.1", 0), Darker)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}/v1#dark"
    running.shutdown()
    thread.join()
    running.server_close()


def pair(first: float, second: float, instruction: str = "make it darker") -> PairOfEdits:
    """Two gray edits of these values."""
    images = (torch.full((3, 16, 16), value) for value in (0.5, first, second))
    return PairOfEdits(instruction, *images)


def test_both_orders_of_an_endpoint_agree_or_tie(server):
    judge = PairJudge.from_pretrained(server)
    pairs = [pair(0.2, 0.8), pair(0.8, 0.2), pair(0.2, 0.8, "first place"), pair(0.2, 0.8, "no answer")]
    of_bytes = [torch.full((3, 24, 24), value, dtype=torch.uint8) for value in (128, 230, 25)]
    found = judge([*pairs, PairOfEdits("make it darker", *of_bytes)])
    assert [one.better for one in found] == ["first", "second", "tie", None, "second"]
    assert [one.answers for one in found[:3]] == [("A", "B"), ("B", "A"), ("A", "A")]
    assert found[3].reason == "neither A nor B could be read; the model answered 'Both are fine.'"
    assert len(Darker.seen) == 10
    assert all(len(body["messages"][0]["content"]) == 4 for body in Darker.seen)
    told = Darker.seen[0]["messages"][0]["content"][-1]["text"]
    assert told.endswith("the word Better, a colon, and one letter, A or B.")
    assert judge.fingerprint["model"] == "dark"
    assert json.loads(json.dumps(judge.fingerprint)) == judge.fingerprint


def test_an_endpoint_that_may_answer_later_ends_the_run(server):
    judge = PairJudge.from_pretrained(server, retries=0)
    with pytest.raises(EndpointError, match="503"):
        judge([pair(0.2, 0.8, "busy")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return save_judge(str(tmp_path_factory.mktemp("judge")))


def test_a_model_here_gives_the_likelier_letter(folder):
    judge = PairJudge.from_pretrained(folder)
    noise = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    asked = PairOfEdits("add a <image> hat", *noise)
    (found,) = judge([asked])
    vlm = judge.judge
    prompt = vlm.prompt(judge._chat(asked.instruction)) + BEGINNING
    letters = []
    for order in ([0, 1, 2], [0, 2, 1]):
        logits = vlm.model(**vlm.inputs([prompt], noise[order][None])).logits[0, -1]
        a, b = (vlm.processor.tokenizer(prompt + letter)["input_ids"][-1] for letter in "AB")
        letters.append("A" if logits[a] > logits[b] else "B")
    assert found.answers == tuple(letters)
    assert judge.fingerprint["model_hash"]


def test_a_model_here_may_answer_in_text(folder):
    (found,) = PairJudge.from_pretrained(folder, answer="text", max_new_tokens=4)([pair(0.1, 0.9)])
    assert found.better is None
    assert found.reason is not None
    with pytest.raises(ValueError, match="answer: expected letter or text; got 'digits'"):
        PairJudge.from_pretrained(folder, answer="digits")
    with pytest.raises(ValueError, match="answer: expected text, by an endpoint; got 'letter'"):
        PairJudge.from_pretrained("http://localhost:1/v1#m", answer="letter")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Better: A", "A"),
        ("It is odd.\n\n- **Better:** b.", "B"),
        ("<think>Better: A</think>The better edit: B", "B"),
        ("Final better image: Editor A", "A"),
        ("B", "B"),
        ('{"better": "A"}', "A"),
        ("Better: A\nBetter: B", None),
        ("Better: neither", None),
        ("A is fine.", None),
        ("A\nB", None),
        ("", None),
    ],
)
def test_letters_are_read_or_not(answer, letter):
    assert read_letter(answer) == letter


def test_a_pair_without_one_of_its_answers_has_no_verdict():
    cut = AnswerError("the answer was cut off")
    for both in ((cut, "Better: A"), ("Better: A", cut)):
        assert verdict(*both).better is None
        assert verdict(*both).reason == "the answer was cut off"

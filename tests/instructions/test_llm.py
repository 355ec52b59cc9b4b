"""Parsing by a language model: how answers are read, what is asked again, a real server, a real model."""

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rewardedit.instructions import ParsedEdit
from rewardedit.instructions.llm import (
    LlmParser,
    load_chat_model,
    parsed_edit,
    read_objects,
    read_position,
    read_size,
)
from rewardedit.instructions.load import load_parser
from rewardedit.instructions.parsed import Unparsed
from rewardedit.language.answers import AnswerError, text_of
from rewardedit.language.endpoint import Endpoint, EndpointError
from tests.models import causal_tokenizer, tiny_gemma


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("before: lamp\nafter: candle", ("lamp", "candle")),
        ("Sure!\n**Before:** The lamp.\n**After:** a candle", ("lamp", "candle")),
        ("before: none\nafter: bear", ("", "bear")),
        ("before: bike\nafter: None", ("bike", "")),
        ("before: none\nafter: none", None),
        ("before: (none)\nafter: [bear]", ("", "bear")),
        ("before: lamp", None),
        ("before:\nafter: bear", ("", "bear")),
        ("a lamp becomes a candle", None),
        ("before\uff1alamp\r\nafter\uff1acandle\r\n", ("lamp", "candle")),
        ('```json\n{"before": null, "after": "a bear"}\n```', ("", "bear")),
        ("<think>before: cup\nafter: hat</think>before: lamp\nafter: candle", ("lamp", "candle")),
        ("<think>before: lamp\nafter: candle", None),
        ("before: lamp\nafter: candle\nafter: hat", None),
        ("before: lamp\nafter: candle\n\nbefore: The lamp.\nafter: candle", ("lamp", "candle")),
    ],
)
def test_objects_are_read(answer, found):
    assert read_objects(answer) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("larger", "larger"),
        ("Bigger.", "larger"),
        ("The size is decreased", "smaller"),
        ('"unchanged"', "unchanged"),
        ("No change", "unchanged"),
        ("larger or smaller", None),
        ("blue", None),
        ("", None),
        ("**Larger**\r\n", "larger"),
        ('{"size": "smaller"}', "smaller"),
        ("<think>larger or", None),
        ("<think>smaller?</think>larger", "larger"),
    ],
)
def test_sizes_are_read_with_their_synonyms(answer, found):
    assert read_size(answer) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("relation: above\nof: the tower", ("up", "tower")),
        ("Relation: on top of\nOf: tower.", ("up", "tower")),
        ("relation: next to\nof: dog", ("near", "dog")),
        ("relation: unchanged\nof: none", ("unchanged", None)),
        ("relation: left", ("left", None)),
        ("relation: top left\nof: none", ("top left", None)),
        ("relation: diagonal\nof: dog", None),
        ("it is above the tower", None),
    ],
)
def test_relations_are_read_with_their_synonyms(answer, found):
    assert read_position(answer) == found


@pytest.mark.parametrize(
    ("objects", "size", "place", "expected"),
    [
        (("", "bear"), "unchanged", ("up", "roof"), ParsedEdit("add", None, "bear", "roof", position="up")),
        (("bike", ""), "unchanged", ("unchanged", None), ParsedEdit("remove", "bike", None)),
        (("cup", "blue cup"), "unchanged", ("unchanged", None), ParsedEdit("recolour", "cup", "blue cup")),
        (
            ("bread", "moldy bread"),
            "unchanged",
            ("unchanged", None),
            ParsedEdit("modify", "bread", "moldy bread"),
        ),
        (("cat", "dog"), "unchanged", ("unchanged", None), ParsedEdit("replace", "cat", "dog")),
        (("cup", "cup"), "larger", ("unchanged", None), ParsedEdit("resize", "cup", "cup", size="larger")),
        (("cup", "cup"), "unchanged", ("left", None), ParsedEdit("move", "cup", "cup", position="left")),
        (("cup", "cup"), "unchanged", ("left", "cup"), ParsedEdit("move", "cup", "cup", position="left")),
        (
            ("", "cup"),
            "unchanged",
            ("top left", "image"),
            ParsedEdit("add", None, "cup", position="top left"),
        ),
        (
            ("unclear", "pizza"),
            "unchanged",
            ("unchanged", None),
            ParsedEdit("replace", None, "pizza", ambiguous=True),
        ),
        (
            ("background", "beach"),
            "unchanged",
            ("unchanged", None),
            ParsedEdit("background", "background", "beach", is_global=True),
        ),
    ],
)
def test_the_answers_make_a_parsed_edit(objects, size, place, expected):
    assert parsed_edit(objects, size, place) == expected


GOOD = {
    "Which part": "before: none\nafter: bird",
    "another size": "unchanged",
    "where the edited": "relation: on top of\nof: tower",
}


class Scripted:
    """Answers each question from a table, and keeps what it was asked."""

    def __init__(self, answers: dict[str, str], then: dict[str, str] | None = None) -> None:
        self.answers = answers
        self.then = then or {}
        self.chats: list[Sequence[Any]] = []

    def __call__(self, chats: Sequence[Sequence[Any]]) -> list[str]:
        self.chats += chats
        return [self._one(chat) for chat in chats]

    def _one(self, chat: Sequence[Any]) -> str:
        table = {**self.answers, **self.then} if len(chat) > 1 else self.answers
        return next(answer for part, answer in table.items() if part in chat[0]["content"])


def test_answers_are_read_as_the_grammar_reads_instructions():
    assert read_position("relation: on\nof: the table") == ("on", "table")
    several = parsed_edit(("", "cat and a dog"), "unchanged", ("unchanged", None))
    assert isinstance(several, Unparsed)
    assert "names several objects (cat; a dog)" in several.reason
    night = parsed_edit(("image", "night"), "unchanged", ("unchanged", None))
    assert night == ParsedEdit("style", "image", "night", is_global=True)


def test_the_paper_s_own_prompts_are_asked_and_read():
    answers = ["Original image: None. Edited image: bird.", "Output: unchanged.", '"inside"']
    asked = []

    def answer(chats):
        asked.extend(chat[0]["content"] for chat in chats)
        return [answers[len(asked) - 1]]

    (found,) = LlmParser(answer, "scripted", prompts="paper")(["put a bird into the cage"])
    assert found == ParsedEdit("add", None, "bird", position="inside")
    assert asked[0].startswith("Given an instruction for image editing, output the parts of the original")
    assert asked[2].endswith("Edited area in original image: none. Edited area in edited image: bird.")
    ours, papers = (LlmParser(answer, "scripted", prompts=prompts) for prompts in ("ours", "paper"))
    assert ours._key("add a bird") != papers._key("add a bird"), "what one was answered is not the other's"
    with pytest.raises(ValueError, match="prompts: expected one of ours, paper; got mine"):
        LlmParser(answer, "scripted", prompts="mine")


def test_three_questions_are_asked_and_the_third_knows_the_objects():
    model = Scripted(GOOD)
    (found,) = LlmParser(model, "scripted")(["put a bird on the tower"])
    assert found == ParsedEdit("add", None, "bird", "tower", position="up")
    assert len(model.chats) == 3
    assert "before: none\nafter: bird" in model.chats[2][0]["content"]


def test_an_answer_that_cannot_be_read_is_asked_for_once_more():
    model = Scripted({**GOOD, "another size": "hm"}, {"another size": "larger"})
    (found,) = LlmParser(model, "scripted")(["put a bird on the tower"])
    assert isinstance(found, ParsedEdit)
    assert found.size == "larger"
    assert [len(chat) for chat in model.chats] == [1, 1, 3, 1]
    assert model.chats[2][1] == {"role": "assistant", "content": "hm"}


def test_what_cannot_be_read_twice_is_invalid_with_the_answer():
    model = Scripted({**GOOD, "Which part": "it changes a lot"})
    (found,) = LlmParser(model, "scripted")(["put a bird on the tower"])
    assert found == Unparsed("the model answered 'it changes a lot'")


def test_what_was_parsed_is_kept_and_not_asked_again(tmp_path: Path):
    model = Scripted(GOOD)
    cache = tmp_path / "cache" / "parsed.jsonl"
    parser = LlmParser(model, "scripted", cache)
    texts = ["put a bird on the tower", "add a bird", "put a bird on the tower"]
    first = parser(texts)
    assert len(model.chats) == 6
    again = LlmParser(model, "scripted", cache)(texts)
    assert again == first
    assert len(model.chats) == 6
    LlmParser(model, "another model", cache)(texts[:1])
    assert len(model.chats) == 9
    whole = cache.read_bytes()
    cache.write_bytes(whole[:-20])  # the last line was half written when its process was killed
    assert LlmParser(model, "scripted", cache)(texts) == first
    assert len(model.chats) == 9
    LlmParser(model, "another model", cache)(texts[:1])
    assert len(model.chats) == 12
    assert cache.read_bytes().count(b"another") == 0
    LlmParser(model, "another model", cache)(texts[:1])
    assert len(model.chats) == 12


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe{}",
        b"[" * 100_000,
        b"null",
        b'{"key": 3}',
        b'{"key": "k", "parsed": {}}',
        b'{"key": "%(key)s", "instruction": "add a bird", "parsed": {"edit_type": "add"}}',
        b'{"key": "%(key)s", "instruction": "add a bird", "parsed": {"reason": 7}}',
        b'{"key": "%(key)s", "instruction": "add a bird", "parsed": {"reason": "x", "more": 1}}',
        b'{"key": "%(key)s", "instruction": "add a bird", "parsed": {"edit_type": "add", "source": null, '
        b'"target": ["bird"]}}',
        b'{"key": "%(key)s", "instruction": "add a bird", "parsed": {"edit_type": "add", "source": null, '
        b'"target": "bird", "size": "huge"}}',
        b'{"key": "%(key)s", "instruction": "add a cup", "parsed": {"edit_type": "add", "source": null, '
        b'"target": "cup"}}',
        b'{"key": "%(key)s", "instruction": "add a bird", "parsed": [NaN]}',
    ],
)
def test_what_is_damaged_in_a_cache_is_asked_for_anew(damage, tmp_path):
    model = Scripted(GOOD)
    cache = tmp_path / "parsed.jsonl"
    parser = LlmParser(model, "scripted", cache)
    first = parser(["add a lamp", "add a bird"])
    lines = cache.read_bytes().splitlines()
    key = json.loads(lines[1])["key"].encode()
    cache.write_bytes(lines[0] + b"\n" + damage.replace(b"%(key)s", key) + b"\n")
    assert LlmParser(model, "scripted", cache)(["add a lamp", "add a bird"]) == first
    assert len(model.chats) == 6 + 3, "the other is still known"
    assert LlmParser(model, "scripted", cache)(["add a bird"]) == first[1:]
    assert len(model.chats) == 9


def test_an_answer_that_was_cut_is_invalid_and_asked_for_again(tmp_path):
    model = Scripted(GOOD)
    cache = tmp_path / "parsed.jsonl"

    def answer(chats: Sequence[Sequence[Any]]) -> list[str | AnswerError]:
        return [AnswerError.cut(64, text) for text in model(chats)]

    (found,) = LlmParser(answer, "scripted", cache)(["put a bird on the tower"])
    assert found == Unparsed("the answer was cut off at 64 tokens; raise max_new_tokens")
    (found,) = LlmParser(model, "scripted", cache)(["put a bird on the tower"])
    assert isinstance(found, ParsedEdit)


class Handler(BaseHTTPRequestHandler):
    """A chat completion server: busy at first, then it says what it was asked."""

    seen: ClassVar[list[dict[str, Any]]] = []
    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"path": self.path, "key": self.headers["Authorization"], **body})
        status = self.statuses.pop(0) if self.statuses else 200
        said = {"role": "assistant", "content": f"you said {body['messages'][-1]['content']}"}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        content = json.dumps(answer if status == 200 else {"error": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen.clear()
    Handler.statuses.clear()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/v1"
    httpd.shutdown()
    httpd.server_close()


def ask(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_an_endpoint_answers_chats_in_their_order(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    endpoint = Endpoint(server, "m", key_variable="MY_KEY")
    assert endpoint.answer([ask(f"{i}") for i in range(5)], max_tokens=7) == [
        f"you said {i}" for i in range(5)
    ]
    first = Handler.seen[0]
    assert first["path"] == "/v1/chat/completions"
    assert first["key"] == "Bearer secret"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.0, 7)
    assert endpoint.answer([]) == []


def test_a_busy_endpoint_is_asked_again_and_a_refusal_is_not(server):
    Handler.statuses[:] = [429, 503]
    endpoint = Endpoint(server, "m", pause=0.01)
    assert endpoint.answer([ask("hello")]) == ["you said hello"]
    assert len(Handler.seen) == 3
    Handler.statuses[:] = [401]
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1"):
        endpoint.answer([ask("hello")])
    assert len(Handler.seen) == 4
    Handler.statuses[:] = [500] * 3
    (failed,) = Endpoint(server, "m", pause=0.01, retries=2).answer([ask("hello")])
    assert isinstance(failed, EndpointError)
    assert "model 'm'" in str(failed)
    assert len(Handler.seen) == 7


def test_an_address_with_a_key_is_refused_and_not_told():
    with pytest.raises(ValueError, match="a key belongs in an environment variable") as refused:
        load_parser("http://me:sesame@localhost:1/v1")
    assert "sesame" not in str(refused.value)


def test_an_endpoint_that_is_not_there_says_which(server):
    (failed,) = Endpoint("http://127.0.0.1:9/v1", "m", pause=0.01, retries=1).answer([ask("hello")])
    assert isinstance(failed, EndpointError)
    assert "127.0.0.1:9" in str(failed)


@pytest.mark.parametrize("question", list(GOOD))
def test_an_instruction_without_an_answer_is_invalid_until_it_is_asked_again(question, tmp_path):
    refusal = EndpointError("http://here, model 'm': 400 content filter", 400)
    model = Scripted(GOOD)

    def answer(chats: Sequence[Sequence[Any]]) -> list[str | EndpointError]:
        said = model(chats)
        refused = [question in chat[0]["content"] and "weapon" in chat[0]["content"] for chat in chats]
        return [refusal if no else text for no, text in zip(refused, said, strict=True)]

    cache = tmp_path / "parsed.jsonl"
    texts = ["put a weapon on the tower", "put a bird on the tower"]
    refused, found = LlmParser(answer, "scripted", cache)(texts)
    assert refused == Unparsed("no answer: http://here, model 'm': 400 content filter")
    assert found == ParsedEdit("add", None, "bird", "tower", position="up")
    assert len(cache.read_text().splitlines()) == 1, "the other's answer is kept"
    assert LlmParser(model, "scripted", cache)(texts) == [found, found], "asked again"


@pytest.mark.parametrize("status", [None, 429, 500])
def test_an_endpoint_that_may_answer_later_ends_the_parsing_and_its_other_answers_are_kept(status, tmp_path):
    model = Scripted(GOOD)
    down = EndpointError("http://here: no answer", status)

    def answer(chats: Sequence[Sequence[Any]]) -> list[str | EndpointError]:
        said = model(chats)
        lost = ["weapon" in chat[0]["content"] for chat in chats]
        return [down if no else text for no, text in zip(lost, said, strict=True)]

    cache = tmp_path / "parsed.jsonl"
    with pytest.raises(EndpointError, match="no answer"):
        LlmParser(answer, "scripted", cache)(["put a weapon on the tower", "put a bird on the tower"])
    assert len(cache.read_text().splitlines()) == 1


@pytest.fixture(scope="module")
def gemma(tmp_path_factory) -> str:
    """A tiny Gemma-2 with a chat template."""
    folder = tmp_path_factory.mktemp("gemma")
    tokenizer = causal_tokenizer()
    tokenizer.chat_template = (
        "{% for turn in messages %}{{ turn['role'] }} {{ turn['content'] }} {% endfor %}"
    )
    end = tokenizer.eos_token_id
    tiny_gemma(len(tokenizer), pad_token_id=end, eos_token_id=end, bos_token_id=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_causal_model_answers_alike_alone_and_in_a_batch(gemma):
    answer = load_chat_model(gemma, max_new_tokens=6)
    chats = [ask("red"), ask("a blue circle at the top left"), ask("green star")]
    together = [text_of(one) for one in answer(chats)]
    assert together == [text_of(answer([chat])[0]) for chat in chats]
    assert all(together)


def test_a_model_that_says_nonsense_parses_nothing(gemma):
    found = LlmParser(load_chat_model(gemma, max_new_tokens=6), "gemma")(["add a bird", "remove it"])
    assert all(isinstance(one, Unparsed) for one in found)


def test_a_model_that_is_not_there_or_does_not_chat_is_refused(gemma, tmp_path):
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_chat_model(str(tmp_path / "nowhere"))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gemma)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    AutoModelForCausalLM.from_pretrained(gemma).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no chat template"):
        load_chat_model(str(tmp_path))

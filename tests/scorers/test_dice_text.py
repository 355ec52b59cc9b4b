"""DICE's texts: formatting and strict reading."""

import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rewardedit.regions.differences import COMMANDS, Difference
from rewardedit.regions.frames import FRAMES, framed
from rewardedit.scorers.dice_text import (
    NO_CHANGE,
    PROMPTS,
    DiceFormat,
    coherence_chat,
    detection_chat,
    format_box,
    format_difference,
    format_differences,
    format_judgement,
    framed_pair,
    parse_differences,
    parse_judgement,
    plain_subject,
)

FEW = 60
both = pytest.mark.parametrize("cases", [FEW, pytest.param(6000, marks=pytest.mark.slow)])
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
LIKELY = st.sampled_from(
    ["the dog's red, blue cup", "a', 'b: c, (0,0,1,1)", 'say "hi"', "x, [0.1, 0.2, 0.3, 0.4]", "ADD: cup"]
)
PIECES = st.sampled_from(
    [
        *COMMANDS,
        *":'\"[](),01-\n{ ",
        *("add", "0.5", ".25", "cup", "no change", "NaN", "\\'"),
        *("0.1, 0.2, 0.5, 0.9", "[0,0,1,1]", '"ADD: cup, [0.1, 0.2, 0.5, 0.9]"'),
    ]
)


def check(cases: int, strategy: st.SearchStrategy, property_of: Callable[[Any], None]) -> None:
    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=cases == FEW,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(case: Any) -> None:
        property_of(case)

    run()


@st.composite
def differences(draw: st.DrawFn) -> Difference:
    """Differences on a grid of thousandths with any subject."""
    ends = [sorted(draw(st.lists(st.integers(0, 1000), min_size=2, max_size=2, unique=True))) for _ in "xy"]
    (x0, x1), (y0, y1) = ends
    subject = plain_subject(draw(ANY_TEXT | LIKELY)) or "cup"
    box = (x0 / 1000, y0 / 1000, x1 / 1000, y1 / 1000)
    return Difference(draw(st.sampled_from(COMMANDS)), subject, box)


@both
def test_what_is_written_is_read(cases):
    def same(rows: list[Difference]) -> None:
        parsed = parse_differences(format_differences(rows))
        assert parsed.differences == tuple(rows)
        assert (parsed.items, parsed.dropped) == (len(rows), 0)
        assert parsed.says_no_change == (not rows)

    check(cases, st.lists(differences(), max_size=5), same)


@both
def test_every_box_read_is_in_the_text_and_in_the_image(cases):
    def sound(pieces: list[str]) -> None:
        parsed = parse_differences("".join(pieces))
        assert parsed.dropped >= 0
        ends = [*parsed.starts, len(parsed.text)][1:]
        assert not (parsed.says_no_change and parsed.differences)
        for difference, start, end in zip(parsed.differences, parsed.starts, ends, strict=True):
            item = parsed.text[start:end]
            assert item.upper().startswith(difference.command)
            x0, y0, x1, y1 = difference.box
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1
            assert difference.box in _fours(item), "four numbers in a row of its own item"
            assert not re.search(rf"\b({'|'.join(COMMANDS)})\s*:", difference.subject, re.IGNORECASE)
            assert not _fours(difference.subject), "a box is in no subject"
            assert difference.subject == plain_subject(difference.subject) != ""

    check(cases, answers() | st.lists(PIECES | ANY_TEXT, max_size=25), sound)


@st.composite
def answers(draw: st.DrawFn) -> list[str]:
    """Lists of whole differences, the marks between some of which are missing or others."""
    rows = [format_difference(one) for one in draw(st.lists(differences(), min_size=1, max_size=4))]
    pieces = ['["', rows[0]]
    for row in rows[1:]:
        pieces += [draw(st.sampled_from(['", "', '" "', ", ", '"']) | PIECES), row]
    return [*pieces, draw(st.sampled_from(['"]', '",]', '".]']))]


def _fours(text: str) -> list[tuple[float, ...]]:
    """The numbers of all boxes in a text."""
    number = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
    found = re.findall(rf"[\[(]{','.join([number] * 4)}[\])]", text)
    return [tuple(map(float, one)) for one in found]


@both
def test_subjects_of_any_text_become_plain_and_stay_so(cases):
    def plain(text: str) -> None:
        subject = plain_subject(text)
        assert plain_subject(subject) == subject
        assert not set('"[]{}') & set(subject)

    check(cases, ANY_TEXT | LIKELY, plain)


@both
def test_any_answer_of_a_judge_is_yes_no_or_neither(cases):
    words = st.sampled_from(["Decision:", "decision :", "YES", "no", " ", "Reasoning:", "a cup.", "\n", "**"])

    def sound(pieces: list[str]) -> None:
        judgement = parse_judgement("".join(pieces))
        assert judgement.coherent in (True, False, None)
        if judgement.coherent is not None:
            word = judgement.text[judgement.start :].lower()
            assert word.startswith("yes" if judgement.coherent else "no")

    check(cases, st.lists(words | ANY_TEXT, max_size=12), sound)


ONE = "ADD: cup, [0.1, 0.2, 0.5, 0.9]"


@pytest.mark.parametrize(
    ("answer", "read", "items"),
    [
        (f'["{ONE}"]', 1, 1),
        (f"['{ONE}', \"EDIT: dog's, (0,0.25,1,1)\"]", 2, 2),
        ("['ADD: the dog's cup, [0, 0, 1, 1]', 'REMOVE: a, b, [0,0,1,.5]']", 2, 2),
        ("['add : red circle , [ 0.12 , 0.3 , 0.5 , 0.6 ]'].", 1, 1),
        (f'```python\n["{ONE}"]\n```', 1, 1),
        (f'["{ONE}", "MOVE: cup, [0, 0, 1, 1]", "ADD: cup"]', 1, 3),
        ('["ADD: cup, [0.5, 0, 0.1, 1]", "ADD: cup, [0, 0, 1.2, 1]", "ADD: cup, [0, 0, 0, 1]"]', 0, 3),
        ('["ADD: cup, [-0.1, 0, 1, 1]", "ADD: cup, [nan, 0, 1, 1]", "ADD: , [0, 0, 1, 1]"]', 0, 3),
        ('["ADD: cup, [0, 0, 1]", "ADD: cup [0, 0, 1, 1]"]', 0, 2),
        (f'["{ONE}",]', 1, 1),
        (f'["{ONE}", "{ONE}" , ].', 2, 2),
        (f'["{ONE}" "REMOVE: b, [0, 0, 1, 1]"]', 0, 2),
        (f'["{ONE}, REMOVE: b, [0, 0, 1, 1]"]', 0, 2),
        (f'["{ONE}", "ADD: x, (0, 0, .5, 1), [0, 0, 1, 1]", "EDIT: edit: b, [0, 0, 1, 1]"]', 1, 4),
        (f'["{ONE}", {ONE}, {ONE}]', 0, 3),
        (f"[{ONE}]", 0, 1),
        (f'"{ONE}"', 0, 0),
        (ONE, 0, 0),
        (f'The differences are ["{ONE}"]', 0, 0),
        ("[]", 0, 0),
        ("", 0, 0),
        ("<think>no change", 0, 0),
    ],
)
def test_answers_are_read_strictly(answer, read, items):
    parsed = parse_differences(answer)
    assert (len(parsed.differences), parsed.items, parsed.dropped) == (read, items, items - read)
    assert not parsed.says_no_change


@pytest.mark.parametrize("answer", [NO_CHANGE, "No change.", '["No Change"]', "['no changes']", "nochange"])
def test_an_answer_says_that_nothing_changed(answer):
    assert parse_differences(answer).says_no_change


BLANKS = " " * 2**17


@pytest.mark.parametrize(
    "answer",
    [
        f'["ADD: {BLANKS}x, [0,0,1,1"]',
        f'["ADD: x{BLANKS}",{BLANKS}x]',
        f'["ADD: x, [0{BLANKS}"]',
        '["ADD: x, ' + "[0," * 2**16 + '"]',
        "[" + '"",' * 2**14 + "]",
        f"[]{BLANKS}x",
        f"Reasoning: {BLANKS}x{BLANKS}x",
        f"Reasoning: x Decision:{BLANKS}x",
        f"```{BLANKS}!",
        "x" + "*" * 2**17 + "x",
    ],
)
def test_long_answers_are_read_in_one_pass(answer):
    """Reading pairs of 131,072 characters would take minutes; the bound is 5 s of the process's own time."""

    def too_long(*_: Any) -> None:
        raise AssertionError("the time grows with the square of the length")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5)
    try:
        assert not parse_differences(answer).differences
        assert parse_judgement(answer).coherent is None
        assert plain_subject(answer)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_boxes_have_at_least_one_step():
    assert format_box((0.5, 0.5, 0.5001, 0.5001), 2) == "[0.50, 0.50, 0.51, 0.51]"
    assert format_box((0.9999, 0, 1, 1), 2) == "[0.99, 0.00, 1.00, 1.00]"
    with pytest.raises(ValueError, match="subject: expected a name of the object"):
        format_difference(Difference("ADD", " * ", (0.0, 0.0, 1.0, 1.0)))


def test_judgements_are_written_and_read():
    for coherent in (True, False):
        judgement = parse_judgement(format_judgement(coherent, "a dog was asked for."))
        assert (judgement.coherent, judgement.reason) == (coherent, "a dog was asked for.")
        assert parse_judgement(format_judgement(coherent)).coherent is coherent
    for answer in ("", "Decision: perhaps", "YES", "Decision: YES. Decision: NO", "Decision: yesterday"):
        assert parse_judgement(answer).coherent is None


@pytest.mark.parametrize(
    ("answer", "coherent"),
    [
        ("Reasoning: one sentence. Decision: YES or NO", None),
        ("Decision: YES/NO", None),
        ("Decision: NO or YES.", None),
        ("Decision: no | yes\nDecision: YES", None),
        ("**Decision:** YES.", True),
        ("Decision: NO!\nYes, I am sure.", False),
        ("Decision: YES, as a cup was asked for. Decision: YES", True),
    ],
)
def test_an_echo_of_the_question_decides_nothing(answer, coherent):
    assert parse_judgement(answer).coherent is coherent


def test_images_come_before_the_detector_s_text_without_instruction():
    for prompts in PROMPTS:
        ((turn),) = detection_chat(prompts)
        assert [part["type"] for part in turn["content"]] == ["image", "image", "text"]
        assert "{" not in turn["content"][2]["text"]


def test_the_code_s_layout_has_a_system_prompt_and_text_first():
    one = Difference("ADD", "cup", (0.0, 0.0, 0.5, 0.5))
    system, user = coherence_chat("add a {cup}", one, DiceFormat(prompts="code"))
    assert system["role"] == "system"
    assert "Decision: YES or NO" in system["content"][0]["text"]
    assert [part["type"] for part in user["content"]] == ["text", "image", "image"]
    assert 'Instruction: "add a {cup}". Difference: ADD: cup.' in user["content"][0]["text"]
    (full,) = coherence_chat("add a cup", one)
    assert [part["type"] for part in full["content"]] == ["image", "image", "text"]


def test_unknown_settings_of_texts_are_refused():
    assert DiceFormat.of({"prompts": "short", "decimals": 2}) == DiceFormat("short", 2)
    with pytest.raises(ValueError, match=r"dice.json: expected prompts, decimals, .*; got \['colour'\]"):
        DiceFormat.of({"colour": 1})
    for settings_of_others in ({"prompts": []}, {"decimals": True}, {"rationale": "yes"}, {"base": 1}):
        with pytest.raises(ValueError, match="expected another type"):
            DiceFormat.of(settings_of_others)
    with pytest.raises(ValueError, match="prompts: expected one of full, code, short; got 'long'"):
        DiceFormat.of({"prompts": "long"})
    with pytest.raises(ValueError, match="decimals: expected 1 to 6; got 0"):
        DiceFormat(decimals=0)


def test_a_frame_lies_around_its_box_in_its_colour():
    image = torch.full((3, 20, 40), 0.5)
    out = framed(image, (0.25, 0.25, 0.5, 0.75), FRAMES["EDIT"])
    green = torch.tensor([0.0, 1.0, 0.0])
    assert torch.equal(out[:, 4, 9], green)
    assert torch.equal(out[:, 15, 20], green)
    assert torch.equal(out[:, 5:15, 10:20], image[:, 5:15, 10:20])
    assert int((out != image).any(0).sum()) == 2 * 12 + 2 * 10
    whole = framed(image, (0.0, 0.0, 1.0, 1.0), FRAMES["ADD"])
    assert int((whole != image).any(0).sum()) == 2 * 40 + 2 * 18


def test_both_images_are_framed_and_the_code_frames_one():
    image = torch.full((3, 16, 16), 0.5)
    one = Difference("REMOVE", "cup", (0.2, 0.2, 0.6, 0.6))
    pair = framed_pair(image, image, one)
    assert (pair != 0.5).flatten(1).any(1).tolist() == [True, True]
    code = framed_pair(image, image, one, DiceFormat(prompts="code"))
    assert (code != 0.5).flatten(1).any(1).tolist() == [True, False]

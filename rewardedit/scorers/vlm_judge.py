"""A training-free judge of edits by any vision-language model, with the criteria of VIEScore or HQ-Edit."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rewardedit.batch import EditBatch, Scores
from rewardedit.images import resize
from rewardedit.language.endpoint import Endpoint
from rewardedit.language.endpoint_settings import ADDRESS
from rewardedit.language.judge_models import load_judge
from rewardedit.language.model_hash import model_hash
from rewardedit.language.vlm import Vlm, reserved_tokens, without
from rewardedit.models import JUDGE
from rewardedit.prepared import Prepared
from rewardedit.regions.change_map import change_mask
from rewardedit.scorers.base import Scorer, recomputed
from rewardedit.scorers.vlm_judge_graders import ByDigits, ByEndpoint, ByEndpointDigits, ByText
from rewardedit.scorers.vlm_judge_prompts import (
    ANSWERS,
    BEGINNING,
    GROUPS,
    Example,
    Question,
    chat,
    questions,
)

COVER_GRAY = 0.5  # covers the parts of an image that are not to be judged
VISIBLE = 0.5  # least weight of a pixel that counts as visible
Images = tuple[Tensor, Tensor]  # source and edited, each (b, 3, h, w)


class VlmJudge(Scorer):
    """√(consistency · quality), in [0, 10], from a vision-language model's grades of an edit (VIEScore).

    Consistency and quality are the least of their aspects' grades; `parts` holds all of them, in [0, 10].
    The criteria are "viescore" (followed, preserved; natural, clean) or "hq_edit" (alignment; coherence).
    HQ-Edit reports its two grades separately; combining them in the same way is ours. Aspects of consistency
    see source, edited image and instruction, those of quality the edited image only; captions and ground
    truth are not used.

    `answer="digits"`: the expected grade over the digits' logits, in one forward pass per aspect. It has a
    gradient with respect to the edited image if the model's preprocessing is reimplemented here (LLaVA-NeXT,
    Idefics3, Qwen2.5-VL). `answer="text"`: the model writes its reasons and then a grade, greedily, without a
    gradient; if no grade can be read, the row is invalid, with the answer as the reason. Endpoints answer in
    text, and those that return logprobs also in digits: the grade is then the expectation over the first
    token of the answer, and `parts` holds the probability of all digits together (`ByEndpointDigits`).

    `apart=True` asks separately about the inside and the outside of the change mask (where source and edited
    image differ), with gray for the rest: inside, all aspects; outside, whether everything is kept, and
    quality. In a row without a change, or with changes everywhere, both see the whole image.

    `example`: an edit with its grades that is shown first (one-shot, ADIEE App. D), stretched to the size of
    the judged images.

    Two runs on one machine give the same scores; `fingerprint` lists what must be equal for that. It cannot
    vouch for an endpoint, whose model may change behind its name.
    """

    range = (0.0, 10.0)
    paper = "VIEScore (Ku et al. 2024); HQ-Edit (Hui et al. 2024); ADIEE App. D"
    family = "vlm_judge"
    differentiable = True  # with answer="digits", if the model's preprocessing is reimplemented here

    def __init__(
        self,
        judge: Vlm | Endpoint,
        name: str,
        criteria: str = "viescore",
        answer: str | None = None,
        apart: bool = False,
        example: Example | None = None,
        max_new_tokens: int = 256,
        digit_ids: Sequence[int] | None = None,
        min_digit_probability: float = 0.5,
    ) -> None:
        """
        Args:
            name: the model's name, for `fingerprint`.
            answer: "digits" or "text"; by default "digits", for an endpoint "text".
            max_new_tokens: most tokens of an answer in text.
            digit_ids: the tokens of the digits 0 to 9, for a vLLM server: their probabilities are then exact
                outside of the most probable 20 tokens, too.
            min_digit_probability: of the digits together as an endpoint's first token; below it a row is
                invalid.

        Raises:
            ValueError: on unknown criteria or an unknown form of answer, a tokenizer that splits digits, an
                example that does not grade the questions, `digit_ids` without an endpoint's digits, or a
                number out of range.
        """
        super().__init__()
        local = isinstance(judge, Vlm)
        answer = answer or ("digits" if local else "text")
        if answer not in ANSWERS:
            raise ValueError(f"answer: expected one of {', '.join(ANSWERS)}; got {answer!r}")
        if not 0 < min_digit_probability <= 1:
            raise ValueError(f"min_digit_probability: expected 0 to 1; got {min_digit_probability}")
        if digit_ids is not None and (local or answer != "digits" or len(set(digit_ids)) != 10):
            raise ValueError(
                f"digit_ids: expected ten tokens, and an endpoint with answer='digits'; got {digit_ids}"
            )

        self.questions = questions(criteria, apart)
        if example is not None:
            example.check(self.questions, answer)
        self.name = name
        self.criteria = criteria
        self.answer = answer
        self.apart = apart
        self.example = example
        self.endpoint = judge if isinstance(judge, Endpoint) else None
        self.vlm = judge if isinstance(judge, Vlm) else None
        self.reserved: list[str] = []
        self.grader: ByDigits | ByText | ByEndpoint
        if isinstance(judge, Endpoint):
            by_digits = ByEndpointDigits(judge, digit_ids, min_digit_probability)
            self.grader = by_digits if answer == "digits" else ByEndpoint(judge, max_new_tokens)
        else:
            self.model = judge.model  # so that it moves with the scorer
            self.reserved = reserved_tokens(judge)
            self.grader = ByDigits(judge) if answer == "digits" else ByText(judge, max_new_tokens)
        self.differentiable = self.grader.differentiable

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str = JUDGE,
        criteria: str = "viescore",
        answer: str | None = None,
        apart: bool = False,
        example: str | None = None,
        adapter: str | None = None,
        max_new_tokens: int = 256,
        seed: int = 0,
        key_variable: str | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        longest_wait: float = 120.0,
        dtype: torch.dtype | str | None = None,
        quantize: str | None = None,
        digit_ids: Sequence[int] | None = None,
        min_digit_probability: float = 0.5,
    ) -> "VlmJudge":
        """Loads a judge with a model by hub name or folder, or behind an endpoint, "URL#MODEL", such as
        "http://localhost:8000/v1#qwen".

        Args:
            example: a JSON file for `Example.load`.
            adapter: a LoRA on the model, by hub name or folder.
            seed: sent to an endpoint; greedy decoding here draws nothing at random.
            key_variable: the environment variable that holds the endpoint's key, by the rules of
                `rewardedit.language.endpoint_settings`; None: OPENAI_API_KEY for OpenAI's own host, and no
                key for others.
            timeout: seconds for a whole answer of the endpoint.
            retries: further attempts if the endpoint is busy or fails.
            longest_wait: most seconds before a retry, whatever the endpoint requests.
            dtype: the weights' dtype, or its name; None: "bfloat16" if there is a GPU, else "float32".
            quantize: stores the language model's weights in "4bit" or "8bit" (see `load_vlm`).
            digit_ids: setting of an endpoint with answer="digits"; see `VlmJudge`.
            min_digit_probability: setting of an endpoint with answer="digits"; see `VlmJudge`.

        Raises:
            ValueError: if the model cannot be loaded or is refused, an endpoint has no model's name, or an
                option does not fit.
        """
        shown = None if example is None else Example.load(example)
        waits = {"timeout": timeout, "retries": retries, "longest_wait": longest_wait}
        judge, model = open_judge(checkpoint, adapter, key_variable, dtype, quantize, seed=seed, **waits)
        numbers = (max_new_tokens, digit_ids, min_digit_probability)
        return cls(judge, model, criteria, answer, apart, shown, *numbers)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The model and its hash (for an endpoint, its address), a hash of the prompts and the example, the
        decoding settings, and the seed.
        """
        fingerprint: dict[str, Any] = {"model": self.name}
        if self.endpoint is not None:
            fingerprint |= {"endpoint": self.endpoint.url, "model_hash": None, "seed": self.endpoint.seed}
        else:
            assert self.vlm is not None
            fingerprint |= {"endpoint": None, "model_hash": model_hash(self.vlm), "seed": None}
        return fingerprint | {
            "criteria": self.criteria,
            "apart": self.apart,
            "prompt_hash": self._prompt_hash(),
            "decoding": self.grader.decoding(),
        }

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        shown = views(batch.source, batch.edited, self.apart)
        if self.vlm is not None:
            self.vlm.note_cut(batch.instruction, self.family)
        instructions = list(map(self._plain, batch.instruction))

        questions = []
        for question in self.questions:
            chats = [chat(question, text, self.grader.form, self.example) for text in instructions]
            questions.append((chats, self._images(question, shown[question.view])))

        parts: dict[str, Tensor] = {}
        reasons: list[list[str]] = [[] for _ in instructions]
        for question, graded in zip(self.questions, self.grader(questions), strict=True):
            parts[question.name] = graded.grades
            parts |= {f"{question.name}_{name}": values for name, values in graded.parts.items()}
            for row, reason in zip(reasons, graded.reasons, strict=True):
                if reason is not None:
                    row.append(f"{question.name}: {reason}")

        groups = combine(self.questions, parts)
        score = geometric_mean(groups["consistency"], groups["quality"])
        return Scores.make(score, parts | groups, ["; ".join(row) or None for row in reasons])

    def checkpointed(self, batch: EditBatch) -> Scores:
        """Questions are asked again one at a time, each with its own backward pass."""
        assert isinstance(self.grader, ByDigits), "others have no gradient"
        with recomputed(self.grader):
            return self(batch)

    def _plain(self, instruction: str) -> str:
        """The instruction without the model's special tokens."""
        return without(self.reserved, instruction)

    def _images(self, question: Question, shown: Images) -> Float[Tensor, "b n 3 h w"]:
        """Images of a question, in the order of their places in the chat."""
        source, edited = shown
        images = [source, edited] if question.aspect.pair else [edited]
        if self.example is None:
            return torch.stack(images, dim=1)
        size = tuple(edited.shape[-2:])

        def resized(image: Tensor) -> Tensor:
            return resize(image[None].to(edited.device), size).to(edited)

        first, second = map(resized, self._example_pair())
        first, second = views(first, second, self.apart)[question.view]
        before = [first, second] if question.aspect.pair else [second]
        return torch.stack([image.expand_as(edited) for image in before] + images, dim=1)

    def _example_pair(self) -> tuple[Tensor, Tensor]:
        assert self.example is not None
        return self.example.source, self.example.edited

    def _prompt_hash(self) -> str:
        digest = hashlib.sha256()
        for question in self.questions:
            turns = chat(question, "{instruction}", self.grader.form, self.example)
            digest.update(json.dumps([question.name, turns, BEGINNING]).encode())
        if self.example is not None:
            for image in self._example_pair():
                digest.update(image.mul(255).round().byte().cpu().numpy().tobytes())
        return digest.hexdigest()


def open_judge(
    checkpoint: str,
    adapter: str | None = None,
    key_variable: str | None = None,
    dtype: torch.dtype | str | None = None,
    quantize: str | None = None,
    **settings: Any,
) -> tuple[Vlm | Endpoint, str]:
    """A model by hub name or folder, or behind an endpoint, and its name.

    Args:
        dtype: as for `load_judge`.
        quantize: as for `load_judge`.
        settings: of an `Endpoint`.

    Raises:
        ValueError: if the model cannot be loaded or is refused, an endpoint has no model's name, or an option
            of loaded models is given with one.
    """
    if not ADDRESS.match(checkpoint):
        name = checkpoint if adapter is None else f"{checkpoint}+{adapter}"
        return load_judge(checkpoint, adapter, dtype, quantize), name
    url, _, model = checkpoint.partition("#")
    if not model or adapter is not None:
        raise ValueError("checkpoint: expected URL#MODEL, an endpoint and its model, without an adapter")
    if quantize is not None:
        raise ValueError("quantize: has no effect on an endpoint; leave it out")
    return Endpoint(url, model, key_variable, **settings), model


def views(
    source: Float[Tensor, "b 3 h w"], edited: Float[Tensor, "b 3 h w"], apart: bool
) -> dict[str, Images]:
    """The whole images; or, if `apart`, the inside and the outside of their change mask, the rest in gray.

    Gradients pass where an image is visible, and not through the mask. A view in which nothing is visible
    shows the whole images.
    """
    if not apart:
        return {"whole": (source, edited)}
    inside = change_mask(source, edited)
    by_view = {}
    for name, weight in (("inside", inside), ("outside", 1 - inside)):
        empty = weight.flatten(1).amax(1) < VISIBLE
        weight = torch.where(empty[:, None, None, None], torch.ones_like(weight), weight)
        by_view[name] = (_covered(source, weight), _covered(edited, weight))
    return by_view


def _covered(image: Float[Tensor, "b 3 h w"], weight: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 3 h w"]:
    return torch.full_like(image, COVER_GRAY).lerp(image, weight.to(image.dtype))


def combine(questions: list[Question], parts: dict[str, Tensor]) -> dict[str, Float[Tensor, " b"]]:
    """The least grade of each group of aspects; if asked separately, also those inside and outside."""
    scores = {}
    for group in GROUPS:
        of_group = [question for question in questions if question.aspect.group == group]
        scores[group] = _least([parts[question.name] for question in of_group])
        for view in ("inside", "outside"):
            seen = [parts[question.name] for question in of_group if question.view == view]
            if seen:
                scores[f"{group}_{view}"] = _least(seen)
    return scores


def _least(grades: list[Tensor]) -> Float[Tensor, " b"]:
    return torch.stack(grades).amin(0)


def geometric_mean(a: Float[Tensor, " b"], b: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """√(a · b), with zero gradient where it is 0."""
    product = a * b
    none = product == 0
    root = torch.where(none, torch.ones_like(product), product).sqrt()
    return torch.where(none, torch.zeros_like(root), root)

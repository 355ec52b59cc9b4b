"""The ADIEE scorer: a vision-language model that answers with a token whose hidden state is decoded into a
score (Chen et al. 2025, Sec. 3.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from rewardedit import devices
from rewardedit.batch import EditBatch, Scores
from rewardedit.files import to_json
from rewardedit.images import clamp_straight_through, fit
from rewardedit.language.prefix import Prefix, alone_with, as_cache, extend, prefix_attention, split_rows
from rewardedit.language.texts import LOCK, note
from rewardedit.language.vlm import (
    Vlm,
    load_processor,
    load_vlm,
    reserved_tokens,
    without,
)
from rewardedit.language.vlm_weights import load_adapter, save_adapter
from rewardedit.models import fetched, pretrained, require_checkpoint, resolve_model
from rewardedit.prepared import Prepared
from rewardedit.scorers.adiee_head import HEAD, SETTINGS, AdieeSettings, ScoreHead
from rewardedit.scorers.adiee_text import ANSWER, QUESTIONS, TOKEN, Prompts, add_token, require_token, turns
from rewardedit.scorers.base import Scorer

ADAPTER = "adapter"
SLACK = 8  # tokens that an instruction may have within its question beyond those it has alone
# Kinds of models whose positions count tokens, so that a prefix has the same positions whatever follows.
WITH_PREFIX = ("llava_next", "idefics3")


class Adiee(Scorer):
    """The score of an edit, in [0, 10], by a vision-language model with a [SCORE] token.

    One forward pass per question; by default the mean over four phrasings. The answer "It is [SCORE]." is
    given, in training and here, and the last hidden state at the token is decoded. `parts` holds "raw", the
    score before it is clamped to [0, 10]; "spread", the standard deviation over the questions; and each
    further axis that the head was trained on. The clamp passes the gradient on.

    With the layout "pair" everything before the edited image depends on the source only: `prepare` computes
    its keys and values once, for any number of candidates, and no gradient goes through it. An edited image
    is then read once for all questions.

    Args:
        vlm: a model and a processor whose vocabulary has [SCORE].
        question: the number of the only question to use; None: all four.
        share_prefix: True to compute the source's part in `prepare`; by default if the layout and the model
            allow it.

    Raises:
        ValueError: if the tokenizer splits [SCORE], there is no such question, or a shared prefix is
            requested that the layout or the model does not allow.
    """

    paper = "ADIEE (Chen et al. 2025), Sec. 3.3"
    family = "adiee"
    range = (0.0, 10.0)
    differentiable = True

    def __init__(
        self,
        vlm: Vlm,
        head: ScoreHead,
        settings: AdieeSettings,
        question: int | None = None,
        share_prefix: bool | None = None,
    ) -> None:
        super().__init__()
        if question is not None and not 0 <= question < len(QUESTIONS):
            raise ValueError(f"question: expected a number from 0 to {len(QUESTIONS) - 1}; got {question}")

        able = settings.layout == "pair" and vlm.model.config.model_type in WITH_PREFIX
        if share_prefix and not able:
            raise ValueError(
                f"share_prefix: expected the layout pair and one of {', '.join(WITH_PREFIX)}; got "
                f"{settings.layout} and {vlm.model.config.model_type}"
            )

        self.token = require_token(vlm.processor.tokenizer)
        self.reserved = reserved_tokens(vlm)
        self.model = vlm.model
        self.vlm = vlm
        self.head = head
        self.settings = settings
        self.questions = range(len(QUESTIONS)) if question is None else (question,)
        self.frames: dict[tuple[int, ...], int] = {}  # tokens of question and images, by question and size
        self.share_prefix = able if share_prefix is None else share_prefix
        if self.share_prefix and not (self.parts_cleanly() and self.parts_cleanly(2)):
            if share_prefix:
                raise ValueError("share_prefix: the tokenizer gives a text other tokens in two parts")
            self.share_prefix = False

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | None = None,
        question: int | None = None,
        share_prefix: bool | None = None,
        dtype: torch.dtype | str | None = None,
        prompts: Prompts | None = None,
        quantize: str | None = None,
    ) -> "Adiee":
        """Loads a scorer that `save` wrote, by folder or hub name; "shapes/adiee" is for drawn shapes.

        Args:
            dtype: the weights' dtype, or its name; None: "bfloat16" if there is a GPU, else "float32".
            prompts: the set of questions; None: the set that it was trained with.
            quantize: stores the language model's weights in "4bit" or "8bit" (see `load_vlm`); None: as in
                its training.

        Raises:
            ValueError: if none is named or there is none, its adapter lacks the token's embedding, or it
                cannot be quantised.
        """
        folder = _folder_of(require_checkpoint("adiee", checkpoint, "adiee-scorer", "shapes/adiee"))
        settings = AdieeSettings.read(folder)
        bits = quantize or (settings.quantize if settings.base else None)
        device = devices.default_device() if bits else "cpu"  # quantised weights stay there
        options: dict[str, Any] = {"device": device, "dtype": devices.llm_dtype(dtype), "quantize": bits}
        if settings.base is None:
            vlm = load_vlm(str(folder), **options)  # its vocabulary has the token
        else:
            vlm = _with_adapter(settings.base, folder, options)
        head = ScoreHead(width_of(vlm.model), settings)
        with pretrained.reading(str(folder)):
            head.load_state_dict(load_file(folder / HEAD))
        return cls(vlm, head, replace(settings, prompts=prompts or settings.prompts), question, share_prefix)

    @classmethod
    def resolved(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with the model that a folder's adapter was trained on."""
        folder = Path(resolve_model(options["checkpoint"] or ""))
        base = AdieeSettings.read(folder).base if (folder / SETTINGS).is_file() else None
        return {**options, "base": base}

    def save(self, folder: Path, adapter: Any = None) -> None:
        """Saves model, processor, head and settings for `from_pretrained`; with an `adapter` (the model
        wrapped by PEFT), only the adapter's weights in place of the model.
        """
        if adapter is None:
            self.model.save_pretrained(folder)
        else:
            save_adapter(adapter, folder / ADAPTER)
        self.vlm.processor.save_pretrained(folder)
        save_file({name: value.contiguous() for name, value in self.head.state_dict().items()}, folder / HEAD)
        base = None if adapter is None else self.settings.base
        settings = replace(self.settings, base=base)
        (folder / SETTINGS).write_text(to_json(asdict(settings), indent=2) + "\n")

    def texts(self, instructions: Sequence[str], question: int) -> list[str]:
        """Texts for the model: question and answer, up to the token."""
        answer = ANSWER[: ANSWER.index(TOKEN) + len(TOKEN)]
        return [self.prompt(text, question) + answer for text in instructions]

    def prompt(self, instruction: str, question: int) -> str:
        """The question in the model's chat template, up to the place of the answer. Special tokens, such as
        the place of an image, are removed from the instruction.
        """
        text = without(self.reserved, instruction)
        return self.vlm.prompt(turns(question, text, self.settings.layout, self.settings.prompts))

    @torch.no_grad()
    def prepare(self, source: Float[Tensor, "b 3 h w"], instruction: list[str]) -> Prepared:
        if not self.share_prefix:
            return Prepared({})
        before, _ = self.split(self.prompt("", 0))
        inputs = self.vlm.inputs([before] * len(source), self.sized(source)[:, None])
        inputs.pop("attention_mask", None)
        with alone_with(self.model.model.get_decoder()):
            out = self.model.model(**inputs, use_cache=True)
        return Prepared({"prefix": split_rows(out.past_key_values)})

    def score(self, batch: EditBatch, prepared: Prepared) -> Scores:
        prefixes: list[Prefix] | None = prepared.inputs.get("prefix")
        questions = []
        for question in self.questions:
            instructions = [self.fitting(text, question, batch) for text in batch.instruction]
            questions.append(self.texts(instructions, question))
        if prefixes is None:
            states = [self.states(self.inputs(texts, batch.source, batch.edited)) for texts in questions]
        else:
            states = self._continued(questions, batch.edited, prefixes)
        every = torch.stack(list(map(self.head.scores, states)))
        mean = every.mean(0)
        parts = {"raw": mean[:, 0], "spread": every[..., 0].std(0, correction=0)}
        for number, axis in enumerate(self.settings.axes[1:], 1):
            parts[axis] = 10 * clamp_straight_through(mean[:, number] / 10)
        return Scores.make(10 * clamp_straight_through(mean[:, 0] / 10), parts)

    def inputs(
        self, texts: list[str], source: Float[Tensor, "b 3 h w"], edited: Float[Tensor, "b 3 h w"]
    ) -> dict[str, Tensor]:
        """Inputs of the model, in the scorer's layout; texts are padded on the right."""
        images = [self.sized(source), self.sized(edited)]
        shown = torch.stack(images, 1) if self.settings.layout == "pair" else torch.cat(images, 3)[:, None]
        return self.vlm.inputs(texts, shown, padding_side="right")

    def states(self, inputs: dict[str, Tensor]) -> Float[Tensor, "b d"]:
        """The last hidden state at the token, which occurs once in every row."""
        with alone_with(self.model.model.get_decoder()):
            hidden = self.model.model(**inputs, use_cache=False).last_hidden_state
        return self.at_token(hidden, inputs["input_ids"])

    def at_token(self, hidden: Float[Tensor, "b n d"], input_ids: Int[Tensor, "b n"]) -> Float[Tensor, "b d"]:
        """The state of each row at its token."""
        place = (input_ids == self.token).int().argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), place]

    def fitting(self, instruction: str, question: int, batch: EditBatch) -> str:
        """The instruction, cut at its end so that images, question and answer fit into the model's context.

        Raises:
            ValueError: if not even a question without an instruction fits.
        """
        tokenizer = self.vlm.processor.tokenizer
        with LOCK:
            tokens = tokenizer(instruction, add_special_tokens=False, return_offsets_mapping=True)
        limit = self.model.config.get_text_config().max_position_embeddings
        kept = self._kept(instruction, [end for _, end in tokens["offset_mapping"]], question, batch, limit)
        if kept != instruction or tokenizer.eos_token_id in tokens["input_ids"]:
            note([instruction], 1, limit, self.family)
        return kept

    def _kept(self, instruction: str, ends: list[int], question: int, batch: EditBatch, limit: int) -> str:
        """The beginning of an instruction that fits next to images and question; its tokens end at `ends`."""
        size = (question, *batch.source.shape[2:])
        if size not in self.frames:
            self.frames[size] = self._length("", question, batch)
        room = limit - self.frames[size]
        if len(ends) + SLACK <= room:
            return instruction
        if room < 0:
            raise ValueError(
                "the images and the question alone are longer than the model's context; use smaller images"
            )
        for kept in range(min(len(ends), room), 0, -1):  # a cut text may need more tokens than before
            cut = instruction[: ends[kept - 1]]
            if self._length(cut, question, batch) <= limit:
                return cut
        return ""

    def _length(self, instruction: str, question: int, batch: EditBatch) -> int:
        """Number of tokens of a question about images of the batch's size and of its answer."""
        blank = torch.zeros_like(batch.source[:1])
        text = self.prompt(instruction, question) + ANSWER
        return self.inputs([text], blank, blank)["input_ids"].shape[1]

    def sized(self, image: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h2 w2"]:
        """Images resized for the scorer; the aspect ratio is lost, as in ADIEE."""
        image = image.to(torch.promote_types(image.dtype, torch.float32))
        return image if self.settings.side is None else fit(image, self.settings.side, "stretch")

    def _continued(self, questions: list[list[str]], edited: Tensor, prefixes: list[Prefix]) -> list[Tensor]:
        """The states at the token for each question, if the source's part is already computed. The edited
        images are read once for all questions.
        """
        before, _ = self.split(questions[0][0], 2)
        between = self.split(before)[1]
        inputs = self.vlm.inputs([between] * len(edited), self.sized(edited)[:, None])
        inputs.pop("attention_mask", None)  # all rows have the same length
        cache = as_cache(prefixes)
        self._read(inputs, cache, len(prefixes[0]))
        cache = extend(cache)
        begin = len(prefixes[0]) + inputs["input_ids"].shape[1]

        states = []
        for texts in questions:
            # The token does not see the padding after it.
            ids = self.vlm.tokens([self.split(text, 2)[1] for text in texts])
            states.append(self.at_token(self._read({"input_ids": ids}, cache, begin), ids))
        return states

    def _read(self, inputs: dict[str, Tensor], cache: Any, begin: int) -> Tensor:
        """The last hidden states of the tokens after the `begin` tokens of a cache."""
        ids = inputs["input_ids"]
        place = torch.arange(begin, begin + ids.shape[1], device=ids.device).expand(len(ids), -1)
        with prefix_attention(self.model.model.get_decoder()):
            out = self.model.model(**inputs, past_key_values=cache, position_ids=place, use_cache=True)
        return out.last_hidden_state

    def parts_cleanly(self, images: int = 1) -> bool:
        """True if the two parts of `split` have the same tokens as the whole text; some tokenizers mark the
        beginning of a text.
        """
        text = self.texts(["make it red"], 0)[0]
        before, after = self.split(text, images)
        texts = [text, before, after]
        whole, first, second = self.vlm.processor.tokenizer(texts, add_special_tokens=False).input_ids
        return whole == first + second

    def split(self, text: str, images: int = 1) -> tuple[str, str]:
        """The text up to the end of its first image, or of its first `images`, and the rest."""
        image = self.vlm.processor.image_token
        image = getattr(image, "content", image)
        *before, after = text.split(image, images)
        return image.join([*before, ""]), after


def _folder_of(checkpoint: str) -> Path:
    """The folder of a scorer, fetched from the hub if it is not a local folder.

    Raises:
        ValueError: if there is none.
    """
    folder = fetched(checkpoint)
    if not (folder / SETTINGS).is_file():
        raise ValueError(f"adiee {checkpoint!r}: expected a folder with {SETTINGS}; train one first")
    return folder


def width_of(model: Any) -> int:
    """Width of a model's hidden states."""
    return model.config.get_text_config().hidden_size


def _with_adapter(base: str, folder: Path, options: Mapping[str, Any]) -> Vlm:
    """The base model with the folder's adapter and its token's embedding.

    Args:
        options: of `load_vlm`.
    """
    vlm = load_vlm(base, **options)
    vlm = Vlm(vlm.model, load_processor(str(folder), vlm.model.config.model_type))  # with the token's id
    require_token(vlm.processor.tokenizer)
    add_token(vlm.model, vlm.processor)
    weights = folder / ADAPTER / "adapter_model.safetensors"
    with pretrained.reading(str(folder)):
        names = load_file(weights) if weights.is_file() else {}
    if not any("embed_tokens" in name or "trainable_tokens" in name for name in names):
        raise ValueError(
            f"{folder}: its adapter does not hold the embedding of {TOKEN}, without which it scores at "
            "random; save it with the adapter"
        )

    adapted = load_adapter(vlm.model, str(folder / ADAPTER), base)
    # Merged into quantised weights the adapter would be rounded: it stays separate, as in training.
    model = adapted.get_base_model() if options["quantize"] else adapted.merge_and_unload()
    return Vlm(model.eval().requires_grad_(False), vlm.processor)

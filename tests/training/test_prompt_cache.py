"""Embeddings of prompts are kept as the text encoder made them."""

import numpy as np
import torch

from rewardedit.training.prompt_cache import encode_distinct
from rewardedit.training.trainable import load_base
from tests.editors import tiny_klein


def test_hidden_states_beyond_fp16_are_kept_as_they_are(tmp_path, monkeypatch):
    """FLUX.2 klein's are taken before the last norm; the second shard's fit in fp16."""
    for name in ("ENCODE_BATCH", "SHARD_BATCHES"):
        monkeypatch.setattr(f"rewardedit.training.prompt_cache.{name}", 1)
    tiny_klein().save_pretrained(tmp_path / "klein")
    editor = load_base(str(tmp_path / "klein"), "cpu")
    texts = ["make it red", ""]
    with torch.no_grad():
        plain = [editor.family.encode_texts(editor.pipe, [text])["embeds"] for text in texts]
    encoder = editor.pipe.text_encoder.get_input_embeddings()
    large = set(editor.pipe.tokenizer(texts[0]).input_ids) - set(editor.pipe.tokenizer(texts[1]).input_ids)
    with torch.no_grad():
        encoder.weight[list(large)] *= 1e7
        exact = [editor.family.encode_texts(editor.pipe, [text])["embeds"] for text in texts]
    assert exact[0].abs().max() > torch.finfo(torch.float16).max > plain[0].abs().max()
    kept = encode_distinct(editor, texts, tmp_path)["embeds"]
    assert kept.dtype == np.float32
    assert np.array_equal(kept[0], exact[0][0].numpy())
    assert np.array_equal(kept[1], exact[1][0].half().float().numpy())

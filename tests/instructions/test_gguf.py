"""Instructions parsed by a model in a GGUF file, written here from a small random Qwen2."""

import importlib.util

import gguf
import pytest
import torch
import transformers as t
from tokenizers import pre_tokenizers

from rewardedit.instructions import llm
from rewardedit.instructions.llm import load_chat_model
from rewardedit.instructions.load import load_parser
from rewardedit.instructions.parsed import Unparsed

PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
CHAT = "{% for turn in messages %}{{ turn['content'] }}{% endfor %}|"


def tensor_name(name: str) -> str:
    """A weight's name in a GGUF file."""
    module, _, kind = name.rpartition(".")
    if module in PARTS:
        return f"{PARTS[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[str, t.Qwen2ForCausalLM]:
    """A folder with tiny.gguf, and the model that is in it."""
    folder = tmp_path_factory.mktemp("gguf")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<eos>", *letters, letters[10] + letters[11]]
    torch.manual_seed(0)
    config = t.Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        initializer_range=0.5,
    )
    model = t.Qwen2ForCausalLM(config).eval()
    file = gguf.GGUFWriter(folder / "tiny.gguf", "qwen2")
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(len(words))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("qwen2")
    file.add_token_list(words)
    file.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(words) - 2))
    file.add_token_merges([f"{letters[10]} {letters[11]}"])
    file.add_pad_token_id(0)
    file.add_eos_token_id(1)
    file.add_chat_template(CHAT)
    for name, weight in model.state_dict().items():
        file.add_tensor(tensor_name(name), weight.numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return str(folder), model


def test_a_gguf_file_answers_as_the_model_in_it(written, monkeypatch):
    monkeypatch.setattr(llm, "local_answers", lambda _, said, *__: said)  # also those that were cut
    folder, model = written
    question = "which part of the image?"
    answer = load_chat_model(folder, gguf_file="tiny.gguf", max_new_tokens=8)
    (said,) = answer([[{"role": "user", "content": question}]])
    tokenizer = t.AutoTokenizer.from_pretrained(folder, gguf_file="tiny.gguf")
    ids = tokenizer(f"{question}|", return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert said == tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True).strip()
    assert said


def test_a_gguf_file_has_a_name_as_a_parser(written):
    folder, _ = written
    (parsed,) = load_parser(f"{folder}#tiny.gguf")(["add a bird"])
    assert isinstance(parsed, Unparsed), "a random model says nothing that can be read"


def test_without_the_package_it_is_named(written, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest)
    )
    with pytest.raises(ValueError, match=r"pip install 'gguf"):
        load_chat_model(written[0], gguf_file="tiny.gguf")

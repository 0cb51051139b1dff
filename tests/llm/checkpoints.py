"""Tiny checkpoints with random weights, written by transformers, for tests of everything that reads one."""

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing here may ask the network

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.utils import logging

logging.disable_progress_bar()

VOCABULARY = 320  # more than the tokenizer has, as in many checkpoints
BEGINNING, END = 0, 1
CONTEXT = 160

_TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": BEGINNING, "eos_token_id": END}
_ROTARY: dict[str, Any] = {
    **_TOKENS,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": CONTEXT // 4,
}

# By the name of a kind: the architecture, and the fields of its configuration.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {**_TOKENS, "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": CONTEXT}),
    "llama": ("Llama", _ROTARY),
    "llama-tied": (
        "Llama",
        {**_ROTARY, "tie_word_embeddings": True, "head_dim": 16, "rope_parameters": _LLAMA3, "eos_token_id": [END, 7]},
    ),
    "llama-biased": ("Llama", {**_ROTARY, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {**_ROTARY, "sliding_window": 8}),
    "qwen2": ("Qwen2", {**_ROTARY, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {**_ROTARY, "head_dim": 16, "rope_parameters": _YARN}),
}


def write_checkpoint(
    directory: Path,
    kind: str,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    seed: int = 0,
    **fields: Any,
) -> Any:
    """Write a checkpoint of a kind, with other ``fields`` in its configuration; gives the transformers model."""
    torch.manual_seed(seed)
    architecture, standard = KINDS[kind]
    config = getattr(transformers, f"{architecture}Config")(**{**standard, **fields})
    name = {"GPT2": "GPT2LMHeadModel"}.get(architecture, f"{architecture}ForCausalLM")
    model = getattr(transformers, name)(config).eval()
    # Zero biases, norms of ones and nearly even logits would hide mistakes.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight"))
            parameter.normal_(mean=1.0 if is_norm else 0.0, std=0.2)
    model.to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    write_tokenizer(directory)
    return model


def write_tokenizer(directory: Path) -> Tokenizer:
    """Write a tokenizer of bytes and a few words, which puts ``<s>`` before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the tale of the other time", "the tempo of the other tale"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGINNING)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    return tokenizer

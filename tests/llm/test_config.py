"""Configurations: what transformers writes, what checkpoints out there have, and everything that can be wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tempo as tp
from tempo.llm import Config
from tempo.nn import LinearScaling, Llama3Scaling, YarnScaling
from tests.llm.checkpoints import CONTEXT
from tests.llm.common import change_json, fails

GPT2 = Config(
    architecture="gpt2",
    layers=2,
    width=32,
    heads=4,
    kv_heads=4,
    head_size=8,
    hidden=128,
    vocabulary=320,
    context=CONTEXT,
    windows=(None, None),
    norm="layer",
    norm_epsilon=1e-5,
    activation="gelu_tanh",
    gated=False,
    rope_theta=None,
    rope_scaling=None,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    tied=True,
    dtype=tp.float32,
    beginning_of_text=0,
    end_of_text=(1,),
)
LLAMA = Config(
    architecture="llama",
    layers=2,
    width=32,
    heads=4,
    kv_heads=2,
    head_size=8,
    hidden=48,
    vocabulary=320,
    context=CONTEXT,
    windows=(None, None),
    norm="rms",
    norm_epsilon=1e-6,
    activation="silu",
    gated=True,
    rope_theta=10000.0,
    rope_scaling=None,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    tied=False,
    dtype=tp.float32,
    beginning_of_text=0,
    end_of_text=(1,),
)
CONFIGS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "llama-tied": replace(
        LLAMA,
        head_size=16,
        tied=True,
        rope_theta=50000.0,
        rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 16),
        end_of_text=(1, 7),
    ),
    "llama-biased": replace(LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True),
    "mistral": replace(LLAMA, architecture="mistral", windows=(8, 8)),
    "qwen2": replace(LLAMA, architecture="qwen2", windows=(None, 8), qkv_bias=True),
    "qwen3": replace(LLAMA, architecture="qwen3", head_size=16, rope_scaling=YarnScaling(4.0, 40), qk_norm=True),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_transformers_writes(kind: str, checkpoint: Callable[..., tuple[Path, Any]]) -> None:
    assert Config.load(checkpoint(kind)[0]) == CONFIGS[kind]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes(dtype: str, checkpoint: Callable[..., tuple[Path, Any]]) -> None:
    assert Config.load(checkpoint("llama", dtype)[0]).dtype == getattr(tp, dtype)


# -- checkpoints that transformers 4 wrote, and hand-written ones ------------------------------------------------------

LLAMA2 = {
    "model_type": "llama",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
LLAMA32 = {
    **LLAMA2,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MISTRAL = {**LLAMA2, "model_type": "mistral", "sliding_window": 4096}
QWEN2 = {
    **LLAMA2,
    "model_type": "qwen2",
    "max_window_layers": 30,
    "sliding_window": 512,
    "use_sliding_window": False,
    "rope_theta": 1000000.0,
}


def load(directory: Path, fields: dict[str, Any], generation: dict[str, Any] | None = None) -> Config:
    """The configuration in these fields, without those that are ``...``."""
    text = json.dumps({name: value for name, value in fields.items() if value is not ...})
    (directory / "config.json").write_text(text)
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return Config.load(directory)


def test_llama_2(tmp_path: Path) -> None:
    config = load(tmp_path, LLAMA2)
    assert (config.head_size, config.rope_theta, config.rope_scaling) == (128, 10000.0, None)
    assert (config.dtype, config.tied) == (tp.float16, False)
    assert load(tmp_path, {**LLAMA2, "num_key_value_heads": ...}).kv_heads == 32


def test_llama_3_2(tmp_path: Path) -> None:
    config = load(tmp_path, LLAMA32)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    assert (config.dtype, config.tied) == (tp.bfloat16, True)
    assert (config.beginning_of_text, config.end_of_text) == (128000, (128001,))


def test_llama_3_scaling_is_by_default_from_the_whole_context(tmp_path: Path) -> None:
    rope = {**LLAMA32["rope_scaling"], "original_max_position_embeddings": None}  # type: ignore[dict-item]
    scaling = load(tmp_path, {**LLAMA32, "rope_scaling": rope}).rope_scaling
    assert scaling is not None and scaling.original_max_position_embeddings == 131072


def test_other_scalings(tmp_path: Path) -> None:
    def scaling(**rope: Any) -> Any:
        return load(tmp_path, {**QWEN2, "max_position_embeddings": 32768, "rope_scaling": rope}).rope_scaling

    assert scaling(type="linear", factor=4.0) == LinearScaling(4.0)
    assert scaling(type="default") is None
    assert scaling(type="yarn", factor=4.0) == YarnScaling(4.0, 32768)
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 8192, "beta_fast": 16, "truncate": False}
    assert scaling(**yarn, attention_factor=1.5) == YarnScaling(4.0, 8192, 16.0, 1.0, 1.5, False)
    assert scaling(**yarn, mscale=0.5, mscale_all_dim=2).amplitude == pytest.approx(1.0693147 / 1.2772589)


def test_scalings_that_were_added_by_hand(tmp_path: Path) -> None:
    """As transformers reads them: over what it has written itself, and with the original context outside."""
    written = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    added = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    assert load(tmp_path, {**QWEN2, **written}).rope_theta == 5000.0
    assert load(tmp_path, {**QWEN2, **written, **added}).rope_scaling == LinearScaling(2.0)
    scaling = load(tmp_path, {**LLAMA32, "original_max_position_embeddings": 4096}).rope_scaling
    assert scaling == Llama3Scaling(32.0, 1.0, 4.0, 4096)


def test_the_generation_config_has_the_last_word_on_the_end_of_text(tmp_path: Path) -> None:
    assert load(tmp_path, LLAMA32, {"eos_token_id": [128001, 128008, 128009]}).end_of_text == (128001, 128008, 128009)
    assert load(tmp_path, LLAMA32, {"eos_token_id": 5}).end_of_text == (5,)
    assert load(tmp_path, LLAMA32, {"temperature": 0.6}).end_of_text == (128001,)


def test_tokens_may_be_unknown(tmp_path: Path) -> None:
    config = load(tmp_path, {**LLAMA2, "bos_token_id": None, "eos_token_id": ...})
    assert (config.beginning_of_text, config.end_of_text) == (None, ())


@pytest.mark.parametrize(("given", "window"), [(4096, 4096), (16, 16), (None, None), (..., 4096)])
def test_windows_of_mistral(given: Any, window: int | None, tmp_path: Path) -> None:
    assert load(tmp_path, {**MISTRAL, "sliding_window": given}).windows == (window,) * 32


def test_windows_of_qwen2(tmp_path: Path) -> None:
    assert load(tmp_path, QWEN2).windows == (None,) * 32
    used = {**QWEN2, "use_sliding_window": True}
    assert load(tmp_path, used).windows == (None,) * 30 + (512,) * 2
    assert load(tmp_path, {**used, "max_window_layers": 0}).windows == (512,) * 32
    assert load(tmp_path, {**used, "max_window_layers": 0, "sliding_window": None}).windows == (None,) * 32
    kinds = ["sliding_attention", "full_attention"] * 16
    assert load(tmp_path, {**used, "layer_types": kinds}).windows == (512, None) * 16
    assert load(tmp_path, {**QWEN2, "layer_types": kinds}).windows == (None,) * 32


def test_qwen3(tmp_path: Path) -> None:
    fields = {**QWEN2, "model_type": "qwen3", "attention_bias": True}
    config = load(tmp_path, fields)
    assert (config.head_size, config.qk_norm) == (128, True)
    assert (config.qkv_bias, config.output_bias, config.windows) == (True, True, (None,) * 32)
    # Not the width by the number of heads, as in its relatives.
    assert load(tmp_path, {**fields, "hidden_size": 1024}).head_size == 128
    assert load(tmp_path, {**fields, "head_dim": 64}).head_size == 64


def test_gpt2_without_what_is_usual(tmp_path: Path) -> None:
    fields = {
        "model_type": "gpt2",
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-5,
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_inner": 1000,
        "n_layer": 12,
        "n_positions": 1024,
        "tie_word_embeddings": False,
        "vocab_size": 50257,
    }
    config = load(tmp_path, fields)
    assert (config.hidden, config.activation, config.tied, config.dtype) == (1000, "gelu", False, None)
    assert load(tmp_path, {**fields, "n_inner": None, "tie_word_embeddings": ...}) == replace(
        config, hidden=3072, tied=True
    )


# -- mistakes --------------------------------------------------------------------------------------------------


def test_no_configuration(tmp_path: Path) -> None:
    hint = (
        "  hint: name the directory of a checkpoint as Hugging Face transformers saves it; "
        "hf download NAME --local-dir DIRECTORY makes one"
    )
    with fails(tmp_path, "there is no file 'DIR/config.json'", hint):
        Config.load(tmp_path)
    with fails(tmp_path, "there is no file 'DIR/nowhere/config.json'", hint):
        Config.load(tmp_path / "nowhere")


def test_not_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("version https://git-lfs.github.com/spec/v1")
    with fails(
        tmp_path,
        "'DIR/config.json' is not JSON: Expecting value: line 1 column 1 (char 0)",
        "  hint: download it again; a checkout without Git LFS has small text files in place of the real ones",
    ):
        Config.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with fails(tmp_path, "'DIR/config.json' is not a JSON object"):
        Config.load(tmp_path)


def field(name: str, value: str, expected: str) -> str:
    return f"field '{name}' of 'DIR/config.json' is {value}, expected {expected}"


SCALING: dict[str, Any] = dict(LLAMA32["rope_scaling"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": ...}, "'DIR/config.json' has no field 'model_type'"),
        ({"hidden_size": ...}, "'DIR/config.json' has no field 'hidden_size'"),
        ({"hidden_size": "big"}, field("hidden_size", '"big"', "a positive integer")),
        ({"num_hidden_layers": 2.0}, field("num_hidden_layers", "2.0", "a positive integer")),
        ({"num_hidden_layers": 0}, field("num_hidden_layers", "0", "a positive integer")),
        ({"num_hidden_layers": True}, field("num_hidden_layers", "true", "a positive integer")),
        ({"rms_norm_eps": "1e-6"}, field("rms_norm_eps", '"1e-6"', "a positive number")),
        ({"rms_norm_eps": float("nan")}, field("rms_norm_eps", "NaN", "a positive number")),
        ({"tie_word_embeddings": 1}, field("tie_word_embeddings", "1", "true or false")),
        ({"hidden_act": 3}, field("hidden_act", "3", "a text")),
        ({"eos_token_id": ["</s>"]}, field("eos_token_id", '["</s>"]', "a token id or a list of them")),
        ({"eos_token_id": -1}, field("eos_token_id", "-1", "a token id or a list of them")),
        ({"rope_scaling": "llama3"}, field("rope_scaling", '"llama3"', "an object")),
        (
            {"rope_scaling": {**SCALING, "factor": None}},
            "'DIR/config.json' has no field 'rope_scaling.factor'",
        ),
        (
            {"rope_scaling": {**SCALING, "high_freq_factor": 1.0}},
            field("rope_scaling.high_freq_factor", "1.0", "more than low_freq_factor, which is 1.0"),
        ),
        (
            {"num_key_value_heads": 3},
            field("num_key_value_heads", "3", "a divisor of num_attention_heads, which is 32"),
        ),
        (
            {"hidden_size": 4095},
            field("hidden_size", "4095", "a multiple of num_attention_heads, which is 32"),
        ),
        ({"head_dim": 7}, "'DIR/config.json' has heads of size 7: rotary positions need an even size"),
    ],
)
def test_wrong_fields(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with fails(tmp_path, message):
        load(tmp_path, {**LLAMA2, **changes})


def test_ends_of_text_that_are_no_tokens(tmp_path: Path) -> None:
    assert load(tmp_path, {**LLAMA2, "eos_token_id": [2, 32000, 10**12]}).end_of_text == (2,)
    assert load(tmp_path, LLAMA2, {"eos_token_id": 10**12}).end_of_text == ()


def test_wrong_layer_types(tmp_path: Path) -> None:
    expected = "for each of 2 layers one of full_attention, sliding_attention"
    for kinds in (["full_attention"], ["full_attention", "linear_attention"], [[], []], "full_attention"):
        with fails(tmp_path, field("layer_types", json.dumps(kinds), expected)):
            load(tmp_path, {**QWEN2, "use_sliding_window": True, "num_hidden_layers": 2, "layer_types": kinds})


DTYPES = "  hint: take the checkpoint of the same model in float32, float16, bfloat16"


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"model_type": "mamba"},
            "'DIR/config.json' describes a model of architecture 'mamba', which is not supported",
            "  hint: the supported ones are gpt2, llama, mistral, qwen2, qwen3",
        ),
        (
            {"quantization_config": {"bits": 4}},
            "'DIR/config.json' describes a quantised model, which is not supported",
            DTYPES,
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "'DIR/config.json' has rope_scaling.type = \"dynamic\", which is not supported",
            "  hint: the supported types are default, linear, llama3, yarn",
        ),
        (
            {"rope_scaling": ..., "rope_parameters": {"rope_type": "longrope", "factor": 4.0}},
            "'DIR/config.json' has rope_parameters.rope_type = \"longrope\", which is not supported",
            "  hint: the supported types are default, linear, llama3, yarn",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "'DIR/config.json' has rope_parameters.partial_rotary_factor = 0.5, which is not supported",
            "  hint: rotary positions turn whole heads: 1.0",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "'DIR/config.json' has partial_rotary_factor = 0.5, which is not supported",
            "  hint: rotary positions turn whole heads: 1.0",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 9.0}}},
            "'DIR/config.json' has rope_parameters.full_attention = {\"rope_theta\": 9.0}, which is not supported",
            "  hint: rotary positions are the same in all layers",
        ),
        (
            {"hidden_act": "quick_gelu"},
            "'DIR/config.json' has hidden_act = \"quick_gelu\", which is not supported",
            "  hint: the supported functions are gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish",
        ),
        ({"torch_dtype": "float64"}, "'DIR/config.json' has torch_dtype = \"float64\", which is not supported", DTYPES),
    ],
)
def test_what_is_not_supported(changes: dict[str, Any], message: str, hint: str, tmp_path: Path) -> None:
    with fails(tmp_path, message, hint):
        load(tmp_path, {**LLAMA2, **changes})


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True), ("add_cross_attention", True)],
)
def test_variants_of_gpt2_that_are_not_supported(name: str, value: bool, copy: Callable[..., Path]) -> None:
    directory = copy("gpt2")
    change_json(directory / "config.json", **{name: value})
    with fails(
        directory,
        f"'DIR/config.json' has {name} = {json.dumps(value)}, which is not supported",
        f"  hint: GPT-2 has {json.dumps(not value)}",
    ):
        Config.load(directory)

"""Weights: every array as transformers has it, none of them copied, and everything that can be wrong with files."""

import json
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import tempo as tp
from tempo import llm
from tempo.llm import Config, Weights
from tempo.llm.parameters import expected, shapes
from tests.llm.checkpoints import CONTEXT, KINDS
from tests.llm.common import change_json, fails

Checkpoint = Callable[..., tuple[Path, Any]]


def open_weights(directory: Path) -> Weights:
    return Weights(directory, Config.load(directory))


def as_float32(tensor: Any) -> np.ndarray[Any, Any]:
    """A torch tensor, or an array, in a type that holds all of its values."""
    return np.asarray(tensor.to(torch.float32) if isinstance(tensor, torch.Tensor) else tensor, np.float32)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_those_of_transformers(kind: str, dtype: str, checkpoint: Checkpoint) -> None:
    directory, model = checkpoint(kind, dtype)
    weights = open_weights(directory)
    states = model.state_dict()
    if Config.load(directory).tied:
        del states["lm_head.weight"]
    assert weights.keys() == states.keys()
    for name, array in weights.items():
        assert array.dtype == getattr(tp, dtype)
        np.testing.assert_array_equal(as_float32(array), as_float32(states[name]))


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_have_the_shapes_of_the_configuration(kind: str, checkpoint: Checkpoint) -> None:
    directory, _ = checkpoint(kind)
    parameters = open_weights(directory).parameters
    assert {name: array.shape for name, array in parameters.items()} == shapes(Config.load(directory))


def test_names_and_shapes_of_llama(checkpoint: Checkpoint) -> None:
    found = shapes(Config.load(checkpoint("llama")[0]))
    assert {name: shape for name, shape in found.items() if "layers.1" not in name} == {
        "embedding.weight": (320, 32),
        "layers.0.attention_norm.weight": (32,),
        "layers.0.attention.qkv_proj.weight": (64, 32),
        "layers.0.attention.o_proj.weight": (32, 32),
        "layers.0.mlp_norm.weight": (32,),
        "layers.0.mlp.gate_up_proj.weight": (96, 32),
        "layers.0.mlp.down_proj.weight": (32, 48),
        "norm.weight": (32,),
        "head.weight": (320, 32),
    }


def test_names_and_shapes_of_gpt2(checkpoint: Checkpoint) -> None:
    found = shapes(Config.load(checkpoint("gpt2")[0]))
    assert {name: shape for name, shape in found.items() if "layers.1" not in name} == {
        "embedding.weight": (320, 32),
        "positions.weight": (CONTEXT, 32),
        "layers.0.attention_norm.weight": (32,),
        "layers.0.attention_norm.bias": (32,),
        "layers.0.attention.qkv_proj.weight": (96, 32),
        "layers.0.attention.qkv_proj.bias": (96,),
        "layers.0.attention.o_proj.weight": (32, 32),
        "layers.0.attention.o_proj.bias": (32,),
        "layers.0.mlp_norm.weight": (32,),
        "layers.0.mlp_norm.bias": (32,),
        "layers.0.mlp.up_proj.weight": (128, 32),
        "layers.0.mlp.up_proj.bias": (128,),
        "layers.0.mlp.down_proj.weight": (32, 128),
        "layers.0.mlp.down_proj.bias": (32,),
        "norm.weight": (32,),
        "norm.bias": (32,),
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gpt2"])
def test_parameters_of_llama_and_its_relatives(kind: str, checkpoint: Checkpoint) -> None:
    """Only names differ: read as modules of transformers, the parameters are those."""
    directory, model = checkpoint(kind)
    for name, array in open_weights(directory).parameters.items():
        theirs = (
            name.replace("embedding", "embed_tokens")
            .replace("attention_norm", "input_layernorm")
            .replace("mlp_norm", "post_attention_layernorm")
            .replace("attention.", "self_attn.")
        )
        module = model if name == "head.weight" else model.model
        theirs = theirs.replace("head", "lm_head")
        together = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
        parts = next(
            ([theirs.replace(whole, part) for part in parts] for whole, parts in together.items() if whole in theirs),
            [theirs],
        )
        np.testing.assert_array_equal(array, torch.cat([module.get_parameter(part).detach() for part in parts]))


def test_linear_maps_of_gpt2_act_as_in_transformers(checkpoint: Checkpoint) -> None:
    directory, model = checkpoint("gpt2")
    parameters = open_weights(directory).parameters
    layer = model.transformer.h[1]

    def apply(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x @ parameters[f"layers.1.{name}.weight"].T + parameters[f"layers.1.{name}.bias"]

    x = np.random.default_rng(0).standard_normal((5, 32), np.float32)
    with torch.no_grad():
        hidden = layer.mlp.c_fc(torch.from_numpy(x))
        for name, given, result in [
            ("attention.qkv_proj", x, layer.attn.c_attn(torch.from_numpy(x))),
            ("attention.o_proj", x, layer.attn.c_proj(torch.from_numpy(x))),
            ("mlp.up_proj", x, hidden),
            ("mlp.down_proj", hidden.numpy(), layer.mlp.c_proj(hidden)),
        ]:
            np.testing.assert_allclose(apply(name, given), result, rtol=1e-5, atol=1e-5)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama-tied"])
def test_shards(kind: str, checkpoint: Checkpoint) -> None:
    whole, _ = checkpoint(kind, "bfloat16")
    cut, _ = checkpoint(kind, "bfloat16", "10KB")
    assert not (cut / "model.safetensors").exists() and len(list(cut.glob("*.safetensors"))) > 2
    expected, found = open_weights(whole), open_weights(cut)
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_nothing_is_copied_and_nothing_can_be_written(kind: str, checkpoint: Checkpoint) -> None:
    weights = open_weights(checkpoint(kind)[0])
    # Llama's files have parameters in parts, which are put together.
    whole = [array for name, array in weights.parameters.items() if kind == "gpt2" or not _is_in_parts(name)]
    for array in [*weights.values(), *whole]:
        assert not array.flags.writeable
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base, mmap.mmap)


def _is_in_parts(name: str) -> bool:
    return "qkv_proj" in name or "gate_up_proj" in name


def test_a_summary(checkpoint: Checkpoint) -> None:
    directory, model = checkpoint("llama", "bfloat16")
    size = 2 * sum(parameter.numel() for parameter in model.parameters())
    assert repr(open_weights(directory)) == f"<Weights of '{directory}': 21 tensors, {size:,} bytes>"


def rewrite(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the tensors of a checkpoint in one file."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(("kind", "prefix"), [("gpt2", "transformer."), ("llama-tied", "model.")])
def test_names_without_the_prefix(kind: str, prefix: str, copy: Callable[..., Path], checkpoint: Checkpoint) -> None:
    """As the first checkpoints of GPT-2 have them, and those of models without a head."""

    def strip(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix(prefix)] = tensors.pop(name)

    directory = copy(kind)
    rewrite(directory, strip)
    found, expected = open_weights(directory), open_weights(checkpoint(kind)[0])
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_parts_of_different_dtypes(copy: Callable[..., Path], checkpoint: Checkpoint) -> None:
    """What is put together of float16 and bfloat16 is rounded once, to what the model is computed in."""
    directory = copy("llama", "bfloat16")

    def change(tensors: dict[str, Any]) -> None:
        for name in tensors:
            if "q_proj" in name or "up_proj" in name:
                tensors[name] = tensors[name].astype(np.float16)

    rewrite(directory, change)
    found, expected = llm.load(directory), llm.load(checkpoint("llama", "bfloat16")[0])
    for name, array in expected.parameters.items():
        assert found.parameters[name].dtype == array.dtype == tp.bfloat16
        np.testing.assert_array_equal(as_float32(found.parameters[name]), as_float32(array))


def test_buffers_that_do_no_harm(copy: Callable[..., Path]) -> None:
    directory = copy("gpt2")

    def add(tensors: dict[str, Any]) -> None:
        tensors["transformer.h.0.attn.bias"] = np.tril(np.ones((1, 1, 64, 64), np.uint8))
        tensors["h.1.attn.masked_bias"] = np.array(-1e4, np.float32)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]

    rewrite(directory, add)
    assert open_weights(directory).keys() == expected(Config.load(directory)).keys()


# -- mistakes ----------------------------------------------------------------------------------------------------------

CONFIG = "  hint: config.json must be the one that the weights were saved with"
DOWNLOAD = "  hint: download it again; a checkout without Git LFS has small text files in place of the real ones"


def test_no_weights(copy: Callable[..., Path]) -> None:
    directory = copy("llama")
    (directory / "model.safetensors").unlink()
    message = "there are no weights in 'DIR': neither 'model.safetensors' nor 'model.safetensors.index.json'"
    with fails(directory, message, "  hint: name the directory of a checkpoint as Hugging Face transformers saves it"):
        open_weights(directory)
    (directory / "pytorch_model.bin").touch()
    with fails(
        directory,
        message,
        "  hint: Tempo does not read the format of 'pytorch_model.bin': load the model with Hugging Face transformers, "
        "then save it with model.save_pretrained(...)",
    ):
        open_weights(directory)


def test_shards_without_their_index(copy: Callable[..., Path]) -> None:
    directory = copy("llama-tied", "bfloat16", "10KB")
    (directory / "model.safetensors.index.json").unlink()
    first = min(path.name for path in directory.glob("*.safetensors"))
    with fails(
        directory,
        "there are no weights in 'DIR': neither 'model.safetensors' nor 'model.safetensors.index.json'",
        f"  hint: '{first}' is one of several files, and 'model.safetensors.index.json' says which tensors they have: "
        "download that, too",
    ):
        open_weights(directory)


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "transformer.wte"), ("llama-tied", "model.embed_tokens")])
def test_a_head_that_is_not_the_embedding(kind: str, name: str, copy: Callable[..., Path]) -> None:
    """transformers 4 ignores such a head, 5 takes it: either may be what somebody means."""
    directory = copy(kind)
    rewrite(directory, lambda tensors: tensors.update({"lm_head.weight": tensors[f"{name}.weight"] + 1}))
    with fails(
        directory,
        f"'DIR/model.safetensors' has a tensor 'lm_head.weight' that is not '{name}.weight', and config.json says that "
        "they are one",
        '  hint: write "tie_word_embeddings": false into config.json if the model is to have this head',
    ):
        open_weights(directory)
    change_json(directory / "config.json", tie_word_embeddings=False)
    weights = open_weights(directory)
    np.testing.assert_array_equal(weights.parameters["head.weight"], weights[f"{name}.weight"] + 1)


def test_a_tensor_is_missing(copy: Callable[..., Path]) -> None:
    directory = copy("llama")
    rewrite(directory, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with fails(
        directory,
        "the files in 'DIR' do not have tensor 'model.layers.1.mlp.up_proj.weight' of the llama model that config.json "
        "describes",
        CONFIG,
    ):
        open_weights(directory)
    change_json(directory / "config.json", attention_bias=True)
    with fails(
        directory,
        "the files in 'DIR' do not have tensor 'model.layers.0.self_attn.q_proj.bias' (and 8 more) of the llama model "
        "that config.json describes",
        CONFIG,
    ):
        open_weights(directory)


def test_a_tensor_too_many(copy: Callable[..., Path]) -> None:
    """A bias that the configuration does not mention."""
    directory = copy("llama-biased")
    change_json(directory / "config.json", mlp_bias=False)
    with fails(
        directory,
        "'DIR/model.safetensors' has tensor 'model.layers.0.mlp.down_proj.bias' (and 5 more), not part of the llama "
        "model that config.json describes",
        CONFIG,
    ):
        open_weights(directory)


def test_a_shape_that_does_not_fit(copy: Callable[..., Path]) -> None:
    directory = copy("llama")
    change_json(directory / "config.json", vocab_size=321)
    with fails(
        directory,
        "tensor 'model.embed_tokens.weight' in 'DIR/model.safetensors' has shape (320, 32), "
        "config.json makes it (321, 32)",
        CONFIG,
    ):
        open_weights(directory)


def test_a_dtype_that_does_not_fit(copy: Callable[..., Path]) -> None:
    directory = copy("llama")
    rewrite(directory, lambda tensors: tensors.update({"model.norm.weight": np.ones(32, np.int8)}))
    with fails(
        directory,
        "tensor 'model.norm.weight' in 'DIR/model.safetensors' is int8, which is not supported for weights",
        "  hint: take the checkpoint of the same model in float32, float16, bfloat16",
    ):
        open_weights(directory)


def test_a_truncated_file(copy: Callable[..., Path]) -> None:
    directory = copy("llama")
    path = directory / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with fails(
        directory,
        f"'DIR/model.safetensors' is truncated: tensor 'model.norm.weight' ends at byte {len(data)}, the file at byte "
        f"{len(data) - 1}",
        DOWNLOAD,
    ):
        open_weights(directory)
    for length in (0, 7, 8, 1000):
        path.write_bytes(data[:length])
        with fails(
            directory, "'DIR/model.safetensors' is not a safetensors file, or only the beginning of one", DOWNLOAD
        ):
            open_weights(directory)


def test_a_pointer_in_place_of_a_file(copy: Callable[..., Path]) -> None:
    directory = copy("llama")
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with fails(directory, "'DIR/model.safetensors' is not a safetensors file, or only the beginning of one", DOWNLOAD):
        open_weights(directory)


def test_headers_that_make_no_sense(copy: Callable[..., Path]) -> None:
    directory = copy("llama")

    def write(header: bytes) -> None:
        (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))

    for header in (b"no JSON", b"[]", b"\xff\xff"):
        write(header)
        with fails(
            directory, "'DIR/model.safetensors' is not a safetensors file: its header is not a JSON object", DOWNLOAD
        ):
            open_weights(directory)
    good = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    types = "BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F8_E4M3, F8_E5M2, F16, BF16, F32, F64"
    for wrong in ({"dtype": "F4"}, {"shape": [-4]}, {"shape": 4}, {"data_offsets": [0]}):
        entry = {**good, **wrong}
        write(json.dumps({"x": entry}).encode())
        with fails(
            directory,
            f"tensor 'x' in 'DIR/model.safetensors' has an entry that cannot be read: {json.dumps(entry)}",
            f"  hint: element types are {types}",
        ):
            open_weights(directory)
    for first, end in ((0, 12), (16, 0), (-16, 0)):
        write(json.dumps({"x": {**good, "data_offsets": [first, end]}}).encode())
        with fails(
            directory,
            f"tensor 'x' in 'DIR/model.safetensors' has shape (4,) of float32, which does not fit its place, "
            f"bytes {first} to {end}",
            DOWNLOAD,
        ):
            open_weights(directory)


def test_shards_that_do_not_fit_their_index(copy: Callable[..., Path]) -> None:
    directory = copy("llama-tied", "bfloat16", "10KB")
    index = directory / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"]
    name, last = "model.norm.weight", files["model.norm.weight"]
    first = files["model.embed_tokens.weight"]
    change_json(index, weight_map={**files, name: first})
    with fails(
        directory,
        f"'DIR/model.safetensors.index.json' says that tensor '{name}' is in '{first}', which does not have it",
        "  hint: the files may belong to different versions of the checkpoint: download all of them again",
    ):
        open_weights(directory)
    change_json(index, weight_map={**files, name: 3})
    with fails(directory, f"'DIR/model.safetensors.index.json' names no file for tensor '{name}', but 3"):
        open_weights(directory)
    change_json(index, weight_map=files)
    inside = [tensor for tensor, file in files.items() if file == last]
    (directory / last).unlink()
    with fails(
        directory,
        f"'DIR/model.safetensors.index.json' says that tensor '{inside[0]}' is in '{last}', and there is no such file",
        "  hint: download all files of the checkpoint",
    ):
        open_weights(directory)


def test_an_index_without_its_map(copy: Callable[..., Path]) -> None:
    directory = copy("llama-tied", "bfloat16", "10KB")
    change_json(directory / "model.safetensors.index.json", weight_map=...)
    with fails(
        directory,
        "'DIR/model.safetensors.index.json' has no field 'weight_map', which says in which file each tensor is",
        "  hint: download it again",
    ):
        open_weights(directory)


def test_parameters_of_other_kinds(checkpoint: Checkpoint) -> None:
    """Tensors of PyTorch's and lists, as programs take them."""
    model = llm.load(checkpoint("llama")[0])
    arrays = {name: np.array(array) for name, array in model.parameters.items()}
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    given["norm.weight"] = arrays["norm.weight"].tolist()
    other = llm.LanguageModel(model.config, given)
    assert other.dtype == np.float32
    for name, array in arrays.items():
        np.testing.assert_array_equal(other.parameters[name], array)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"norm.weight": None, "other": [1.0]},
            "the parameters are not those of the configuration: there is no norm.weight, nothing is called other",
        ),
        ({"norm.weight": np.ones(3)}, "parameter norm.weight has shape (3,), expected (32,)"),
        ({"norm.weight": torch.ones(32, dtype=torch.bfloat16)}, "parameter norm.weight is no array of numbers: "),
    ],
)
def test_parameters_that_do_not_fit(checkpoint: Checkpoint, changes: dict[str, Any], message: str) -> None:
    model = llm.load(checkpoint("llama")[0])
    given = {name: array for name, array in {**model.parameters, **changes}.items() if array is not None}
    with pytest.raises(tp.errors.ModelError) as error:
        llm.LanguageModel(model.config, given)
    assert error.value.message.startswith(message)


def test_double_precision_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(tp.errors.ModelError) as error:
        llm.load(checkpoint("llama")[0], dtype="float64")
    assert error.value.message == "dtype = 'float64': a model is not computed in that"

"""The weights of a checkpoint, mapped into memory and checked against its configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tempo as tp
from tempo.errors import ModelError
from tempo.llm.config import Config
from tempo.llm.files import Array, PathLike, map_safetensors, read_fields
from tempo.llm.parameters import Place, expected, places

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_CONFIG = "config.json must be the one that the weights were saved with"
_HEAD = "lm_head.weight"
_FLOATS = (tp.float32, tp.float16, tp.bfloat16)

# Masks and frequencies that older versions of transformers saved, and every model can make itself.
_HARMLESS = re.compile(r"(^|\.)(attn\.(bias|masked_bias)|rotary_emb\.inv_freq)$")


@dataclass(frozen=True)
class _Stored:
    path: Path
    array: Array


class Weights(Mapping[str, Array]):
    """The arrays of a checkpoint by the names that transformers gives them, and by Tempo's in ``parameters``.

    Arrays are read-only views of the files, in the dtype that is stored: opening reads no weights, and what nobody
    looks at is never read. A parameter that files keep in several parts is put together each time it is asked for.

    >>> config = Config.load("checkpoints/llama")  # doctest: +SKIP
    >>> weights = Weights("checkpoints/llama", config)  # doctest: +SKIP
    >>> weights.parameters["layers.0.attention.qkv_proj.weight"].shape  # doctest: +SKIP
    (3072, 2048)
    """

    parameters: Mapping[str, Array]
    """The parameters of a decoder: the names and shapes of ``parameters.shapes(config)``."""

    def __init__(self, directory: PathLike, config: Config) -> None:
        self.directory = Path(directory)
        needed = expected(config)
        stored = _with_prefix(_stored(self.directory), needed)
        _check_names(self.directory, stored, needed, config)
        for name, shape in needed.items():
            _check(name, stored[name], shape)
        if config.tied and _HEAD in stored:
            (embedding,) = places(config)["embedding.weight"].names
            _check_tied(stored[_HEAD], stored[embedding], embedding)
        self._arrays = {name: stored[name].array for name in needed}
        self.parameters = _Parameters(places(config), self._arrays)

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        size = sum(array.nbytes for array in self._arrays.values())
        return f"<Weights of '{self.directory}': {len(self)} tensors, {size:,} bytes>"


class _Parameters(Mapping[str, Array]):
    def __init__(self, places: Mapping[str, Place], stored: Mapping[str, Array]) -> None:
        self._places = places
        self._stored = stored

    def __getitem__(self, name: str) -> Array:
        return self._places[name].read(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _stored(directory: Path) -> dict[str, _Stored]:
    """Everything in a checkpoint's files."""
    single, index = directory / _SINGLE, directory / _INDEX
    if single.is_file():
        return {name: _Stored(single, array) for name, array in map_safetensors(single).items()}
    if index.is_file():
        return _shards(index)
    raise ModelError(
        f"there are no weights in '{directory}': neither '{_SINGLE}' nor '{_INDEX}'", hint=_instead(directory)
    )


def _instead(directory: Path) -> str:
    """What to do where there are no weights, by what there is."""
    if shards := sorted(path.name for path in directory.glob("model-*-of-*.safetensors")):
        return f"'{shards[0]}' is one of several files, and '{_INDEX}' says which tensors they have: download that, too"
    formats = ("*.bin", "*.pth", "*.pt", "*.gguf", "*.safetensors")
    if others := sorted(path.name for pattern in formats for path in directory.glob(pattern)):
        return (
            f"Tempo does not read the format of '{others[0]}': load the model with Hugging Face transformers, then "
            f"save it with model.save_pretrained(...)"
        )
    return "name the directory of a checkpoint as Hugging Face transformers saves it"


def _shards(index: Path) -> dict[str, _Stored]:
    fields = read_fields(index)
    if "weight_map" not in fields:
        raise ModelError(
            f"'{index}' has no field 'weight_map', which says in which file each tensor is", hint="download it again"
        )
    shard_of = fields.inside("weight_map").values
    arrays: dict[str, dict[str, Array]] = {}
    stored: dict[str, _Stored] = {}
    for name, file in shard_of.items():
        if not isinstance(file, str):
            raise ModelError(f"'{index}' names no file for tensor '{name}', but {file!r}")
        path = index.parent / file
        if file not in arrays:
            if not path.is_file():
                raise ModelError(
                    f"'{index}' says that tensor '{name}' is in '{file}', and there is no such file",
                    hint="download all files of the checkpoint",
                )
            arrays[file] = map_safetensors(path)
        if name not in arrays[file]:
            raise ModelError(
                f"'{index}' says that tensor '{name}' is in '{file}', which does not have it",
                hint="the files may belong to different versions of the checkpoint: download all of them again",
            )
        stored[name] = _Stored(path, arrays[file][name])
    return stored


def _with_prefix(stored: Mapping[str, _Stored], needed: Mapping[str, object]) -> dict[str, _Stored]:
    """Tensors by the names of the whole model, also where only the model below the head was saved."""
    prefix = next(iter(needed)).split(".")[0]
    whole = {name: f"{prefix}.{name}" for name in stored}
    return {whole[name] if whole[name] in needed else name: tensor for name, tensor in stored.items()}


def _check_names(directory: Path, stored: Mapping[str, _Stored], needed: Mapping[str, object], config: Config) -> None:
    missing = [name for name in needed if name not in stored]
    if missing:
        raise ModelError(
            f"the files in '{directory}' do not have {_several(missing)} of the {config.architecture} model that "
            f"config.json describes",
            hint=_OTHER_CONFIG,
        )
    known = {*needed, _HEAD} if config.tied else needed.keys()
    # Not to be ignored: a bias that the configuration does not mention would change every result.
    other = [name for name in stored if name not in known and not _HARMLESS.search(name)]
    if other:
        raise ModelError(
            f"'{stored[other[0]].path}' has {_several(other)}, not part of the {config.architecture} model that "
            f"config.json describes",
            hint=_OTHER_CONFIG,
        )


def _check(name: str, tensor: _Stored, shape: tuple[int, ...]) -> None:
    if tensor.array.shape != shape:
        raise ModelError(
            f"tensor '{name}' in '{tensor.path}' has shape {tensor.array.shape}, config.json makes it {shape}",
            hint=_OTHER_CONFIG,
        )
    if tensor.array.dtype not in _FLOATS:
        raise ModelError(
            f"tensor '{name}' in '{tensor.path}' is {tensor.array.dtype.name}, which is not supported for weights",
            hint=f"take the checkpoint of the same model in {', '.join(dtype.name for dtype in _FLOATS)}",
        )


def _check_tied(head: _Stored, embedding: _Stored, name: str) -> None:
    """Many files have the embedding twice, which is well; what is another head, training or merging made so."""
    a, b = head.array, embedding.array
    # Not all at once: a comparison makes an array as long, of a file that is only mapped.
    step = 1024
    if a.shape != b.shape or not all(np.array_equal(a[n : n + step], b[n : n + step]) for n in range(0, len(a), step)):
        raise ModelError(
            f"'{head.path}' has a tensor '{_HEAD}' that is not '{name}', and config.json says that they are one",
            hint='write "tie_word_embeddings": false into config.json if the model is to have this head',
        )


def _several(names: list[str]) -> str:
    return f"tensor '{names[0]}'" + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")

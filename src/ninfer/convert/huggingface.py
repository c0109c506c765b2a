"""A Hugging Face directory as a checkpoint: config.json, safetensors shards, tokenizer.json, chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from ninfer.artifact import strict_json
from ninfer.convert import frontend
from ninfer.convert.checkpoint import RANDOM_KEY, Checkpoint
from ninfer.convert.fields import Fields
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.names import dflash
from ninfer.convert.names.families import HUGGINGFACE
from ninfer.convert.names.rules import assign, listed
from ninfer.convert.names.source_model import SourceModel
from ninfer.convert.quantized.gather import fp8_block, gather
from ninfer.convert.safetensors import SafetensorsFile
from ninfer.convert.weight import Weight
from ninfer.errors import ArtifactError, ConversionError
from ninfer.models.companion import DraftTarget
from ninfer.models.dflash import PREDECESSOR, SUCCESSOR
from ninfer.text.tokenizer import Tokenizer

_WHOLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_OTHER_TOKENIZERS: Final = ("tokenizer.model", "vocab.json", "spiece.model")

_MAX_JSON_BYTES: Final = 16 << 20
_MAX_TOKENIZER_BYTES: Final = 128 << 20


def open_huggingface(path: Path) -> Checkpoint:
    """Open and understand a checkpoint directory; raises ArtifactError or ConversionError, with nothing left open."""
    directory = _Directory(path)
    shards: list[SafetensorsFile] = []
    try:
        return _understand(directory, shards)
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def open_draft(path: Path, target: DraftTarget) -> Checkpoint:
    """Open and understand the directory of a published draft for `target`; raises as `open_huggingface`."""
    directory = _Directory(path)
    shards: list[SafetensorsFile] = []
    try:
        fields = config_fields(directory)
        if fields.values.get("architectures") not in [[name] for name in dflash.HF_CLASSES]:
            fields.refuse("architectures", f"drafts that are imported are {', '.join(dflash.HF_CLASSES)}")
        weights, notes = gather(_tensors(directory, shards), fp8_block(fields))
        draft = dflash.read_huggingface(fields, weights, target)
        return Checkpoint(
            kind="huggingface",
            path=path,
            architecture=dflash.ARCHITECTURE,
            config=dict(draft.config),
            assignments=assign(draft.rules, weights, path),
            resources={},
            files=[*directory.read, *(shard.path for shard in shards)],
            mapped=shards,
            notes=notes,
            exact=(PREDECESSOR, SUCCESSOR),
        )
    except BaseException:
        for shard in shards:
            shard.close()
        raise


class SmallFiles(Protocol):
    """The files of a checkpoint that hold no weights. `path`: of the checkpoint, named in errors."""

    @property
    def path(self) -> Path: ...

    def has(self, name: str) -> bool: ...

    def find(self, name: str, limit: int = ...) -> bytes | None:
        """The content of a file of at most `limit` bytes, None if there is none of that name."""
        ...


class _Directory:
    """Small files of a directory; remembers which were read, so that provenance can list them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: list[Path] = []

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def find(self, name: str, limit: int = _MAX_JSON_BYTES) -> bytes | None:
        """The content of a file, None if there is none of that name."""
        file = self.path / name
        if not file.exists():
            return None
        if not file.is_file():
            raise ArtifactError("not a regular file", file=file)
        try:
            with open(file, "rb") as stream:
                content = stream.read(limit + 1)
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error.strerror}", file=file) from error
        if len(content) > limit:
            raise ArtifactError(f"is longer than {limit} bytes", file=file)
        self.read.append(file)
        return content


def _find_object(files: SmallFiles, name: str) -> Fields | None:
    """The JSON object in a file, None if there is none of that name."""
    content = files.find(name)
    return None if content is None else _object(content, files.path / name)


def _object(content: bytes, file: Path) -> Fields:
    return Fields(strict_json.parse_object(content, file=file, field=None), file)


def _understand(directory: _Directory, shards: list[SafetensorsFile]) -> Checkpoint:
    fields = config_fields(directory)
    block = fp8_block(fields)
    weights, notes = gather(_tensors(directory, shards), block)
    checkpoint = understand(directory, fields, weights, notes)
    checkpoint.files = [*directory.read, *(shard.path for shard in shards)]
    checkpoint.mapped = shards
    return checkpoint


def config_fields(files: SmallFiles) -> Fields:
    """The settings of a checkpoint; ArtifactError if there are none."""
    fields = _find_object(files, "config.json")
    if fields is None:
        raise ArtifactError("has no config.json; a model directory of Hugging Face has one", file=files.path)
    return fields


def understand(files: SmallFiles, fields: Fields, weights: dict[str, Weight], notes: list[str]) -> Checkpoint:
    """The checkpoint that settings, weights and small files make; raises as `open_huggingface`.

    `weights`: by the names of the checkpoint; those that are not imported are taken out. `notes`: about the weights.
    """
    read_model = next(
        (read for name, read in HUGGINGFACE.items() if fields.values.get("architectures") == [name]), None
    )
    if read_model is None:
        dflash.refuse_without_target(fields)
        fields.refuse("architectures", f"one class is needed; supported are {', '.join(HUGGINGFACE)}")
    model = read_model(fields, weights)
    notes = [*notes, *model.notes]
    random = fields.table(RANDOM_KEY).values or None
    if random is not None:
        notes.append("the weights are random; what this model says means nothing")
    for name in model.left_out:
        del weights[name]
    config = dict(model.config)
    if config["tied_head"] and model.head in weights:
        _drop_equal_head(weights, model, fields)
        notes.append(f"{model.head} equals the embedding it is tied to and is left out")
    resources = _resources(files)
    tokenizer = frontend.check_frontend(resources, config["vocab_size"], files.path)
    config |= _token_ids(resources.get(frontend.GENERATION_CONFIG), model.id_fields, config["vocab_size"], tokenizer)
    config |= frontend.decodable(model, tokenizer)
    return Checkpoint(
        kind="huggingface",
        path=files.path,
        architecture=model.architecture,
        config=config,
        assignments=assign(model.rules(config), weights, files.path),
        resources=resources,
        files=[],
        mapped=[],
        notes=notes,
        random=random,
    )


def _tensors(directory: _Directory, shards: list[SafetensorsFile]) -> dict[str, SourceTensor]:
    """All tensors of the checkpoint, from one file or the shards an index lists; what was opened is in `shards`."""
    path = directory.path
    if (path / _WHOLE).exists():
        shards.append(SafetensorsFile(path / _WHOLE))
        return {name: SourceTensor(shards[0], info) for name, info in shards[0].tensors.items()}
    index = _find_object(directory, _INDEX)
    if index is None:
        pickles = [name for name in _PICKLES if (path / name).exists()]
        if pickles:
            raise ConversionError(f"{path}: {pickles[0]} is a pickle, which is not read; save the model as safetensors")
        raise ArtifactError(f"has neither {_WHOLE} nor {_INDEX}", file=path)
    places = index.table("weight_map").values
    tensors: dict[str, SourceTensor] = {}
    for place in sorted({str(place) for place in places.values()}):
        if Path(place).name != place or not place.endswith(".safetensors"):
            index.fail("weight_map", f"{place!r:.80} is no safetensors file of this directory")
        shard = SafetensorsFile(path / place)
        shards.append(shard)
        differing = set(shard.tensors) ^ {name for name, where in places.items() if where == place}
        if differing:
            index.fail("weight_map", f"and {place} do not agree about {listed(sorted(differing))}")
        tensors |= {name: SourceTensor(shard, info) for name, info in shard.tensors.items()}
    return tensors


def _drop_equal_head(weights: dict[str, Weight], model: SourceModel, fields: Fields) -> None:
    """A tied checkpoint may store the output matrix again; then it must be the embedding."""
    head, embedding = weights.pop(model.head), weights.get(model.embedding)
    if embedding is None:
        return  # named as missing by the rules
    if not head.is_same(embedding):
        fields.refuse("tie_word_embeddings", f"but {model.head} differs from {model.embedding}")


def _resources(files: SmallFiles) -> dict[str, bytes]:
    content = {
        frontend.TOKENIZER: files.find("tokenizer.json", _MAX_TOKENIZER_BYTES),
        frontend.TOKENIZER_CONFIG: files.find("tokenizer_config.json"),
        frontend.GENERATION_CONFIG: files.find("generation_config.json"),
    }
    content[frontend.CHAT_TEMPLATE] = _chat_template(files, content[frontend.TOKENIZER_CONFIG])
    if content[frontend.TOKENIZER] is None:
        others = [name for name in _OTHER_TOKENIZERS if files.has(name)]
        if others:
            raise ConversionError(
                f"{files.path}: {others[0]} without tokenizer.json: this kind of tokenizer is not supported; "
                "a fast tokenizer saved by transformers writes tokenizer.json"
            )
    return {name: data for name, data in content.items() if data is not None}


def _chat_template(files: SmallFiles, tokenizer_config: bytes | None) -> bytes | None:
    """The template file, or else the one in tokenizer_config.json; of several named ones the `default`."""
    content = files.find("chat_template.jinja")
    if content is not None or tokenizer_config is None:
        return content
    fields = _object(tokenizer_config, files.path / "tokenizer_config.json")
    value = fields.values.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        if not isinstance(named.get("default"), str):
            fields.fail("chat_template", "is a list without a template named 'default'")
        value = named["default"]
    if value is None:
        return None
    if not isinstance(value, str):
        fields.fail("chat_template", f"must be text, not {type(value).__name__}")
    return value.encode("utf-8")


def _token_ids(
    generation_config: bytes | None, fields: Fields, vocab_size: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Begin, end and padding ids; config.json and generation_config.json may each name some, end ids add up."""
    files = [fields]
    if generation_config is not None:
        files.append(_object(generation_config, fields.file.with_name("generation_config.json")))
    bos, end, pad = (
        [i for file in files for i in frontend.token_ids(file, key, vocab_size)]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
    )
    return {
        "bos_token_id": bos[0] if bos else None,
        "stop_token_ids": frontend.stop_token_ids(end, tokenizer),
        "pad_token_id": pad[0] if pad else None,
    }

"""A checkpoint as transformers, vLLM and lm-eval read it: ``Glm4MoeForCausalLM``, laid out as GLM-4.5 was released.

    OUT/
      model-00001-of-00002.safetensors   weights under the released names, one tensor an expert
      model.safetensors.index.json       which file holds which
      config.json, generation_config.json
      tokenizer.json, tokenizer_config.json
      millstream.json                    run, step, digests: what the weights come from, and what each file must hash to

One tensor is in memory at a time, and one file's worth of them where a file is written.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

import millstream
from millstream.audit.runs import Run, SavedCheckpoint
from millstream.errors import InputError, SetupError, UsageError
from millstream.files import sha256_file
from millstream.mixture.training import Model
from millstream.stream.corpora import Corpus
from millstream.stream.roots import check_file, whole_file
from millstream.train.weights import BUFFER, Pieces, stored_names

FORMAT = "millstream-export-hf/1"
SHARD_BYTES = 5 * 10**9
EXPERTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Names of our stacks of experts, and theirs of one expert's matrices."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A tensor of the export: its name there, where it lies in the checkpoint (None: it is empty), shape and dtype."""

    name: str
    stored: str | None
    expert: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def export_hf(
    run: Run,
    saved: SavedCheckpoint,
    index: Mapping[str, Any],
    corpus: Corpus,
    out: Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> int:
    """Write a checkpoint as a folder that transformers loads; returns the number of weights.

    Args:
        run: the run.
        saved: the checkpoint, as the ledger names it.
        index: its index, whose digests were checked.
        corpus: one of the run's, for the tokenizer.
        out: the folder, which must not hold anything.
        dtype: of the weights; the router's correction biases stay fp32.
        shard_bytes: most that one file of weights holds.

    Raises:
        UsageError: the folder holds something already.
        InputError: a file of the checkpoint or the tokenizer is not whole.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: holds something already; give the export another folder")
    model, tokenizer = run.recipe.model, corpus.manifest.tokenizer
    assert model is not None
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        pieces = Pieces(run.path / saved.path, index["tensors"])
        count = write_model(temporary, pieces, model, tokenizer.vocab_size, run.plan.seq_len, dtype, shard_bytes)
        write_tokenizer(temporary, corpus, run.plan.seq_len)
        origin = {
            "format": FORMAT,
            "run": run.name,
            "run_id": run.run_id,
            "plan_id": run.plan.plan_id,
            "corpora": list(run.plan.corpus_ids),
            "step": saved.step,
            "checkpoint": saved.digest,
            "ledger_record": saved.seq,
            "dtype": _name_of(dtype),
            "version": millstream.__version__,
            "files": {path.name: sha256_file(path) for path in sorted(temporary.iterdir())},
        }
        _write_json(temporary / "millstream.json", origin)
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    except SafetensorError as error:
        raise SetupError(f"{out}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def write_model(
    folder: Path, pieces: Pieces, model: Model, vocab_size: int, seq_len: int, dtype: torch.dtype, shard_bytes: int
) -> int:
    """Write a checkpoint's weights and ``config.json`` into a folder; arguments as of ``export_hf``.

    Returns:
        The number of weights.
    """
    tensors = list(exported_tensors(pieces.tensors, model, dtype))
    _write_weights(folder, pieces, tensors, shard_bytes)
    _write_json(folder / "config.json", model_config(model, vocab_size, seq_len, dtype))
    return sum(torch.Size(tensor.shape).numel() for tensor in tensors)


def write_tokenizer(folder: Path, corpus: Corpus, seq_len: int) -> None:
    """Write a corpus's tokenizer into a folder, and complete ``config.json`` there by its special tokens.

    Raises:
        InputError: the tokenizer file is missing or altered.
    """
    identity = corpus.manifest.tokenizer
    own = tokenizer_bytes(corpus)
    (folder / "tokenizer.json").write_bytes(own)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(own, identity.eos_id, identity.bos_id, seq_len))
    ids = {"eos_token_id": identity.eos_id, "bos_token_id": identity.bos_id, "pad_token_id": None}
    _write_json(folder / "generation_config.json", ids)
    _write_json(folder / "config.json", orjson.loads((folder / "config.json").read_bytes()) | ids)


def exported_tensors(stored: Mapping[str, Mapping[str, Any]], model: Model, dtype: torch.dtype) -> Iterator[Exported]:
    """Every tensor of the export, layer by layer.

    Args:
        stored: the checkpoint index's ``tensors``.
        model: the recipe's.
        dtype: of the weights.

    Raises:
        InputError: the checkpoint holds weights that the released layout has no place for.
    """
    found = []
    for parameter, name in stored_names(stored):
        shape = tuple(stored[name]["shape"])
        module, _, last = parameter.rpartition(".")
        if name.startswith(f"{BUFFER}/"):
            if last != "e_score_correction_bias":
                raise InputError(f"{parameter}: transformers' Glm4MoeForCausalLM has no such buffer")
            found.append(Exported(parameter, name, (), shape, torch.float32))
        elif module.endswith(".experts"):
            found += [
                Exported(f"{module}.{number}.{EXPERTS[last]}.weight", name, (number,), shape[1:], dtype)
                for number in range(shape[0])
            ]
        else:
            found.append(Exported(parameter, name, (), shape, dtype))
    if not model.n_shared_experts:
        # transformers makes shared experts of no width, and misses their weights.
        for number in range(model.first_k_dense_replace, model.num_hidden_layers):
            at = f"model.layers.{number}.mlp.shared_experts"
            found += [
                Exported(f"{at}.gate_proj.weight", None, (), (0, model.hidden_size), dtype),
                Exported(f"{at}.up_proj.weight", None, (), (0, model.hidden_size), dtype),
                Exported(f"{at}.down_proj.weight", None, (), (model.hidden_size, 0), dtype),
            ]
    expected = released_names(model)
    for other in sorted(expected ^ {tensor.name for tensor in found}):
        known = "lacks" if other in expected else "holds, and transformers' Glm4MoeForCausalLM has no place for,"
        raise InputError(f"the checkpoint {known} {other}")
    yield from sorted(found, key=lambda tensor: [int(p) if p.isdigit() else -1 for p in tensor.name.split(".")])


def released_names(model: Model) -> set[str]:
    """Names of all tensors in a released checkpoint of a model of this shape."""

    def feed_forward(at: str) -> set[str]:
        return {f"{at}.{part}_proj.weight" for part in ("gate", "up", "down")}

    names = {"model.embed_tokens.weight", "model.norm.weight"}
    if not model.tie_word_embeddings:
        names.add("lm_head.weight")
    for number in range(model.num_hidden_layers):
        at = f"model.layers.{number}"
        names |= {f"{at}.input_layernorm.weight", f"{at}.post_attention_layernorm.weight"}
        names |= {f"{at}.self_attn.{part}_proj.weight" for part in "qkvo"}
        if model.use_qk_norm:
            names |= {f"{at}.self_attn.{part}_norm.weight" for part in "qk"}
        if number < model.first_k_dense_replace:
            names |= feed_forward(f"{at}.mlp")
            continue
        names |= {f"{at}.mlp.gate.weight", f"{at}.mlp.gate.e_score_correction_bias"}
        names |= feed_forward(f"{at}.mlp.shared_experts")
        for expert in range(model.n_routed_experts):
            names |= feed_forward(f"{at}.mlp.experts.{expert}")
    return names


def model_config(model: Model, vocab_size: int, seq_len: int, dtype: torch.dtype) -> dict[str, Any]:
    """``config.json``: the recipe's fields are transformers' own; older releases want rotation at the top level."""
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        **model.model_dump(),
        "vocab_size": vocab_size,
        "max_position_embeddings": seq_len,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "rope_scaling": None,
        "use_cache": True,
        "torch_dtype": _name_of(dtype),
    }


def tokenizer_config(tokenizer_file: bytes, eos_id: int, bos_id: int | None, seq_len: int) -> dict[str, Any]:
    """``tokenizer_config.json`` for the tokenizer file of a corpus."""
    tokenizer = Tokenizer.from_str(tokenizer_file.decode())
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": seq_len,
        "eos_token": tokenizer.id_to_token(eos_id),
        "bos_token": None if bos_id is None else tokenizer.id_to_token(bos_id),
        # As decoders that are lossless want it.
        "clean_up_tokenization_spaces": False,
    }


def tokenizer_bytes(corpus: Corpus) -> bytes:
    """The tokenizer file of a corpus, checked.

    Raises:
        InputError: it is missing or altered.
    """
    entry = corpus.manifest.tokenizer.file
    check_file(corpus.root, entry)
    found = whole_file(corpus.root, entry)
    return found.read_bytes() if isinstance(found, Path) else found.getvalue()


def _write_weights(folder: Path, pieces: Pieces, tensors: Sequence[Exported], shard_bytes: int) -> None:
    shards: list[list[Exported]] = [[]]
    held_bytes = 0
    for tensor in tensors:
        if shards[-1] and held_bytes + tensor.size > shard_bytes:
            shards.append([])
            held_bytes = 0
        shards[-1].append(tensor)
        held_bytes += tensor.size
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        held = {tensor.name: _read(pieces, tensor) for tensor in shard}
        # transformers asks for the framework that wrote a file.
        save_file(held, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(held, name)
    _write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": sum(t.size for t in tensors)}, "weight_map": where},
    )


def _read(pieces: Pieces, tensor: Exported) -> Tensor:
    if tensor.stored is None:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return pieces.read(tensor.stored, tensor.expert).to(tensor.dtype)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")

"""A model to run by itself: from a checkpoint of a run, or from a folder in the released layout of GLM-4.5.

Weights are read a tensor at a time and go to the device in the precision that is asked for, so that no second copy of
the model is ever held.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from millstream.audit.runs import Run
from millstream.errors import InputError
from millstream.mixture.training import Model
from millstream.stream.corpora import Corpus
from millstream.train.export_hf import EXPERTS, tokenizer_bytes
from millstream.train.model import CausalLM
from millstream.train.weights import Pieces, stored_names

FIXED = {"attention_bias": False, "hidden_act": "silu", "n_group": 1, "topk_group": 1, "rope_scaling": None}
"""What a ``config.json`` may say, and our network does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """A network ready to run, and what it takes to talk to it.

    ``tokenizer`` is a tokenizers file; ``ends`` are the ids after which a document is over; ``longest`` is the number
    of tokens in a row that it was trained on.
    """

    network: CausalLM
    tokenizer: bytes
    bos: int | None
    ends: frozenset[int]
    longest: int


def of_checkpoint(
    run: Run, folder: Path, index: Mapping[str, Any], corpus: Corpus, dtype: torch.dtype, device: torch.device
) -> Pretrained:
    """The model that a checkpoint holds.

    Args:
        run: the run.
        folder: the checkpoint.
        index: its index, whose digests were checked.
        corpus: one of the run's, for the tokenizer.
        dtype: of the weights.
        device: where to run.

    Raises:
        InputError: a file is not whole, or the weights are of another model.
    """
    model, identity = run.recipe.model, corpus.manifest.tokenizer
    assert model is not None
    pieces = Pieces(folder, index["tensors"])
    weights = ((parameter, pieces.read(name)) for parameter, name in stored_names(pieces.tensors))
    return Pretrained(
        network=_network(model, identity.vocab_size, weights, dtype, device, folder),
        tokenizer=tokenizer_bytes(corpus),
        bos=identity.bos_id,
        ends=frozenset((identity.eos_id,)),
        longest=run.plan.seq_len,
    )


def of_folder(folder: Path, dtype: torch.dtype | None, device: torch.device) -> Pretrained:
    """The model in a folder that ``export hf``, or anybody, wrote for ``Glm4MoeForCausalLM``.

    Args:
        folder: with ``config.json``, safetensors and ``tokenizer.json``.
        dtype: of the weights; None takes what ``config.json`` says.
        device: where to run.

    Raises:
        InputError: a file is missing or malformed, or the model is not of this kind.
    """
    config = _json(folder / "config.json")
    if config.get("model_type") != "glm4_moe":
        raise InputError(f"{folder}: its model_type is {config.get('model_type')!r}, and only 'glm4_moe' can be run")
    # Newer releases of transformers keep what concerns rotation apart.
    config |= {name: value for name, value in (config.get("rope_parameters") or {}).items() if name != "rope_type"}
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            raise InputError(f"{folder}/config.json: {name} is {config[name]!r}; only {value!r} can be run")
    try:
        model = Model.model_validate({name: config[name] for name in Model.model_fields if name in config})
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{folder}/config.json: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    written = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    eos = config.get("eos_token_id")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise InputError(f"{tokenizer}: not there")
    return Pretrained(
        network=_network(
            model, config["vocab_size"], _released(folder, model), dtype or getattr(torch, written), device, folder
        ),
        tokenizer=tokenizer.read_bytes(),
        bos=config.get("bos_token_id"),
        ends=frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        longest=config["max_position_embeddings"],
    )


def _network(
    model: Model,
    vocab_size: int,
    weights: Iterator[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
    folder: Path,
) -> CausalLM:
    with torch.device("meta"):
        network = CausalLM(model, vocab_size)
    held = {
        # The router's biases are added to scores in fp32: rounded, they would choose other experts.
        name: weight.to(device, torch.float32 if name.endswith("e_score_correction_bias") else dtype)
        for name, weight in weights
    }
    if model.tie_word_embeddings:
        held["lm_head.weight"] = held["model.embed_tokens.weight"]
    try:
        network.load_state_dict(held, assign=True)
    except RuntimeError as error:
        raise InputError(f"{folder}: is of another model: {' '.join(str(error).split())}") from error
    return network.requires_grad_(requires_grad=False).eval()


def _released(folder: Path, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Weights under our names, experts stacked, of a folder in the released layout."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    try:
        if index.is_file():
            where = {name: folder / file for name, file in _json(index)["weight_map"].items()}
        else:
            with safe_open(single, "pt") as file:
                where = dict.fromkeys(file.keys(), single)
        opened = {path: safe_open(path, "pt") for path in sorted(set(where.values()))}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{folder}: its weights cannot be read: {error}") from error

    def read(name: str) -> Tensor:
        if name not in where:
            raise InputError(f"{folder}: holds no {name}")
        tensor: Tensor = opened[where[name]].get_tensor(name)
        return tensor

    with torch.device("meta"):
        names = list(CausalLM(model, 1).state_dict())
    for name in names:
        module, _, last = name.rpartition(".")
        if module.endswith(".experts"):
            yield (
                name,
                torch.stack([read(f"{module}.{n}.{EXPERTS[last]}.weight") for n in range(model.n_routed_experts)]),
            )
        elif not (name == "lm_head.weight" and model.tie_word_embeddings):
            yield name, read(name)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content

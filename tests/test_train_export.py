"""A checkpoint as others load it, and text written by it: the same numbers as ours, and no surprises."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import build, recipe_dict, write_domain
from safetensors import safe_open
from safetensors.torch import save_file
from test_story import SECTIONS, millstream
from test_train_model import MODEL, VOCAB, batch

from millstream.audit.corpora import open_corpora
from millstream.audit.runs import Run, open_run
from millstream.errors import InputError, UsageError
from millstream.files import sha256_file
from millstream.stream.reader import open_stream
from millstream.train.export_hf import write_model
from millstream.train.generate import Sampling, choose, write
from millstream.train.initial import initialise
from millstream.train.model import CausalLM
from millstream.train.moe import moe_layers
from millstream.train.pretrained import of_folder
from millstream.train.weights import Pieces, stored_names

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a few steps on two ranks."""
    folder = tmp_path_factory.mktemp("export")
    for name in ("law", "news", "verse"):
        write_domain(folder / "in", name, 80)
    sections: dict[str, Any] = json.loads(json.dumps(SECTIONS))
    sections["mixture"] |= {"steps": 10, "limits": {}}
    sections["train"] |= {"checkpoint_every": 5, "evaluate_every": None, "wandb": None, "expert_parallel": 2}
    build(folder, recipe_dict(folder / "in", ("law", "news", "verse"), **sections))
    train = ("train", "recipe.yaml", "--corpus", "corpus", "--run", "run", "--num_accelerators", "2")
    millstream(folder, *train)
    return folder


@pytest.fixture(scope="module")
def exported(home: Path) -> Path:
    said = json.loads(millstream(home, "export", "hf", "run", "--out", "hf", "--json").stdout)
    assert (said["step"], said["dtype"], said["folder"]) == (10, "fp32", "hf")
    return home / "hf"


def network_of(run: Run, step: int) -> CausalLM:
    """Our own model with a checkpoint's weights."""
    assert run.recipe.model is not None
    (corpus,) = open_corpora(run).values()
    network = CausalLM(run.recipe.model, corpus.manifest.tokenizer.vocab_size).eval()
    folder = run.path / "checkpoints" / f"step-{step:08}"
    pieces = Pieces(folder, json.loads((folder / "checkpoint.json").read_text())["tensors"])
    network.load_state_dict({parameter: pieces.read(name) for parameter, name in stored_names(pieces.tensors)})
    return network


def test_transformers_gives_the_same_logits_and_the_same_text(home: Path, exported: Path) -> None:
    run = open_run(home / "run")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    assert type(theirs).__name__ == "Glm4MoeForCausalLM"
    assert theirs.dtype == torch.float32
    ours = network_of(run, 10)
    stream = open_stream(run.plan, open_corpora(run).values())
    with torch.no_grad():
        for step in range(1, 11):
            tokens = torch.from_numpy(next(iter(stream.iterate(step, step, 0, 1))).tokens.astype("int64"))[:, :-1]
            assert (theirs(tokens).logits - ours.logits(tokens)).abs().max() < 1e-4
        tokens = tokens[:, :8]
        greedy = theirs.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        for _ in range(16):
            tokens = torch.cat((tokens, ours.logits(tokens)[:, -1:].argmax(-1)), -1)
    assert torch.equal(greedy, tokens)


def test_the_tokenizer_comes_with_it(home: Path, exported: Path) -> None:
    (corpus,) = open_corpora(open_run(home / "run")).values()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    assert tokenizer.eos_token_id == corpus.manifest.tokenizer.eos_id
    assert len(tokenizer) <= corpus.manifest.tokenizer.vocab_size
    text = "law 0 1.  A line\n\twith spaces ."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    generation = json.loads((exported / "generation_config.json").read_text())
    assert generation["eos_token_id"] == corpus.manifest.tokenizer.eos_id


def test_names_are_the_released_ones_one_tensor_an_expert(exported: Path) -> None:
    index = json.loads((exported / "model.safetensors.index.json").read_text())
    (name,) = set(index["weight_map"].values())
    assert name == "model-00001-of-00001.safetensors"
    with safe_open(exported / name, "pt") as file:
        assert set(file.keys()) == set(index["weight_map"])
        assert file.get_slice("model.layers.1.mlp.experts.3.gate_proj.weight").get_shape() == [16, 32]
        assert file.get_slice("model.layers.1.mlp.experts.0.down_proj.weight").get_shape() == [32, 16]
        assert file.get_tensor("model.layers.1.mlp.gate.e_score_correction_bias").abs().max() > 0
        assert file.metadata() == {"format": "pt"}


def test_it_says_where_it_comes_from(home: Path, exported: Path) -> None:
    run = open_run(home / "run")
    origin = json.loads((exported / "millstream.json").read_text())
    assert origin["run_id"] == run.run_id
    assert origin["checkpoint"] == run.checkpoints[-1].digest
    assert origin["files"] == {
        path.name: sha256_file(path) for path in exported.iterdir() if path.name != "millstream.json"
    }


def test_an_earlier_step_in_bf16_keeps_the_biases_whole(home: Path) -> None:
    millstream(home, "export", "hf", "run", "--out", "early", "--step", "5", "--dtype", "bf16")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(home / "early").eval()
    assert theirs.dtype == torch.bfloat16
    ours = network_of(open_run(home / "run"), 5)
    bias = theirs.model.layers[1].mlp.gate.e_score_correction_bias
    assert torch.equal(bias, moe_layers(ours)[0].gate.e_score_correction_bias)
    assert torch.equal(theirs.lm_head.weight, ours.lm_head.weight.bfloat16())


def test_wrong_wishes_are_refused_with_one_line(home: Path, exported: Path) -> None:
    def refused(*arguments: str) -> str:
        done = millstream(home, *arguments, check=False)
        assert done.returncode in (2, 3)
        (line,) = done.stderr.splitlines()
        return line

    assert "holds something already" in refused("export", "hf", "run", "--out", "hf")
    assert "no checkpoint of step 7; there are: 5, 10" in refused("export", "hf", "run", "--out", "x", "--step", "7")
    path = home / "run" / "checkpoints" / "step-00000005" / "rank-00000.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    said = refused("export", "hf", "run", "--out", "x", "--step", "5")
    path.write_bytes(whole)
    assert "rank-00000.safetensors: altered" in said
    assert not (home / "x").exists()


def save_by_hand(network: CausalLM, folder: Path) -> Pieces:
    """A network's weights as a checkpoint of one file holds them."""
    buffers = {f"buffer/{name}": value for name, value in network.named_buffers() if name.endswith("bias")}
    held = {f"fp32/{name}": value.detach() for name, value in network.named_parameters()} | buffers
    save_file({name: value.flatten() for name, value in held.items()}, folder / "rank-00000.safetensors")
    return Pieces(
        folder,
        {
            name: {"shape": list(v.shape), "dtype": "float32", "at": [["rank-00000.safetensors", 0, v.numel()]]}
            for name, v in held.items()
        },
    )


@pytest.mark.parametrize(
    "change",
    [
        {"tie_word_embeddings": True},
        {"use_qk_norm": False, "norm_topk_prob": False},
        {"n_shared_experts": 2, "first_k_dense_replace": 0},
        {"n_shared_experts": 0},
        {"first_k_dense_replace": 3, "rope_theta": 500_000.0, "partial_rotary_factor": 1.0},
    ],
    ids=["tied", "no norms", "all sparse", "none shared", "all dense"],
)
def test_every_shape_that_both_know_gives_the_same_logits(tmp_path: Path, change: dict[str, Any]) -> None:
    model = MODEL.model_copy(update=change)
    ours = CausalLM(model, VOCAB).eval()
    initialise(ours, model.model_copy(update={"initializer_range": 0.2}), 5)
    for layer in moe_layers(ours):
        layer.gate.e_score_correction_bias.copy_(torch.linspace(-0.2, 0.2, model.n_routed_experts))
    count = write_model(tmp_path, save_by_hand(ours, tmp_path), model, VOCAB, 64, torch.float32, 20_000)
    assert count == sum(p.numel() for p in ours.parameters()) + sum(8 for _ in moe_layers(ours))
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 3
    (tmp_path / "rank-00000.safetensors").unlink()
    theirs, info = transformers.Glm4MoeForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert (theirs.eval()(batch(1)).logits - ours.logits(batch(1))).abs().max() < 1e-4


def test_what_the_released_layout_has_no_place_for_is_refused(tmp_path: Path) -> None:
    ours = CausalLM(MODEL, VOCAB)
    pieces = save_by_hand(ours, tmp_path)
    with pytest.raises(InputError, match=r"has no place for, model\.layers\.0\.self_attn\.k_norm\.weight"):
        write_model(tmp_path, pieces, MODEL.model_copy(update={"use_qk_norm": False}), VOCAB, 64, torch.float32, 1000)


def test_generate_writes_what_transformers_writes_from_the_run_and_from_the_folder(home: Path, exported: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    prompts = ("law 0 1. ", "verse")
    given = [part for prompt in prompts for part in ("--prompt", prompt)]
    for model in ("run", "hf"):
        said = json.loads(millstream(home, "generate", model, *given, "--tokens", "12", "--json").stdout)
        for prompt, told in zip(prompts, said["prompts"], strict=True):
            (own,) = told["continuations"]
            tokens = tokenizer(prompt, return_tensors="pt")
            expected = theirs.generate(**tokens, max_new_tokens=12, do_sample=False, pad_token_id=0)[0]
            expected = expected[tokens["input_ids"].shape[1] :].tolist()
            assert own["ids"] == [token for token in expected if token != tokenizer.eos_token_id]
            assert own["text"] == tokenizer.decode(own["ids"])
            assert own["ended"] == (expected[-1] == tokenizer.eos_token_id)


def test_samples_follow_their_seed_and_their_nucleus(home: Path, exported: Path) -> None:
    model = of_folder(exported, None, torch.device("cpu"))
    wide = Sampling(temperature=1.0, top_p=1.0, seed=3)
    written = [write(model, "news", tokens=10, samples=4, sampling=wide) for _ in range(2)]
    assert written[0] == written[1]
    assert len({tuple(one.ids) for one in written[0]}) == 4
    other = write(model, "news", tokens=10, samples=4, sampling=Sampling(temperature=1.0, top_p=1.0, seed=4))
    assert other != written[0]
    narrow = write(model, "news", tokens=10, samples=1, sampling=Sampling(temperature=1.0, top_p=1e-6, seed=3))
    assert narrow == write(model, "news", tokens=10, samples=1, sampling=Sampling(temperature=0, top_p=1.0, seed=0))

    chances = torch.tensor([0.5, 0.3, 0.15, 0.05])
    drawn = choose(chances.log().expand(20_000, -1), Sampling(temperature=1.0, top_p=0.7, seed=0), torch.Generator())
    shares = drawn.bincount(minlength=4) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.625, 0.375, 0, 0]), atol=0.015)


def test_a_prompt_too_long_or_a_folder_of_another_kind_is_refused(home: Path, exported: Path, tmp_path: Path) -> None:
    model = of_folder(exported, None, torch.device("cpu"))
    greedy = Sampling(temperature=0, top_p=1.0, seed=0)
    with pytest.raises(UsageError, match="the model was trained on 32 in a row"):
        write(model, "law " * 40, tokens=4, samples=1, sampling=greedy)
    assert write(model, "<|eos|>", tokens=4, samples=1, sampling=greedy)[0].ids, "ordinary text"
    config = json.loads((exported / "config.json").read_text())
    for change, message in (
        ({"model_type": "llama"}, "only 'glm4_moe' can be run"),
        ({"n_group": 2}, "n_group is 2; only 1 can be run"),
        ({"hidden_size": 33}, "hidden_size: Input should be a multiple of 8"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(InputError, match=re.escape(message)):
            of_folder(tmp_path, None, torch.device("cpu"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_bytes((exported / "tokenizer.json").read_bytes())
    with pytest.raises(InputError, match="its weights cannot be read"):
        of_folder(tmp_path, None, torch.device("cpu"))

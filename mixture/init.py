"""A first recipe for a folder of the user's own files, with comments on what to change."""

from pathlib import Path

from millstream.errors import UsageError
from millstream.files import write_bytes

TEXT_BYTES_A_TOKEN = 4
SUFFIXES = {
    ".jsonl": "**/*.jsonl",
    ".jsonl.gz": "**/*.jsonl.gz",
    ".jsonl.zst": "**/*.jsonl.zst",
    ".ndjson": "**/*.ndjson",
    ".parquet": "**/*.parquet",
    ".txt": "**/*.txt",
    ".md": "**/*.md",
    ".rst": "**/*.rst",
    ".html": "**/*.html",
    ".py": "**/*.py",
}

TEMPLATE = """\
# A recipe: which documents, which mixture, which model. Change it freely, then:
#   millstream build {file}      corpora/{name}: filtered, deduplicated, tokenized
#   millstream plan {file}       what will be seen, how often, what it costs
#   millstream train {file}      runs/{name}: a trained model and its record
# 'millstream plan {file} --show-recipe' shows every default that is not written here.
format: millstream-recipe/1
name: {name}

corpus:
  seed: 1
  sources:
{sources}
  domains:
    # Documents of a domain are mixed with one weight. 'holdout' is the share kept for evaluation.
{domains}
  filters:
    # Dropped documents are recorded with the rule and the numbers. More rules: docs/reference/recipe.md.
    - {{rule: length, min_chars: 50}}
  tokenizer:
    # Trained on your own text. An existing one: {{kind: file, path: tokenizer.json, eos: "</s>"}}
    kind: bpe
    vocab_size: {vocab}

mixture:
  seed: 1
  seq_len: {seq_len}
  batch: 16
  steps: {steps}
  # Often repeated text is learned by heart; more than this is refused.
  max_epochs: 4
  phases:
    - name: pretrain
      share: 0.8
      weights:
{weights}
    - name: midtrain
      # Here you would raise the weights of the best text.
      weights:
{weights}

model:
  # About a million parameters beside the embeddings: minutes on two processor cores.
  hidden_size: 128
  num_hidden_layers: 4
  num_attention_heads: 4
  num_key_value_heads: 2
  head_dim: 32
  intermediate_size: 384
  n_routed_experts: 8
  num_experts_per_tok: 2
  moe_intermediate_size: 128

train:
  precision: fp32
  micro_batch: 16
  checkpoint_every: 50
  optimizer: {{lr: 3e-3}}
  schedule: {{kind: cosine, warmup_steps: 10}}
"""


def write_starter_recipe(folder: Path, output: Path) -> None:
    """Write a commented recipe: one domain a subfolder, or one for the folder itself.

    Raises:
        UsageError: the folder does not exist or holds no file of a known kind.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    parts = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    found = [(path, globs) for path in parts if (globs := _globs(path))] or [(folder, _globs(folder))]
    if not found[0][1]:
        raise UsageError(f"{folder}: no file of a known kind ({', '.join(SUFFIXES)})")
    names = _names([path for path, _ in found])
    sizes = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path, _ in found]
    tokens = max(1, sum(sizes) // TEXT_BYTES_A_TOKEN)
    seq_len = 128 if min(sizes) // TEXT_BYTES_A_TOKEN > 16 * 128 else 32
    sources = "".join(
        f"    - name: {name}\n      root: {_quoted(_root(path, output))}\n"
        f"      files: [{', '.join(_quoted(g) for g in globs)}]\n"
        "      # licence: CC-BY-4.0        # of every document; 'licence_field' names a field instead\n"
        for name, (path, globs) in zip(names, found, strict=True)
    )
    text = TEMPLATE.format(
        file=output.name,
        name=_slug(output.stem),
        sources=sources.rstrip("\n"),
        domains="\n".join(f"    - {{name: {name}, sources: [{name}], holdout: 0.01}}" for name in names),
        weights="\n".join(
            f"        {name}: {max(1, size * 100 // sum(sizes))}" for name, size in zip(names, sizes, strict=True)
        ),
        vocab=8192 if tokens > 1_000_000 else 2048 if tokens > 50_000 else 512,
        seq_len=seq_len,
        # A little under one epoch, so that the mixture is possible whatever the tokenizer makes of the text.
        steps=max(10, min(1000, tokens // (2 * 16 * seq_len))),
    )
    write_bytes(output, text.encode())


def _globs(folder: Path) -> list[str]:
    names = [path.name.lower() for path in folder.rglob("*") if path.is_file()]
    return [glob for suffix, glob in SUFFIXES.items() if any(name.endswith(suffix) for name in names)]


def _root(path: Path, output: Path) -> str:
    base = output.parent.resolve()
    target = path.resolve()
    return target.relative_to(base).as_posix() if target.is_relative_to(base) else str(target)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _slug(text: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower()).strip("-")
    return kept[:63] or "corpus"


def _names(paths: list[Path]) -> list[str]:
    names: list[str] = []
    for path in paths:
        base = _slug(path.resolve().name)
        names.append(base if base not in names else f"{base[:58]}-{len(names)}")
    return names

"""Millstream: recipes in, trained models out, with proof of what went in.

The subpackages are the pipeline's stages, each importing only from those before it:

    mixture   recipe schema, sources, reading, filters, deduplication
    tokenize  tokenizers, encoding, shards, document tables, manifest, the build
    stream    plan, segments, shard reading, batches
    audit     ledger, lineage, queries, replay
    train     model, MoE layer, DeepSpeed engine, loop, checkpoints
"""

from importlib.metadata import version

__version__ = version("millstream")

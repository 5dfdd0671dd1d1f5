"""Shard a stage's functions over several devices, by rules of operators and collectives between."""

from tuner.shards.interface import Collective, Offset, ShardedFunction, ShardedStage
from tuner.shards.layouts import Layout, Partial, Replicated, Split, join_shards, split_axis, take_shard
from tuner.shards.propagate import shard_function
from tuner.shards.run import run_as_whole, run_shards
from tuner.shards.stage import shard_ends, shard_stage, shard_stages
from tuner.shards.vocabulary import has_words, vocabulary_layouts

__all__ = [
    "Collective",
    "Layout",
    "Offset",
    "Partial",
    "Replicated",
    "ShardedFunction",
    "ShardedStage",
    "Split",
    "has_words",
    "join_shards",
    "run_as_whole",
    "run_shards",
    "shard_ends",
    "shard_function",
    "shard_stage",
    "shard_stages",
    "split_axis",
    "take_shard",
    "vocabulary_layouts",
]

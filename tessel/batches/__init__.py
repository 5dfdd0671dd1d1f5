"""Micro-batches that differ: classes of spans, memory and lags, and the batch that is a sequence of them."""

from tessel.batches.batch import Batch, MicroBatchClass, scaled_class
from tessel.batches.folded import folded_placement

__all__ = ["Batch", "MicroBatchClass", "folded_placement", "scaled_class"]

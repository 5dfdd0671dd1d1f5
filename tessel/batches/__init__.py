"""Micro-batches that differ: classes of spans, memory and lags, and the batch that is a sequence of them."""

from tessel.batches.batch import Batch, MicroBatchClass, scaled_class
from tessel.batches.folded import folded_placement
from tessel.batches.lengths import class_of_length

__all__ = ["Batch", "MicroBatchClass", "class_of_length", "folded_placement", "scaled_class"]

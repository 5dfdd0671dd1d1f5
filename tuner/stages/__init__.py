"""Cut a model into pipeline stages, and write each stage's forward and backward functions."""

from tuner.frontend.pipeline_marks import cut_pipeline_stage
from tuner.stages.balance import choose_cuts
from tuner.stages.build import build_stages
from tuner.stages.check import WholeResults, check_gradients, draw_tensors, run_stages
from tuner.stages.interface import Stage, StageFunction, tied_groups, tied_ranks
from tuner.stages.layers import Layer, cut_after, cut_between, layers_of
from tuner.stages.missing_gradients import with_all_gradients

__all__ = [
    "Layer",
    "Stage",
    "StageFunction",
    "WholeResults",
    "build_stages",
    "check_gradients",
    "choose_cuts",
    "cut_after",
    "cut_between",
    "cut_pipeline_stage",
    "draw_tensors",
    "layers_of",
    "run_stages",
    "tied_groups",
    "tied_ranks",
    "with_all_gradients",
]

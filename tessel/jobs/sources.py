"""Sources of a plan: a table in any form, a plan, or a model whose layers are measured or predicted.

Checked in tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.own_files import other_files_named
from tessel.errors import UsageError
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.jobs.inputs.plan_options import PlanOptions
    from tessel.profiles.profile import Profile
    from tuner.frontend import Model
    from tuner.tuning.search.options import SearchOptions

ProfileSource = Any
"""A table of timings: a path, rows by column, a pandas frame or a `Profile`; a plan, or its path; a torch
module, an exported program, the path of a model, or its name."""

MODEL_NAMES = ("gpt2", "bert", "mt5", "flava", "resnet", "mobilenet", "mlp")
"""Names of the zoo, whose modules load more than a completion may; checked in
tests/scripts/options/test_completion.py."""

_MODEL_FILES = (".onnx", ".pt2")


def is_model(source: str) -> bool:
    """Whether a text names a model, not a file of timings."""
    name, colon, _ = source.partition(":")
    if Path(source).exists():
        return Path(source).suffix in _MODEL_FILES
    return name in MODEL_NAMES or bool(colon) or Path(source).suffix in _MODEL_FILES


def check_model(source: str) -> str:
    """Return what names a model, or refuse what can name none before anything heavy is loaded.

    Raises:
        UsageError: it is no name of the zoo, no file of a model, and no `module:function`.
    """
    if ":" in source or source.startswith(MODEL_NAMES) or Path(source).suffix in _MODEL_FILES:
        return source
    near = difflib.get_close_matches(source, MODEL_NAMES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    with other_files_named(source, "a model", UsageError):
        raise UsageError(
            f"there is no model {source!r}; {hint}give one of {', '.join(MODEL_NAMES)}, a file .onnx or "
            ".pt2, or module:function of a torch module"
        )


def profile_of_source(source: ProfileSource, options: PlanOptions, example_inputs: Any = None) -> Profile:
    """Return the profile that a source holds, or that measuring or predicting a model's layers gives.

    Raises:
        UsageError: the source is nothing of the kinds that are taken.
        DocumentError: it cannot be read, or is no profile.
        TunerError: the model cannot be measured.
    """
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        profile = _profile_of_path(path, options)
    else:
        profile = _profile_of_object(source, options, example_inputs)
    if options.gpu is not None and not profile.is_predicted:
        raise UsageError("--gpu is for a model's config.json, and the source has times already; leave it out")
    for note in profile.notes:
        messages.note(note)
    return profile


def _profile_of_path(path: str, options: PlanOptions) -> Profile:
    from tessel.jobs.described_model import names_config, profile_of_config

    if names_config(path):
        return profile_of_config(path, options)
    return _profile_of_model(path, options) if is_model(path) else _read_profile(path, options)


def _read_profile(path: str, options: PlanOptions) -> Profile:
    from tessel.profiles import load_profile

    return load_profile(
        path,
        format_name=options.format,
        num_layers=options.num_layers,
        micro_batch=options.micro_batch,
        tensor_parallel=options.degree,
        context_parallel=options.context_parallel,
        expert_parallel=options.expert_parallel,
    )


def _profile_of_object(source: Any, options: PlanOptions, example_inputs: Any) -> Profile:
    from tessel.jobs.plan import Plan
    from tessel.profiles.profile import Profile

    if isinstance(source, Profile):
        return source
    if isinstance(source, Plan):
        if source.planned is None:
            raise UsageError(f"{source!r} is of a model; save it and plan from its file, or plan the model")
        return source.planned.profile
    rows = rows_of(source)
    if rows is None:
        return _profile_of_model(source, options, example_inputs)
    return _profile_of_rows(rows, options)


def rows_of(source: Any) -> list[Mapping[str, Any]] | None:
    """Return the rows of a list of mappings, of a mapping of columns or of a pandas frame; None of others."""
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        return list(source.to_dict("records"))
    if isinstance(source, Mapping):
        names = list(source)
        return [dict(zip(names, row, strict=True)) for row in zip(*source.values(), strict=True)]
    if isinstance(source, list | tuple) and all(isinstance(row, Mapping) for row in source):
        return list(source)
    return None


def _profile_of_rows(rows: Iterable[Mapping[str, Any]], options: PlanOptions) -> Profile:
    """Read rows as the table that they would be as a file."""
    from tessel.profiles.load import profile_of_text

    listed = list(rows)
    columns = list(dict.fromkeys(name for row in listed for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows({name: "" if value != value else value for name, value in row.items()} for row in listed)
    return profile_of_text(
        Path("rows"),
        text.getvalue().encode(),
        format_name="csv",
        num_layers=options.num_layers,
        micro_batch=options.micro_batch,
        tensor_parallel=options.degree,
        context_parallel=options.context_parallel,
        expert_parallel=options.expert_parallel,
    )


def _profile_of_model(source: Any, options: PlanOptions, example_inputs: Any = None) -> Profile:
    """Return the profile of a model, each layer a stage of its own."""
    from tuner.tuning.search.gpu_prediction import is_predicted_for_gpu

    model = load_model(
        source,
        example_inputs,
        shape=options.shape,
        value=options.value,
        batch=options.samples,
        training=True,
    )
    name = str(source) if isinstance(source, str) else type(source).__name__
    if is_predicted_for_gpu(options):
        return _predicted(name, model, options)
    return _measured(name, model, options)


def load_model(
    source: Any,
    example_inputs: Any = None,
    *,
    shape: Mapping[str, tuple[int, ...]] | None,
    value: Mapping[str, bool | int | float] | None,
    batch: int,
    training: bool,
) -> Model:
    """Load a model: a torch module with its inputs, an exported program, a file, or a name.

    Raises:
        TypeError: it is nothing of these, or example inputs are missing.
        TunerError: it cannot be imported; says why.
    """
    from tessel.compiling.partitioning import load_source
    from tessel.jobs.sessions import shown_report
    from tuner.tuning.search.options import PartitionOptions

    options = PartitionOptions(train=training, batch=batch, shape=shape, value=value)
    name = str(source) if isinstance(source, str | Path) else type(source).__name__
    with messages.bar(f"loading {name}") as update:
        return load_source(source, example_inputs, options, shown_report(update))


def search_options(options: Any) -> SearchOptions:
    """Return the options of measuring that a job's options have; the others have their defaults."""
    from dataclasses import fields

    from tuner.tuning.search.options import SearchOptions

    names = [each.name for each in fields(SearchOptions) if hasattr(options, each.name)]
    return SearchOptions(**{name: getattr(options, name) for name in names})


def _measured(name: str, model: Model, options: PlanOptions) -> Profile:
    from tessel.jobs.sessions import open_session
    from tessel.profiles.tuned_plan import profile_of_stages
    from tuner.stages import layers_of
    from tuner.tuning.stage_costs.measure_stages import measure_stages

    names = [layer.name for layer in layers_of(model)]
    with open_session(search_options(options)) as session:
        found = measure_stages(model, session, cuts=tuple(names[:-1]))
        device = session.measurer.environment(session.backends[0].name).device_model
    return profile_of_stages(found.stages, found.tied, name=name, device=device, micro_batch=options.samples)


def _predicted(name: str, model: Model, options: PlanOptions) -> Profile:
    """Return the profile of a model on a GPU that is not here."""
    from cost_model.gpu.devices import find_gpu
    from tessel.profiles.tuned_plan import profile_of_stages
    from tuner.stages import cut_between, layers_of
    from tuner.tuning.search.gpu_prediction import describe_prediction, gpu_model
    from tuner.tuning.stage_costs.predict_stages import predict_stages

    device = find_gpu(options.target)
    with messages.bar("training on kernels"):
        kernel_model = gpu_model(options)
    layers = layers_of(model)
    with messages.bar(f"predicting {len(layers)} layers on {device.name}"):
        found = predict_stages(model, cut_between(layers, range(1, len(layers))), kernel_model, device)
    messages.note(describe_prediction(device, kernel_model))
    if found.doublings_out_of_range > 0:
        messages.note(
            f"the largest kernel is {found.doublings_out_of_range:.1f} doublings beyond those measured: its "
            "interval is wider"
        )
    return profile_of_stages(
        found.stages, found.tied, name=name, device=device.name, micro_batch=options.samples
    )

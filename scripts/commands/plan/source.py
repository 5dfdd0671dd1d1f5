"""Input of `tessel plan`: a profile of any format, a plan, or a model whose layers are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.options import tuning_options
from scripts.options.completion import is_model
from scripts.options.gpu_prediction import gpu_model, note_prediction
from scripts.terminal import console

if TYPE_CHECKING:
    from scripts.commands.plan.options import PlanCommandOptions
    from tessel.profiles.profile import Profile


def load_source(source: str, options: PlanCommandOptions) -> Profile:
    """Return the profile that a file holds, or that measuring or predicting a model's layers gives.

    Raises:
        DocumentError: the file cannot be read, or is no profile.
        TunerError: the model cannot be measured.
    """
    if is_model(source):
        return _predict(source, options) if options.is_predicted_for_gpu else _measure(source, options)
    from tessel.profiles import load_profile

    profile = load_profile(
        source,
        format_name=options.format_name,
        entry=options.entry,
        num_layers=options.num_layers,
        micro_batch=options.micro_batch,
        tensor_parallel=options.tensor_parallel,
    )
    for note in profile.notes:
        console.print_note(note)
    return profile


def _measure(source: str, options: PlanCommandOptions) -> Profile:
    """Return the profile of a model, each layer a stage of its own, as it is measured."""
    from tessel.profiles.tuned_plan import profile_of_stages
    from tuner.stages import layers_of
    from tuner.tuning.stage_costs.measure_stages import measure_stages

    model = tuning_options.load_model(
        source, shapes=options.shape, values=options.value, batch=options.batch, training=True
    )
    names = [layer.name for layer in layers_of(model)]
    with tuning_options.open_session(options) as session:
        found = measure_stages(model, session, cuts=tuple(names[:-1]))
        device = session.measurer.environment(session.backends[0].name).device_model
    profile = profile_of_stages(
        found.stages, found.tied, name=source, device=device, micro_batch=options.batch
    )
    for note in profile.notes:
        console.print_note(note)
    return profile


def _predict(source: str, options: PlanCommandOptions) -> Profile:
    """Return the profile of a model on a GPU that is not here, each layer a stage of its own."""
    from cost_model.gpu.devices import find_gpu
    from tessel.profiles.tuned_plan import profile_of_stages
    from tuner.stages import cut_between, layers_of
    from tuner.tuning.stage_costs.predict_stages import predict_stages

    device = find_gpu(options.target)
    kernel_model = gpu_model(options)
    model = tuning_options.load_model(
        source, shapes=options.shape, values=options.value, batch=options.batch, training=True
    )
    layers = layers_of(model)
    with console.progress_bar(f"predicting {len(layers)} layers on {device.name}"):
        found = predict_stages(model, cut_between(layers, range(1, len(layers))), kernel_model, device)
    note_prediction(device, kernel_model)
    if found.doublings_out_of_range > 0:
        console.print_note(
            f"the largest kernel is {found.doublings_out_of_range:.1f} doublings beyond those measured: its "
            "interval is wider"
        )
    return profile_of_stages(
        found.stages, found.tied, name=source, device=device.name, micro_batch=options.batch
    )

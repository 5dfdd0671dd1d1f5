"""The formats by name, as `python -m benchmarks.fuzz` knows them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fuzz.campaign import Format
from benchmarks.fuzz.formats.cost_models import kernel_model_format, language_model_format, stage_model_format
from benchmarks.fuzz.formats.models import onnx_format, pt2_format
from benchmarks.fuzz.formats.orders import megatron_layout_format, orders_format
from benchmarks.fuzz.formats.profiles import profile_of_others_format, profile_table_format
from benchmarks.fuzz.formats.records import records_format, tvm_database_format
from benchmarks.fuzz.formats.saved_plans import saved_plan_format
from benchmarks.fuzz.formats.schedules import (
    placement_format,
    plan_format,
    schedule_format,
    tessel_file_format,
)


def all_formats() -> dict[str, Callable[[], Format]]:
    """Return what makes each format, by name; making one imports what it needs."""
    return {
        "records": records_format,
        "tvm-database": tvm_database_format,
        "placement": placement_format,
        "schedule": schedule_format,
        "tessel-file": tessel_file_format,
        "plan": plan_format,
        "orders": orders_format,
        "megatron-layout": megatron_layout_format,
        "profile-table": profile_table_format,
        "profile-of-others": profile_of_others_format,
        "saved-plan": saved_plan_format,
        "kernel-model": kernel_model_format,
        "stage-model": stage_model_format,
        "language-model": language_model_format,
        "pt2": pt2_format,
        "onnx": onnx_format,
    }

"""JSON Schemas of every document that commands print and files hold, made from the types.

A type is named by its module, so that listing the documents imports none of them: the language model's needs
torch. Where a command prints documents of several types, one of them holds (`anyOf`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

DIALECT = "https://json-schema.org/draft/2020-12/schema"

FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "placement": ("tessel.placement:Placement",),
        "schedule": ("tessel.schedule.schedule:Schedule",),
        "plan": ("tessel.tuned_plan:TunedPlan",),
        "profile-table": ("tessel.profiles.table:TableDocument",),
        "saved-plan": ("tessel.planning.saved_plan:SavedPlan",),
        "record": ("records.files.exchange:_Line",),
        "cost-model": ("cost_model.kernel_model:Manifest",),
        "gpu-kernel-model": ("cost_model.gpu.kernel_model:GpuManifest",),
        "typed-kernel-model": ("cost_model.gpu.typed.model:TypedManifest",),
        "stage-model": ("cost_model.stage_model:StageManifest",),
        "language-model": ("cost_model.language.model_files:Manifest",),
    }
)
"""The types of the documents that files hold: a record is one line of an export, a model its manifest."""

_OWN = "scripts.documents"
PRINTED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tune": (f"{_OWN}.tuning:Tuned",),
        "partition": (f"{_OWN}.tuning:Partitioned",),
        "compile": (f"{_OWN}.tuning:CompiledProgram",),
        "stages": (f"{_OWN}.tuning:Staged",),
        "schedule": (
            f"{_OWN}.searches:PrintedSchedule",
            f"{_OWN}.searches:PrintedAssignment",
            f"{_OWN}.searches:PrintedRepetend",
            f"{_OWN}.searches:PeriodFrontier",
            f"{_OWN}.searches:MakespanFrontier",
        ),
        "chunk": (f"{_OWN}.chunks:Chunked",),
        "plan": (f"{_OWN}.plans:Planned",),
        "check": (f"{_OWN}.checks:Checked", f"{_OWN}.traces:TraceChecked"),
        "export": (f"{_OWN}.schedules:Exported",),
        "compare": (f"{_OWN}.schedules:Compared",),
        "draw": (f"{_OWN}.schedules:Drawn",),
        "run": (f"{_OWN}.runs:RunDone", f"{_OWN}.runs:OrdersWritten"),
        "fleet status": ("tuner.fleet.status:FleetStatus",),
        "records list": (f"{_OWN}.stored:RecordsListed",),
        "records show": (f"{_OWN}.stored:PrintedRecord",),
        "records stats": ("records.database.counts:Stats",),
        "records verify": (f"{_OWN}.stored:Verified",),
        "records page": (f"{_OWN}.stored:RecordsPage",),
        "records best": (f"{_OWN}.stored:BestFound",),
        "records export": ("records.files.exchange:ExportSummary",),
        "records import": (f"{_OWN}.stored:Imported",),
        "records merge": (f"{_OWN}.stored:Merged",),
        "records prune": ("records.database.pruning:PruneSummary",),
        "records collect": (f"{_OWN}.tuning:CollectionDone",),
        "cost-model train": (
            f"{_OWN}.cost_models:Trained",
            f"{_OWN}.cost_models:GpuTrained",
            f"{_OWN}.cost_models:TypedTrained",
        ),
        "cost-model evaluate": (f"{_OWN}.cost_models:Evaluated",),
        "cost-model predict": (
            f"{_OWN}.cost_models:Predicted",
            f"{_OWN}.cost_models:StagesPredicted",
            f"{_OWN}.cost_models:GpuPredicted",
        ),
        "language collect": (f"{_OWN}.language_models:SchedulesCollected",),
        "language train": (f"{_OWN}.language_models:Trained",),
        "language generate": (f"{_OWN}.language_models:SchedulesWritten",),
        "language evaluate": (f"{_OWN}.language_models:Evaluated",),
        "targets": (f"{_OWN}.machines:TargetsListed", f"{_OWN}.machines:ModelCompiled"),
        "backends": (f"{_OWN}.machines:BackendsListed",),
        "doctor": (f"{_OWN}.finding:Examined",),
    }
)
"""The types of what each command prints with `--json`."""


def schema_documents() -> dict[str, bytes]:
    """Return every schema as JSON text, by the name of its file in docs/schemas/."""
    found = {f"{name}.schema.json": (name, types) for name, types in FILES.items()}
    for command, types in PRINTED.items():
        found[f"tessel-{command.replace(' ', '-')}.schema.json"] = (f"tessel {command} --json", types)
    return {name: _schema(title, types) for name, (title, types) in found.items()}


def _schema(title: str, names: tuple[str, ...]) -> bytes:
    references, definitions = msgspec.json.schema_components(map(_type_of, names))
    document = {"$schema": DIALECT, "title": title, "anyOf": list(references), "$defs": definitions}
    if len(references) == 1:
        document |= references[0]
        del document["anyOf"]
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=1) + b"\n"


def _type_of(name: str) -> Any:  # a type: msgspec takes Structs and dataclasses
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)

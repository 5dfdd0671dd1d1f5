"""What tuning a model would hand over, with latencies of one's choice."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.plan import Figure, ModelPlan, StagePlan, TensorInfo


def figure(latency_us: float) -> Figure:
    return Figure(latency_us=latency_us, source="given")


def tuned_model(latencies: Sequence[tuple[float, float, float, float]]) -> ModelPlan:
    """Return stages with the given forward, joint backward, input half and weight half, in microseconds."""
    boundary = TensorInfo(name="x", shape=(4, 8), dtype="float32", num_bytes=128)
    stages = tuple(
        StagePlan(
            name=f"stage{number}",
            layers=(f"h.{number}",),
            inputs=(boundary,),
            outputs=(boundary,),
            relayed=(),
            parameters=(f"h.{number}.weight",),
            forward=figure(forward),
            backward=figure(joint),
            backward_input=figure(first) if number else None,
            backward_weight=figure(second) if number else None,
            weight_bytes=4000,
            saved_bytes=600,
            saved_for_weight_bytes=500,
            boundary_bytes=128,
        )
        for number, (forward, joint, first, second) in enumerate(latencies)
    )
    return ModelPlan(
        model="made-up",
        model_fingerprint="0" * 32,
        training=True,
        target="{}",
        device_model="none",
        num_threads=1,
        partition=(),
        end_to_end={"mix": figure(sum(row[0] for row in latencies))},
        sum_of_parts=figure(sum(row[0] for row in latencies)),
        launch_penalty_us=0.0,
        max_relative_error=0.0,
        max_gradient_error=0.0,
        stages=stages,
        tied=(),
        hop_latency_us=(5.0,) * (len(stages) - 1),
        hop_source="given",
        new_measurements=0,
        reused_measurements=0,
    )

"""A model tuned for one way to cut it."""

from __future__ import annotations

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.plan import ModelPlan
from tuner.tuning.session import Session
from tuner.tuning.tune import TuningSettings, tune_placements


def tune_model(model: Model, session: Session, settings: TuningSettings) -> ModelPlan:
    """Return the plan.

    Raises:
        TunerError: the model cannot be cut, lowered or measured, or gives wrong numbers; says which part.
    """
    plan = tune_placements(model, session, {"": settings})[""]
    if isinstance(plan, TunerError):
        raise plan
    return plan

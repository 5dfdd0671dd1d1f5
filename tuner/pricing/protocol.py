"""Protocol of pricing candidates, and the models that prices are predicted with.

`measured` measures every distinct candidate once. `model` measures nothing: what the records lack is
predicted with an interval; `rules` estimates it by rules of thumb, without records to learn from
(tuner/pricing/rules.py). `active` measures only what the decision needs (tuner/pricing/active.py). The cost
models are trained from the records when first needed, and again when those have grown. Checked in
tests/tuner/pricing/test_active.py and tests/tuner/tuning/stage_costs/test_stage_pricing.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from cost_model.dataset import load_dataset
from cost_model.errors import CostModelError
from cost_model.kernel_model import KernelModel
from cost_model.kernel_training import train_kernel_model
from cost_model.roofline import DeviceSpeed
from cost_model.stage_model import MIN_STAGES, StageModel, load_stages, train_stage_model
from tuner.measuring.measurer import Measurer
from tuner.partition.price import Price
from tuner.plan import Figure
from tuner.targets.device_probe import known_speed

logger = logging.getLogger(__name__)

PriceMode = Literal["measured", "active", "model", "rules"]

_RETRAIN_GROWTH = 1.2
"""The model is trained again when there are this many times the records it was trained on."""


@dataclass(slots=True, kw_only=True)
class Pricing:
    """How a session prices candidates, and the model it has so far.

    Attributes:
        mode: see the module docstring.
        budget: most candidates that `active` measures in the session; None for no limit.
        regret: share of the cost that `active` may leave on the table.
        prune: whether candidates that larger ones contain are dropped before anything is priced.
        model: the cost model; trained from the records when first needed.
        stage_model: the correction from parts to stages; trained likewise.
        num_threads: threads of training; one for each idle core if None.
    """

    mode: PriceMode = "measured"
    budget: int | None = None
    regret: float = 0.02
    prune: bool = False
    model: KernelModel | None = None
    stage_model: StageModel | None = None
    num_threads: int | None = None
    num_measured: int = 0
    _speed: DeviceSpeed | None = field(default=None, repr=False)
    _trained_on: int = field(default=0, repr=False)
    _stages_trained_on: int = field(default=0, repr=False)

    def current_model(self, measurer: Measurer, seed: int) -> KernelModel | None:
        """Return the model, trained again where enough records came; None while there are too few."""
        stats = measurer.store.stats().measurements
        if self.model is None or (self._trained_on and stats > _RETRAIN_GROWTH * self._trained_on):
            try:
                dataset = load_dataset(measurer.store.iterate())
                self.model = train_kernel_model(dataset, seed=seed, num_threads=self.num_threads)
                self._trained_on = stats
                self._speed = None  # The model learnt from what the records say of it now.
            except CostModelError as error:
                logger.info("no cost model yet: %s", error)
        return self.model

    def device_speed(self, measurer: Measurer) -> DeviceSpeed:
        """Return the target's speed, as probes and kernels in the records say; the same until new training.

        Raises:
            CostModelError: a probe is missing.
        """
        if self._speed is None:
            environment = measurer.environment(measurer.backends[0].name)
            self._speed = known_speed(measurer.store, target=measurer.target, environment=environment)
        return self._speed

    def current_stage_model(self, measurer: Measurer, seed: int) -> StageModel | None:
        """Return the stage model, trained again where enough stages came; None while there are too few."""
        if self.stage_model is not None and not self._stages_trained_on:
            return self.stage_model  # It was given.
        stages = sum(1 for _ in measurer.store.iterate(role="stage", target=measurer.target.text))
        if stages >= MIN_STAGES and stages > _RETRAIN_GROWTH * self._stages_trained_on:
            self._stages_trained_on = stages
            try:
                stages_now = load_stages(measurer.store.iterate())
                threads = self.num_threads or 1  # The trees are few and small.
                self.stage_model = train_stage_model(stages_now, seed=seed, num_threads=threads)
            except CostModelError as error:
                logger.info("no stage model yet: %s", error)
        return self.stage_model


def is_predicted(price: Price) -> TypeGuard[Figure]:
    """Say whether a price is a prediction."""
    return isinstance(price, Figure) and price.source == "predicted"


def is_spent(pricing: Pricing) -> bool:
    """Say whether the budget of measurements is used up."""
    return pricing.budget is not None and pricing.num_measured >= pricing.budget

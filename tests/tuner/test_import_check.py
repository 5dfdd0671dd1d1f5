"""The comparison of an import with the user's own module: every fault is caught and named, no model alarms."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax

torch = pytest.importorskip("torch")

from imported_models import MODELS, NOT_TRAINED  # noqa: E402 - after the skip

from records import Environment, Status, open_store  # noqa: E402
from tuner.errors import TunerError, UnsupportedOperatorError  # noqa: E402
from tuner.frontend import load_model  # noqa: E402
from tuner.frontend import torch_importer  # noqa: E402
from tuner.frontend.loss import with_logits  # noqa: E402
from tuner.frontend.torch_program import import_module  # noqa: E402
from tuner.import_check import check_import  # noqa: E402
from tuner.stages import build_stages, check_gradients, cut_between, layers_of  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Machine:
    """Compiles once and runs in this process; what a run gives can be spoilt."""

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[object, object]] = {}
        self.spoil = lambda module, results: results

    def __call__(self, module, arrays):
        if id(module) not in self._compiled:
            target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
            self._compiled[id(module)] = module, relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
        result = self._compiled[id(module)][1]["main"](*[tvm.runtime.tensor(np.array(a)) for a in arrays])
        results = [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]
        return self.spoil(module, results)


@pytest.fixture
def session(tmp_path):
    """What the check needs of a session: records, and somebody who runs modules."""
    here = Environment(
        device_kind="cpu", device_model="d", num_cores=1, num_threads=1, driver="", versions=()
    )
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        machine = Machine()

        def find(workload, backend, *, settings=""):
            return store.find_latest(
                workload.fingerprint, backend=backend, settings=settings, target="cpu", environment=here
            )

        measurer = SimpleNamespace(
            run=machine, find=find, environment=lambda backend: here, new_measurements=0
        )
        yield SimpleNamespace(
            store=store,
            measurer=measurer,
            machine=machine,
            target=SimpleNamespace(text="cpu"),
            seed=0,
            on_progress=lambda progress: None,
        )


def built(name: str, *, training: bool = False):
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    model = import_module(module, inputs, name)
    if training:
        from tuner.frontend.loading import for_training  # noqa: PLC0415 - what `load_model` does

        model = for_training(model)
    return module, model


QUICK = ("last_token", "tied_weights", "gathered", "logarithms", "several_outputs")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_no_model_gives_a_false_alarm(name: str, session) -> None:
    error = check_import(built(name)[1], session)
    assert error is not None
    assert error < (1e-2 if name == "half" else 1e-5)

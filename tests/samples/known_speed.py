"""Records that already know how fast this machine is, so that a session does not measure it."""

from __future__ import annotations

import msgspec
from kernel_physics import probes

from records import open_store
from tuner.backends.environment import environment_of
from tuner.targets.device_probe import BACKENDS_BY_KIND, SETTINGS_BY_KIND
from tuner.targets.resolution import resolve_target


def keep_made_up_speed(url: str, target_name: str = "cpu") -> None:
    """Keep the three probes of one CPU thread, or of a GPU, of a made-up speed."""
    target = resolve_target(target_name, num_threads=1)
    with open_store(url) as store:
        store.append_many(
            (
                record.workload,
                msgspec.structs.replace(
                    record.measurement,
                    backend=BACKENDS_BY_KIND[target.kind][0],
                    settings=SETTINGS_BY_KIND[target.kind],
                    environment=environment_of(target),
                    target=target.text,
                ),
            )
            for record in probes()
        )

"""The devices that a plan is made for: how many, how large, how fast, and how they are linked."""

from __future__ import annotations

import msgspec

from tessel.errors import ScheduleError
from tuner.plan import Link

__all__ = ["OPTIMIZERS", "Cluster", "Link", "Optimizer"]


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices and links.

    Attributes:
        devices: how many.
        memory_bytes: of one device; None for no limit.
        hop: link between neighbouring stages.
        collective: link over which gradients are synchronised, as one device sees it in a ring.
        device_memory_bytes: where devices differ: one limit a device, in place of `memory_bytes`.
        device_speed: where devices differ: how fast each is, relative to the device of the profile.
        devices_per_node: devices joined by `intra_node`; 0 where all links are alike.
        intra_node: link between devices of one node, for hops and collectives that stay within it.
    """

    devices: int
    hop: Link
    collective: Link
    memory_bytes: int | None = None
    device_memory_bytes: tuple[int, ...] = ()
    device_speed: tuple[float, ...] = ()
    devices_per_node: int = 0
    intra_node: Link | None = None

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ScheduleError(f"{self.devices} devices cannot run anything; give at least 1")
        for name, values in (("memory", self.device_memory_bytes), ("speed", self.device_speed)):
            if values and len(values) != self.devices:
                raise ScheduleError(
                    f"{len(values)} values of {name} are given for {self.devices} devices; give one each"
                )
        if any(not 0 < speed < float("inf") for speed in self.device_speed):
            raise ScheduleError("a device's speed is a number above 0, relative to the profile's device")

    @property
    def is_uneven(self) -> bool:
        """Whether devices differ in speed or memory."""
        return len({(self.speed_of(device), self.memory_of(device)) for device in range(self.devices)}) > 1

    @property
    def is_limited(self) -> bool:
        """Whether devices have a memory limit."""
        return self.memory_bytes is not None or bool(self.device_memory_bytes)

    def memory_of(self, device: int) -> int | None:
        """Return the memory limit of a device, or None where there is none."""
        return self.device_memory_bytes[device] if self.device_memory_bytes else self.memory_bytes

    def speed_of(self, device: int) -> float:
        """Return how fast a device is, relative to the device that was profiled."""
        return self.device_speed[device] if self.device_speed else 1.0


class Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What training holds beside the weights, in bytes for each byte of weights that is trained.

    Attributes:
        name: as named on the command line.
        gradient_ratio: bytes of gradients.
        state_ratio: bytes of optimizer state, master weights included.
        updates: whether weights are updated; gradients are held even where they are not.
    """

    name: str
    gradient_ratio: float
    state_ratio: float
    updates: bool = True


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer(name="none", gradient_ratio=1.0, state_ratio=0.0, updates=False),
        Optimizer(name="sgd", gradient_ratio=1.0, state_ratio=0.0),
        Optimizer(name="momentum", gradient_ratio=1.0, state_ratio=1.0),
        Optimizer(name="adam", gradient_ratio=1.0, state_ratio=2.0),
        Optimizer(name="adam-mixed", gradient_ratio=2.0, state_ratio=6.0),
    )
}
"""By name. `none` leaves the weights as they are: gradients alone are held and summed. `adam-mixed` is Adam
on 16-bit weights: gradients, master weights and two moments in 32 bits, 18 bytes a parameter (Rajbhandari et
al., ZeRO, SC 2020, section 3.1, there 16 with 16-bit gradients)."""

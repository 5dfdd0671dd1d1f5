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
        host: link between a device and its host's memory, one way; None where nothing may lie there.
    """

    devices: int
    hop: Link
    collective: Link
    memory_bytes: int | None = None
    device_memory_bytes: tuple[int, ...] = ()
    device_speed: tuple[float, ...] = ()
    devices_per_node: int = 0
    intra_node: Link | None = None
    host: Link | None = None

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
        weight_ratio: bytes of the weights themselves, trained or not, where they are kept in another type
            than the one that the table counts.
        source: of the recipe, and how it is spread over types; empty where the type does not matter.
    """

    name: str
    gradient_ratio: float
    state_ratio: float
    updates: bool = True
    weight_ratio: float = 1.0
    source: str = ""

    @property
    def exchanged_ratio(self) -> float:
        """Bytes of updated weights that replicas gather: as they are kept, of 16 bits at most."""
        return min(1.0, self.weight_ratio)


TABLE_BYTES = 2
"""Bytes of a parameter in a table of mixed precision: its weights, activations and gradients have 16 bits."""


def _recipe(
    name: str, source: str, *, weights: float = 2, gradients: float = 4, master: float = 4, moments: float = 8
) -> Optimizer:
    """Return a recipe of mixed precision, given its bytes a parameter.

    Args:
        name: as named on the command line.
        source: who publishes it.
        weights: bytes of the weights that are kept; 16-bit copies of 32-bit weights exist layer by layer.
        gradients: bytes that they are summed in, from the first micro-batch to the update.
        master: bytes of further copies for the update.
        moments: bytes of the moments of Adam.
    """
    return Optimizer(
        name=name,
        gradient_ratio=gradients / TABLE_BYTES,
        state_ratio=(master + moments) / TABLE_BYTES,
        weight_ratio=weights / TABLE_BYTES,
        source=f"{weights:g} + {gradients:g} + {master:g} + {moments:g} bytes a parameter; {source}",
    )


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer(name="none", gradient_ratio=1.0, state_ratio=0.0, updates=False),
        Optimizer(name="sgd", gradient_ratio=1.0, state_ratio=0.0),
        Optimizer(name="momentum", gradient_ratio=1.0, state_ratio=1.0),
        Optimizer(name="adam", gradient_ratio=1.0, state_ratio=2.0),
        _recipe("adam-mixed", "Megatron Core and SimuMax in bfloat16, gradients in float32"),
        _recipe("adam-fp16", "Megatron Core in float16, which copies gradients too", gradients=2, master=8),
        _recipe("adam-bf16-gradients", "ZeRO, section 3.1; SimuMax grad_reduce_in_bf16", gradients=2),
        _recipe("adam-bf16-moments", "DeepSeek-V3 Technical Report, section 3.3", moments=4),
        _recipe("adam-fp8-weights", "Megatron Core fp8-param-gather, one copy of each weight", weights=1),
        _recipe("adam-8bit", "8-bit Optimizers; no master weights", gradients=2, master=0, moments=2),
        _recipe("adam-fsdp", "torchtitan, FSDP2: float32 shards, bfloat16 copies", weights=4, master=0),
    )
}
"""By name. `none` leaves the weights as they are: gradients alone are held and summed. Recipes of mixed
precision are of tables whose weights have 16 bits.

Sources: Rajbhandari et al., ZeRO (SC 2020), section 3.1; Megatron Core User Guide, Distributed Optimizer;
SimuMax, `use_fp32_accum_grad`; DeepSeek-AI, DeepSeek-V3 Technical Report (2024); Dettmers et al., 8-bit
Optimizers via Block-wise Quantization (ICLR 2022), whose constants of blocks are left out; PyTorch,
MixedPrecisionPolicy of `fully_shard`. Of FP8 weights Hopper keeps a transposed copy too, and has the bytes of
`adam-mixed`."""

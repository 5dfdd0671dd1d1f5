"""Converters of ATen's operators into Relax, a family a module; each gives what torch gives, or refuses.

They need nothing of TVM's own importer. What torch itself can take apart is left to its decompositions.
"""

from collections.abc import Mapping

from tuner.frontend.converters.bfloat16 import in_float32
from tuner.frontend.converters.call import Call, Converter
from tuner.frontend.converters.complex_numbers import COMPLEX, is_complex
from tuner.frontend.converters.creation import CREATION
from tuner.frontend.converters.elementwise import ELEMENTWISE
from tuner.frontend.converters.indexing import INDEXING
from tuner.frontend.converters.layers.activations import ACTIVATIONS
from tuner.frontend.converters.layers.attention import ATTENTION
from tuner.frontend.converters.layers.convolutions import CONVOLUTIONS
from tuner.frontend.converters.layers.losses import LOSSES
from tuner.frontend.converters.layers.normalization import NORMALIZATION
from tuner.frontend.converters.layers.pooling import POOLING
from tuner.frontend.converters.logic import LOGIC
from tuner.frontend.converters.movement import MOVEMENT
from tuner.frontend.converters.ordering import ORDERING
from tuner.frontend.converters.products import PRODUCTS
from tuner.frontend.converters.reductions import REDUCTIONS

CONVERTERS: Mapping[str, Converter] = {
    **in_float32(
        {
            **ACTIVATIONS,
            **ATTENTION,
            **CONVOLUTIONS,
            **ELEMENTWISE,
            **INDEXING,
            **LOGIC,
            **LOSSES,
            **NORMALIZATION,
            **ORDERING,
            **POOLING,
            **PRODUCTS,
            **REDUCTIONS,
        }
    ),
    **CREATION,
    **MOVEMENT,
}
"""Converter by name of operator and overload, such as `add.Tensor`."""

__all__ = ["COMPLEX", "CONVERTERS", "Call", "Converter", "is_complex"]

"""Tables of layer timings: the profile that a plan is computed from, and the formats that it is read from."""

from tessel.profiles.load import FORMATS, load_profile
from tessel.profiles.profile import CostTable, Layer, LayerCost, Profile
from tessel.profiles.table import save_table

__all__ = ["FORMATS", "CostTable", "Layer", "LayerCost", "Profile", "load_profile", "save_table"]

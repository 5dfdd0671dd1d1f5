"""Find a repetend of least period: bounds, branch and bound, and dynamic programs for chains."""

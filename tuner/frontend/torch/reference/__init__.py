"""The user's own torch program, run by torch: the reference for the imported model.

Outputs, losses and gradients come from the module itself, by torch's operators and autograd alone. Inputs are
drawn like its examples; where the module refuses them, or they give it no numbers, the examples are taken.
Where an import is wrong, the exported graph is run node by node beside the imported one, and the first
operator that differs in value is named; types and shapes were compared in the import. Checked in
tests/tuner/frontend/torch/test_reference.py.
"""

from tuner.frontend.torch.reference.torch_reference import TorchReference

__all__ = ["TorchReference"]

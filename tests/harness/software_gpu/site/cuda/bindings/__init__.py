"""`cuda.bindings` with NVRTC replaced: all else is found in the installed package."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)

"""Import a user's function by its name: `module:function` or `folder/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tessel.engine.errors import EngineError


def find_function(name: str) -> Any:
    """Return what `module:function` or `folder/file.py:function` names.

    Raises:
        EngineError: there is no such module or function.
    """
    location, _, function_name = name.rpartition(":")
    try:
        return getattr(import_location(location), function_name)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise EngineError(
            f"{name!r} cannot be imported ({error}); give module:function, with the module on the Python "
            "path, or file.py:function"
        ) from error


def import_location(location: str) -> ModuleType:
    """Return the module that an importable name, or the path of a Python file, names.

    A file's own folder is searched for what it imports, as `python FILE` does.

    Raises:
        ImportError: there is no such module.
        OSError: the file cannot be read.
    """
    if not location.endswith(".py"):
        return importlib.import_module(location)
    path = Path(location).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{location} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # Data classes look their own module up.
    sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module

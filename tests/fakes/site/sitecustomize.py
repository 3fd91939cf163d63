"""Put on PYTHONPATH by tests: a daemon started in a process of its own gets the fake engine."""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]


class _Fake(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torpor.sandboxes.engine":
            if str(ROOT) not in sys.path:
                sys.path.insert(0, str(ROOT))
            return importlib.util.spec_from_file_location(name, ROOT / "tests/fakes/engine.py")
        return None


sys.meta_path.insert(0, _Fake())

"""The public names: sorted, complete, lazy and quick to import."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import torpor

ROOT = Path(__file__).parents[2]


def test_all_is_sorted_and_complete() -> None:
    assert torpor.__all__ == sorted(torpor.__all__)
    assert set(torpor.__all__) == {*torpor._HOMES, "__version__", "errors"}
    for name in torpor.__all__:
        assert getattr(torpor, name) is not None
    assert set(torpor.__all__) <= set(dir(torpor))


def test_a_name_that_is_not_there() -> None:
    assert not hasattr(torpor, "Sandbocks")


def test_the_version_is_the_package_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert torpor.__version__ == project["version"]


def run(code: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(done.stdout)


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; before = set(sys.modules); import torpor; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = run(code)
    assert isinstance(loaded, list)
    ours = [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert ours == ["torpor"]
    assert not {"httpx", "asyncio", "pydantic", "typer", "rich", "numpy", "fastapi"} & set(loaded)


def test_the_sdk_loads_no_server() -> None:
    code = "import json, sys; from torpor import Sandbox; print(json.dumps(sorted(sys.modules)))"
    loaded = run(code)
    assert isinstance(loaded, list)
    assert not {"fastapi", "pydantic", "uvicorn", "numpy", "sqlalchemy"} & set(loaded)

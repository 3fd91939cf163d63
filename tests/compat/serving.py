"""A daemon with real machines, on TCP as a user starts it, and a token and a client for it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pandastack
import pytest
from pandastack.sandbox import set_default_client

from torpor.base.home import Home

TORPOR = [sys.executable, "-m", "torpor.cli"]


@pytest.fixture(scope="module")
def url(base: str, vm_home: Home) -> Iterator[str]:
    """`torpor serve --host 127.0.0.1 --port 0`, as a user starts it."""
    server = subprocess.Popen(
        [*TORPOR, "serve", "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, "TORPOR_HOME": str(vm_home.root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    said: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=_read, args=(server, said), daemon=True)
    reader.start()
    found = re.search(r"http://\S+:\d+", said.get(timeout=60))
    assert found is not None
    yield found.group()
    server.send_signal(signal.SIGINT)
    server.wait(30)
    reader.join(10)
    assert server.stderr is not None
    server.stderr.close()


def _read(server: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    assert server.stderr is not None
    for line in server.stderr:
        if "http://" in line:
            said.put(line)


@pytest.fixture(scope="module")
def token(vm_home: Home, base: str) -> Iterator[str]:
    """A token as `torpor token create` prints it."""
    name = f"panda-{os.getpid()}"
    env = {**os.environ, "TORPOR_HOME": str(vm_home.root)}
    argv = [*TORPOR, "token", "create", name, "--scope", "admin", "--json"]
    made = subprocess.run(argv, env=env, capture_output=True, check=True, timeout=60)
    yield json.loads(made.stdout)["token"]
    subprocess.run([*TORPOR, "token", "rm", name], env=env, check=True, timeout=60)


@pytest.fixture(scope="module")
def panda(url: str, token: str) -> Iterator[pandastack.Client]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PANDASTACK_API", url)
    patch.setenv("PANDASTACK_API_KEY", token)
    client = pandastack.Client()
    yield client
    client.session.close()
    patch.undo()


@pytest.fixture(autouse=True)
def by_environment(
    panda: pandastack.Client, url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let code that makes its own client find the daemon."""
    monkeypatch.setenv("PANDASTACK_API", url)
    monkeypatch.setenv("PANDASTACK_API_KEY", token)
    set_default_client(panda)

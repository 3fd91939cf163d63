"""What is secret is in the machine, and nowhere that the daemon writes or shows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.unit.sandboxes.world import Play, World, play
from torpor import Sandbox
from torpor.access import open_access
from torpor.base.home import Home
from torpor.errors import InvalidRequest
from torpor.model import SandboxSpec
from torpor.sdk.client import Client
from torpor.server.app import create_app
from torpor.server.gate import Gate, UnixDoor
from torpor.server.wire import CreateRequest
from torpor.server.wire_snapshots import ForkRequest

__all__ = ["play"]

FAKES = Path(__file__).parents[2] / "fakes/site"
PLANTED = "hunter2-"
"""Every secret below begins with it."""


def written(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()


def command_lines() -> Iterator[bytes]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid():
                yield (entry / "cmdline").read_bytes()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=os.pathsep)
    found = Home(tmp_path / "home")
    yield found
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"torpor.server" in words and os.fsencode(found.root) in words:
                os.kill(int(entry.name), signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(int(entry.name), 0)


def test_a_daemon_writes_down_no_secret(home: Home) -> None:
    client = Client(home=home.root)
    sandbox = Sandbox.create(
        client=client,
        env={"A": f"{PLANTED}env"},
        secrets={"B": f"{PLANTED}secret"},
    )
    assert sandbox.info.env_names == ("A", "B")
    assert sandbox.exec("env").stdout.count(PLANTED) == 2
    sandbox.exec("cat", stdin=f"{PLANTED}stdin", env={"C": f"{PLANTED}exec"})
    sandbox.filesystem.write("/x", f"{PLANTED}file")
    taken = sandbox.snapshot()
    fork = sandbox.fork(env={"D": f"{PLANTED}fork"}, secrets={"E": f"{PLANTED}forked"})
    assert fork.exec("env").stdout.count(f"{PLANTED}fork") == 2
    tried = sandbox.explore(["env", "false"], secrets={"G": f"{PLANTED}explored"})
    assert tried.winner is not None
    assert f"G={PLANTED}explored" in tried.winner.exec("env").stdout
    assert set(tried.winner.info.env_names) == {"A", "B", "G"}
    back = taken.restore(secrets={"F": f"{PLANTED}restored"})
    assert f"F={PLANTED}restored" in back.exec("env").stdout
    with pytest.raises(InvalidRequest, match="D is in env and in secrets"):
        Sandbox.restore(taken.id, env={"D": "1"}, secrets={"D": f"{PLANTED}twice"}, client=client)
    sandbox.hibernate()
    with contextlib.suppress(Exception):
        sandbox.exec("true", user=f"{PLANTED}user")
    transport = httpx.HTTPTransport(uds=str(home.socket))
    with httpx.Client(transport=transport, base_url="http://torpor") as http:
        headers = {"authorization": f"Bearer {PLANTED}token", "idempotency-key": "k"}
        body = {"template": "base", "env": {"A": f"{PLANTED}wrong", "=": ["x"]}}
        shown = [
            http.post("/v1/sandboxes", json=body, headers=headers),
            http.post("/v1/sandboxes", content=f'{{"env": {{"A": "{PLANTED}cut'.encode()),
            http.get("/v1/health", params={"access_token": f"{PLANTED}query"}, headers=headers),
            http.get("/metrics"),
            http.get("/v1/tree"),
            http.get(f"/v1/sandboxes/{sandbox.id}"),
            http.get(f"/v1/snapshots/{taken.id}"),
        ]
    for reply in shown:
        assert PLANTED not in reply.text, reply.text
    assert PLANTED not in repr((sandbox.info, taken.info, fork.info, back.info))
    assert not [line for line in command_lines() if PLANTED.encode() in line]
    found = dict(written(home.root))
    assert home.database in found
    assert home.access_log in found
    assert home.daemon_log in found
    assert not [path for path, data in found.items() if PLANTED.encode() in data]


def test_the_command_line_takes_secrets_from_the_environment(home: Home) -> None:
    def torpor(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "torpor.cli", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"TORPOR_HOME": str(home.root)} | env,
        )

    made = torpor("create", "--secret", "KEY", "--json", KEY=f"{PLANTED}cli")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["env_names"] == ["KEY"]
    assert PLANTED not in made.stdout + made.stderr
    one = json.loads(made.stdout)["id"]
    forked = torpor("fork", one, "--secret", "MORE", "--json", MORE=f"{PLANTED}cli")
    assert forked.returncode == 0, forked.stderr
    assert "MORE" in json.loads(forked.stdout)[0]["env_names"]
    assert torpor("snapshot", "create", one, "--label", "here").returncode == 0
    back = torpor("restore", f"{one}@here", "--secret", "MORE", "--json", MORE=f"{PLANTED}cli")
    assert back.returncode == 0, back.stderr
    assert "MORE" in json.loads(back.stdout)["env_names"]
    assert PLANTED not in forked.stdout + forked.stderr + back.stdout + back.stderr
    for words in (("create",), ("fork", one), ("restore", f"{one}@here")):
        missing = torpor(*words, "--secret", "NO_SUCH")
        assert missing.returncode == InvalidRequest.exit_code
        assert "no such variable" in missing.stderr


def test_the_engine_writes_down_no_secret(play: Play) -> None:
    async def scene(world: World) -> None:
        access = open_access(world.home)
        app = Gate(create_app(world.engine, access), UnixDoor())
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://torpor"
        ) as http:
            body = {"template": "base", "secrets": {"KEY": f"{PLANTED}secret"}}
            made = await http.post("/v1/sandboxes", json=body, headers={"idempotency-key": "k"})
            assert made.status_code == 201, made.text
            sandbox = made.json()["id"]
            taken = await http.post(f"/v1/sandboxes/{sandbox}/snapshots")
            more = {"secrets": {"MORE": f"{PLANTED}fork"}}
            fork = await http.post(f"/v1/sandboxes/{sandbox}/fork", json=more)
            slept = await http.post(f"/v1/sandboxes/{sandbox}/hibernate")
            for reply in (made, taken, fork, slept):
                assert reply.status_code < 300
                assert PLANTED not in reply.text
            assert taken.json()["env_names"] == ["KEY"]
            assert fork.json()["sandbox"]["env_names"] == ["MORE"]  # the fake guest forgets
        access.close()
        manifests = list(world.home.snapshots.rglob("manifest.json"))
        assert len(manifests) >= 3
        assert not [p for p, data in written(world.home.root) if PLANTED.encode() in data]
        assert not [report for report in world.reports if PLANTED in report]

    play(scene)


def test_what_carries_secrets_does_not_show_them() -> None:
    given = {"KEY": f"{PLANTED}value"}
    for found in (
        CreateRequest(template="base", env=given),
        CreateRequest(template="base", secrets=given),
        ForkRequest(env=given),
        ForkRequest(secrets=given),
        SandboxSpec(template="base", env=given),
        CreateRequest(template="base", secrets=given).spec(),
        ForkRequest(secrets=given).spec(),
    ):
        assert PLANTED not in repr(found)
        assert PLANTED not in str(found)


def test_a_name_is_given_once() -> None:
    with pytest.raises(InvalidRequest, match="KEY is in env and in secrets") as caught:
        CreateRequest(template="base", env={"KEY": "1"}, secrets={"KEY": f"{PLANTED}x"}).spec()
    assert PLANTED not in str(caught.value.facts)

"""PandaStack's own client and `harbor-firecracker` against a daemon on TCP, with tokens and real machines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandastack
import pytest
from pandastack import Sandbox
from pandastack.exceptions import BadRequestError, NotFoundError, SandboxTimeout

from tests.compat.serving import by_environment, panda, token, url

__all__ = ["by_environment", "panda", "token", "url"]


@pytest.fixture(scope="module")
def machine(panda: pandastack.Client, base: str) -> Iterator[Sandbox]:
    """One machine for all tests that leave no mark on each other."""
    made = panda.sandboxes.create(template=base, metadata={"for": "compat"}, ttl_seconds=3600)
    yield made
    made.kill()


def test_commands_and_code(machine: Sandbox) -> None:
    assert machine.status == "running"
    assert machine.boot_mode == "snapshot"
    found = machine.exec("echo out; echo bad >&2; exit 3")
    assert (found.stdout, found.stderr, found.exit_code) == ("out\n", "bad\n", 3)
    assert found.duration_ms > 0
    assert machine.run_code("print(6 * 7)").stdout == "42\n"
    assert machine.run_code("echo $((6 * 7))", language="bash").stdout == "42\n"


def test_a_time_limit_ends_the_whole_tree(machine: Sandbox) -> None:
    with pytest.raises(SandboxTimeout):
        machine.exec("(sleep 4321 & sleep 4321)", timeout_seconds=2)
    assert machine.exec("pgrep -f 'sleep 432[1]' || echo none").stdout == "none\n"


def test_what_is_detached_outlives_its_command(machine: Sandbox) -> None:
    began = time.monotonic()
    machine.exec("setsid sh -c 'sleep 600; echo >/tmp/late' >/dev/null 2>&1 &", check=True)
    assert time.monotonic() - began < 60
    assert machine.exec("pgrep -cf '^sleep 60[0]'").stdout == "1\n"
    machine.exec("pkill -f '^sleep 60[0]'")


def test_streams(machine: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    code = machine.exec_stream(
        "printf 'é⎬\\n'; echo oh >&2; exit 7", on_stdout=out.append, on_stderr=err.append
    )
    assert (code, "".join(out), "".join(err)) == (7, "é⎬\n", "oh\n")


def test_files(machine: Sandbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "up").write_bytes(data)
    files = machine.filesystem
    files.upload(tmp_path / "up", "/workspace/files/up.bin")
    files.download("/workspace/files/up.bin", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == data
    machine.exec("mkdir -p /workspace/files/e; touch '/workspace/files/ü n'", check=True)
    assert [e.name for e in files.listdir("/workspace/files")] == ["e", "up.bin", "ü n"]
    assert files.listdir("/workspace/files/e") == []
    assert files.stat("/workspace/files").is_dir
    assert not files.exists("/workspace/nope")
    assert not files.exists("/etc/passwd/below")
    with pytest.raises(NotFoundError):
        files.read("/workspace/nope")


def test_logs(machine: Sandbox) -> None:
    machine.exec("echo said-on-the-console >/dev/console", check=True)
    assert "said-on-the-console" in "\n".join(machine.logs())
    for line in machine.logs(follow=True):
        if "said-on-the-console" in line:
            break


def test_code_contexts_keep_their_state_through_a_sleep(machine: Sandbox) -> None:
    with machine.create_code_context("bash") as context:
        assert context.run_code("x=kept").exit_code == 0
        machine.hibernate()
        assert context.run_code("echo $x").stdout == "kept\n"
        with pytest.raises(SandboxTimeout):
            context.run_code("sleep 300", timeout_seconds=1)


def test_ports(machine: Sandbox) -> None:
    machine.exec("setsid python3 -m http.server 8000 >/dev/null 2>&1 &", check=True)
    machine.exec(
        "for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))'"
        " 2>/dev/null && break; sleep 0.2; done",
        check=True,
    )
    assert 8000 in machine.preview_urls()
    machine.exec("pkill -f 'http.serve[r]'")


def test_lifecycle(machine: Sandbox) -> None:
    assert machine.set_ttl(7200)["ttl_seconds"] == 7200
    assert machine.set_persistent(True)["persistent"] is True
    assert machine.set_persistent(False)["persistent"] is False
    assert machine.lifecycle()["ttl_seconds"] == 7200
    with pytest.raises(BadRequestError):
        machine.set_ttl(0)
    machine.pause()
    assert machine.refresh().status == "paused"
    machine.resume()
    assert machine.refresh().status == "running"


def test_sleep_and_wake(panda: pandastack.Client, machine: Sandbox) -> None:
    machine.exec("echo here >/dev/shm/note", check=True)
    machine.wake()  # it runs: nothing happens
    machine.hibernate()
    assert machine.id in [s.id for s in panda.sandboxes.list() if s.status == "hibernated"]
    assert machine.exec("cat /dev/shm/note").stdout == "here\n"  # RAM came back with it
    assert machine.refresh().status == "running"


def test_snapshot_restore_and_fork_keep_the_ram(panda: pandastack.Client, machine: Sandbox) -> None:
    machine.exec("echo before >/dev/shm/state", check=True)
    snapshot = machine.snapshot()
    assert panda.snapshots.list(sandbox_id=machine.id)[0]["id"] == snapshot
    machine.exec("echo after >/dev/shm/state", check=True)
    again = panda.sandboxes.create(from_snapshot=snapshot)
    try:
        assert again.exec("cat /dev/shm/state").stdout == "before\n"
    finally:
        again.kill()
    fork = machine.fork(metadata={"k": "v"})
    try:
        assert fork.exec("cat /dev/shm/state").stdout == "after\n"
        assert fork.metadata["fork_parent_id"] == machine.id
        assert fork.cpu == machine.cpu
    finally:
        fork.kill()
    panda.snapshots.delete(snapshot)
    with pytest.raises(NotFoundError):
        fork.exec("true")


def test_explore(panda: pandastack.Client, machine: Sandbox) -> None:
    machine.exec("mkdir -p /app", check=True)
    before = {s.id for s in panda.sandboxes.list()}
    result = machine.explore(
        ["exit 3", "echo PASS; echo new >/app/answer"],
        score_fn=lambda _sandbox, outcome: float("PASS" in outcome.stdout_tail),
        max_concurrency=2,
    )
    try:
        assert result.winner is not None
        assert result.winner_outcome is not None
        assert "/app/answer" in result.winner_outcome.files_changed
        assert result.tree_id == result.winner.metadata["fork_tree_id"]
        assert result.errors == []
        assert result.reap_failures == {}
        assert {s.id for s in panda.sandboxes.list()} - before == {result.winner.id}
        assert result.winner.lifecycle()["ttl_seconds"] is None
    finally:
        assert result.winner is not None
        result.winner.kill()


def test_volumes(panda: pandastack.Client, base: str) -> None:
    name = f"compat-{os.getpid()}"
    panda.volumes.create(name, 1024)
    try:
        made = panda.sandboxes.create(template=base, volumes=[{"name": name}])
        try:
            made.exec(f"echo kept >/mnt/{name}/file && sync", check=True)
            with pytest.raises(BadRequestError):
                panda.volumes.delete(name)
        finally:
            made.kill()
    finally:
        panda.volumes.delete(name)


# ---- harbor-firecracker ----


@pytest.fixture
def harbor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package with the little of Harbor that it stands on: Harbor itself is not needed for its environment."""

    class BaseEnvironment:
        def __init__(self, **kwargs: Any) -> None:
            self.__dict__.update(kwargs)

    class ExecResult(SimpleNamespace):
        pass

    from harbor_firecracker import environment

    class Environment(environment.FirecrackerEnvironment):
        def __init__(self, **kwargs: Any) -> None:
            BaseEnvironment.__init__(self, **kwargs)  # type: ignore[arg-type]
            self._sandbox = None

    monkeypatch.setattr(environment, "ExecResult", ExecResult)
    return Environment


def test_harbor_s_environment(harbor: Any, base: str, tmp_path: Path) -> None:
    import asyncio

    (tmp_path / "task/sub").mkdir(parents=True)
    (tmp_path / "task/a.txt").write_text("a")
    (tmp_path / "task/sub/b.txt").write_text("b")

    async def work() -> None:
        made = harbor(
            environment_dir=tmp_path,
            environment_name="env",
            session_id="s-1",
            task_env_config=SimpleNamespace(template=base, ttl_seconds=3600),
        )
        made._validate_definition()
        made.preflight()
        await made.start(force_build=False)
        try:
            assert made._sandbox.metadata["session_id"] == "s-1"
            await made.attach()
            assert await made.run_healthcheck() is True
            found = await made.exec(
                "sh -c 'echo $A; pwd; whoami'", cwd="/tmp", env={"A": "x y"}, user="root"
            )
            assert (found.return_code, found.stdout) == (0, "x y\n/tmp\nroot\n")
            assert (await made.exec("exit 9")).return_code == 9
            await made.upload_dir(tmp_path / "task", "/workspace/task")
            await made.download_dir("/workspace/task", tmp_path / "back")
            assert (tmp_path / "back/sub/b.txt").read_text() == "b"
            await made.prepare_logs_for_host()
            from harbor_firecracker.errors import ExecTimeoutError

            with pytest.raises(ExecTimeoutError):
                await made.exec("sleep 60", timeout_sec=1)
            await made.stop(delete=False)
            await made.attach()
            assert made._sandbox.status == "hibernated"
        finally:
            await made.stop(delete=True)

    asyncio.run(work())


def test_harbor_s_rollouts(panda: pandastack.Client, machine: Sandbox) -> None:
    from harbor_firecracker.rollouts import RolloutPool

    machine.exec("echo warm >/dev/shm/warm", check=True)
    before = {s.id for s in panda.sandboxes.list()}
    pool = RolloutPool(machine)
    try:
        rollouts = pool.fork(2, metadata={"run": "1"})
        assert [r.index for r in rollouts] == [0, 1]
        assert all(r.fork_ms is not None and r.fork_ms > 0 for r in rollouts)
        assert {r.sandbox.exec("cat /dev/shm/warm").stdout for r in rollouts} == {"warm\n"}
        assert len({r.sandbox.exec("hostname").stdout for r in rollouts}) == 2
    finally:
        pool._base = None  # the machine is the other tests', too
        pool.close()
    assert {s.id for s in panda.sandboxes.list()} == before

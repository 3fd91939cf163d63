"""The five lines of the README, and what a command in a real machine must be."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from torpor import Sandbox
from torpor.errors import (
    CommandFailed,
    InvalidRequest,
    NotFound,
    OperationTimeout,
    TorporError,
)
from torpor.model import ExecEnded, ExecOutput


def test_five_lines(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Sandbox.create(template="base", ttl_seconds=3600) as sbx:
        r = sbx.exec("uname -a && python3 --version", timeout_seconds=30)
        print(r.stdout, r.exit_code, r.duration_ms)
        sbx.filesystem.write("/workspace/notes.md", "resume at step 4\n")
        print(sbx.filesystem.read_text("/workspace/notes.md"))
        assert sbx.info.boot_mode == "restore"
        assert sbx.info.boot_ms is not None
    out = capsys.readouterr().out
    assert "Linux sbx-" in out, "its host name is its own"
    assert "Python 3.13" in out
    assert out.endswith("resume at step 4\n\n")
    with pytest.raises(TorporError):
        sbx.exec("true")


def test_exit_codes_and_signals(shared: Sandbox) -> None:
    assert shared.exec("exit 7").exit_code == 7
    killed = shared.exec("kill -TERM $$")
    assert (killed.exit_code, killed.signal) == (143, 15)
    assert shared.exec(["printf", "%s|", "a b", "$HOME"]).stdout == "a b|$HOME|"
    failed = shared.exec("echo out; echo err >&2; false")
    assert (failed.stdout, failed.stderr, failed.exit_code) == ("out\n", "err\n", 1)
    with pytest.raises(CommandFailed) as caught:
        shared.exec("echo why >&2; exit 3", check=True)
    assert caught.value.facts["exit_code"] == 3


def test_where_and_as_whom(shared: Sandbox) -> None:
    assert shared.exec("id -un; pwd").stdout == "root\n/workspace\n"
    other = shared.exec("id -un; pwd; echo $A $HOME", user="agent", cwd="/tmp", env={"A": "b"})
    assert other.stdout == "agent\n/tmp\nb /home/agent\n"
    assert shared.exec("cat").stdout == "", "stdin is /dev/null unless asked for"
    assert shared.exec("cat", stdin="hello").stdout == "hello"
    for bad in ({"user": "nobody-here"}, {"cwd": "/nonexistent"}):
        with pytest.raises(InvalidRequest):
            shared.exec("true", **bad)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest):
        shared.exec(["/nonexistent/program"])


def test_a_timeout_kills_grandchildren_and_keeps_the_output(shared: Sandbox) -> None:
    script = "echo begun; setsid sh -c 'sleep 987' & sleep 987"
    with pytest.raises(OperationTimeout) as caught:
        shared.exec(script, timeout_seconds=3)
    assert caught.value.facts["stdout"] == "begun\n"
    left = [p for p in shared.processes() if "sleep 987" in p.command]
    assert left == []


def test_twenty_at_once(shared: Sandbox) -> None:
    results: dict[int, str] = {}

    def run(number: int) -> None:
        results[number] = shared.exec(f"sleep 0.2; echo {number}").stdout

    threads = [threading.Thread(target=run, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: f"{n}\n" for n in range(20)}


def test_two_readers_of_which_one_stalls(shared: Sandbox) -> None:
    process = shared.exec("head -c 3000000 /dev/zero; echo end >&2", background=True)
    stalled = iter(shared.attach(process.exec_id).events())
    next(stalled)
    got = 0
    for event in shared.attach(process.exec_id).events():
        if isinstance(event, ExecOutput) and event.stream == "stdout":
            got += len(event.data)
    assert got == 3_000_000
    rest = sum(len(e.data) for e in stalled if isinstance(e, ExecOutput) and e.stream == "stdout")
    assert rest == 3_000_000


def test_a_lost_client_attaches_again_at_an_offset(shared: Sandbox) -> None:
    process = shared.exec("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done", background=True)
    first = b""
    for event in process.events():
        if isinstance(event, ExecOutput):
            first += event.data
        if len(first) >= 7:
            break
    rest = b""
    for event in shared.attach(process.exec_id, stdout_offset=len(first)).events():
        if isinstance(event, ExecOutput):
            rest += event.data
        if isinstance(event, ExecEnded):
            assert event.info.exit_code == 0
    assert (first + rest).decode() == "".join(f"line {i}\n" for i in range(1, 7))


def test_output_over_the_limit_is_cut_with_a_mark_and_whole_in_a_file(shared: Sandbox) -> None:
    result = shared.exec("seq 1 200000", output_limit_bytes=10_000)
    assert result.stdout_truncated
    assert result.stdout_path in result.stdout
    assert shared.exec(["wc", "-c", result.stdout_path]).stdout.split()[0] == "1288895"


def test_files_of_any_name_and_content(shared: Sandbox) -> None:
    files = shared.filesystem
    content = bytes(range(256)) * 41
    for name in ("plain", "mit Leerzeichen & ümläut", "new\nline", "\udcff\udc80 raw bytes", "-rf"):
        path = f"/workspace/names/{name}"
        files.write(path, content)
        assert files.read(path) == content
        assert files.stat(path).size_bytes == len(content)
    assert len(files.list("/workspace/names")) == 5
    files.append("/workspace/names/plain", b"!")
    assert files.read("/workspace/names/plain", offset=len(content)) == b"!"
    files.rename("/workspace/names/plain", "/workspace/names/other")
    assert not files.exists("/workspace/names/plain")
    files.remove("/workspace/names", recursive=True)
    with pytest.raises(NotFound):
        files.read("/workspace/names/other")


def test_folders_up_and_down(shared: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/file").write_bytes(b"x" * 100_000)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/er/file")
    shared.filesystem.upload(source, "/workspace/tree")
    assert shared.exec("./run.sh", cwd="/workspace/tree").stdout == "ran\n"
    shared.filesystem.download("/workspace/tree", tmp_path / "back")
    assert (tmp_path / "back/deep/er/file").read_bytes() == b"x" * 100_000
    assert (tmp_path / "back/link").readlink() == Path("deep/er/file")
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o111


def test_a_large_file_both_ways_with_bounded_memory(shared: Sandbox, tmp_path: Path) -> None:
    """128 MiB; with TORPOR_TEST_LARGE_MIB as much as is wanted. The guest has 512 MiB of RAM in all."""
    import hashlib
    import os

    mib = int(os.environ.get("TORPOR_TEST_LARGE_MIB", "128"))
    block = os.urandom(1 << 20)
    digest = hashlib.sha256()
    with (tmp_path / "large").open("wb") as file:
        for number in range(mib):
            piece = number.to_bytes(8, "big") + block[8:]
            file.write(piece)
            digest.update(piece)
    shared.filesystem.upload(tmp_path / "large", "/workspace/large")
    assert shared.exec("sha256sum < /workspace/large").stdout.split()[0] == digest.hexdigest()
    shared.filesystem.download("/workspace/large", tmp_path / "back")
    with (tmp_path / "back").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest.hexdigest()
    agent = max(p.rss_bytes for p in shared.processes() if "torpor_guest" in p.command)
    assert agent < 96 << 20
    shared.filesystem.remove("/workspace/large")


def test_environment_of_the_sandbox_lies_over_the_images(base: str) -> None:
    with Sandbox.create(template=base, env={"TOKEN": "hush", "LANG": "C"}) as sbx:
        assert sbx.exec("echo $TOKEN $LANG $X", env={"X": "y"}).stdout == "hush C y\n"
        assert sbx.info.env_names == ("LANG", "TOKEN")


def test_its_clock_is_the_hosts(shared: Sandbox) -> None:
    before = time.time()
    there = float(shared.exec("date +%s.%N").stdout)
    assert before - 2 <= there <= time.time() + 2

"""Code contexts in real machines: rich results, and interpreters that go along with their machine."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.api.test_mapping import run_rows
from torpor import Sandbox, Templates
from torpor.base.home import Home
from torpor.errors import OperationTimeout
from torpor.sdk.sync_contexts import Context

ON_TCP = ("sbx.get_host(8000)", "sbx.preview_url(8000, ttl_seconds=600)")
"""What a daemon on a Unix socket has not; the contract's tier runs it."""
DRAW = "[random.getrandbits(64), int(numpy.random.randint(1 << 62))]"


@pytest.fixture(scope="module")
def sandbox(vm_home: Home) -> Iterator[Sandbox]:
    """One machine of the template for code, for all tests here."""
    patch = pytest.MonkeyPatch()
    patch.setenv("TORPOR_HOME", str(vm_home.root))
    try:
        made = Sandbox.create(template=Templates.build("code-interpreter").name)
        yield made
        made.delete()
    finally:
        patch.undo()


@pytest.fixture(scope="module")
def python(sandbox: Sandbox) -> Context:
    """An interpreter with numpy, as an ordinary user."""
    began = time.monotonic()
    context = sandbox.contexts.create(language="python", user="agent", cwd="/tmp")
    print(f"an interpreter answered after {time.monotonic() - began:.1f} s")
    assert (
        context.run("import random, numpy, os; os.getuid(), os.getcwd()").text == "(1000, '/tmp')"
    )
    return context


def test_tables_plots_and_errors(sandbox: Sandbox, python: Context) -> None:
    run = python.run(
        "import pandas; print('begun')\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"
    )
    assert run.logs.stdout == "begun\n"
    assert "a  b" in str(run.text)
    (table,) = run.results
    assert "<table" in str(table.html)
    assert "<td>y</td>" in str(table.html)
    plot = python.run(
        "import matplotlib.pyplot as plt; plt.plot([3, 1, 2]); plt.show()", timeout_seconds=300
    )
    (figure,) = [r for r in plot.results if r.png]
    assert base64.b64decode(str(figure.png)).startswith(b"\x89PNG\r\n\x1a\n")
    assert "Matplotlib is building the font cache" not in plot.logs.stderr
    raised = python.run("{}['nothing']")
    assert raised.error is not None
    assert (raised.error.name, raised.error.value) == ("KeyError", "'nothing'")
    shell = sandbox.run_code("cd /etc; x=5; whoami; (exit 7)", language="bash")
    assert (shell.logs.stdout, shell.exit_code, shell.status) == ("root\n", 7, "error")
    assert sandbox.run_code("echo $PWD $x", language="bash").logs.stdout == "/etc 5\n"
    assert {c.id for c in sandbox.contexts.list()} == {python.id, "ctx_default_bash"}


def test_limits_and_interrupts_keep_what_was_set(python: Context) -> None:
    with pytest.raises(OperationTimeout, match="timeout: the code ran") as caught:
        python.run("x = 41\nwhile True: pass", timeout_seconds=2)
    assert caught.value.facts["restarted"] is False
    for event in python.run_stream("print('begun', flush=True)\nimport time; time.sleep(600)"):
        if getattr(event, "text", "").startswith("begun"):
            python.interrupt()
    assert python.run("x + 1").text == "42"
    began = time.monotonic()
    for _ in range(5):
        python.run("1")
    print(f"a run takes {(time.monotonic() - began) / 5:.2f} s")


def test_it_goes_along_with_forks_sleeps_and_rollbacks(sandbox: Sandbox, python: Context) -> None:
    sandbox.run_code("true", language="bash")
    bash = sandbox.contexts.get("ctx_default_bash")
    bash.run("RANDOM=7; : $RANDOM")
    python.run("before = 'kept'; random.seed(7); numpy.random.seed(7)")
    forks = [fork for fork in sandbox.fork(count=2) if isinstance(fork, Sandbox)]
    try:
        machines = [sandbox, *forks]
        contexts = [machine.contexts.get(python.id) for machine in machines]
        assert [c.run("before").text for c in contexts] == ["'kept'"] * 3
        drawn = {c.run(DRAW).text for c in contexts}
        assert len(drawn) == 3, f"machines share random state: {drawn}"
        numbers = {
            m.run_code("echo $RANDOM $RANDOM", language="bash").logs.stdout for m in machines
        }
        assert len(numbers) == 3, f"machines share random state: {numbers}"
    finally:
        for fork in forks:
            fork.delete()
    python.run("random.seed(8); numpy.random.seed(8); mark = 1")
    expected = python.run(f"v = {DRAW}; random.seed(8); numpy.random.seed(8); v").text
    point = sandbox.snapshot()
    sandbox.hibernate()
    began = time.monotonic()
    assert python.run(DRAW).text == expected, "a machine that only woke goes on exactly"
    print(f"woke and ran in {time.monotonic() - began:.1f} s")
    python.run("mark = 2")
    sandbox.rollback(point.id)
    assert python.run("mark").text == "1"
    assert python.run(DRAW).text != expected, "one that was put back has lived another life before"
    python.delete()
    assert not [p for p in sandbox.processes() if "ipykernel" in p.command]


def test_every_call_of_ours_in_the_mapping_runs(
    sandbox: Sandbox, base: str, tmp_path: Path
) -> None:
    before = {made.id for made in Sandbox.list()}
    try:
        with Sandbox.create(template=base) as other:
            assert run_rows(sandbox, other, tmp_path / "file", skipped=ON_TCP) > 60
    finally:
        for made in Sandbox.list():
            if made.id not in before:
                made.delete()

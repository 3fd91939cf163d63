"""A Python interpreter: an ipykernel, spoken to over Unix sockets by the Jupyter protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import sys
from typing import Any

from outlet import Outlet

READY_S = 300.0
_IDLE_AFTER_REPLY_S = 3.0
_LOOK_S = 0.5
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Missing(Exception):
    """Raised when this machine has no such interpreter."""


class Session:
    """One kernel, and another one when it has died."""

    def __init__(self, folder: str) -> None:
        try:
            import ipykernel  # noqa: F401
            import jupyter_client  # noqa: F401
        except ImportError as exc:
            raise Missing(f"{exc} ({sys.executable})") from exc
        self._folder = folder
        self._count = 0
        self._manager: Any = None
        self._client: Any = None

    async def start(self) -> None:
        """Start a kernel and return when it answers."""
        from jupyter_client.manager import AsyncKernelManager

        self._count += 1
        name = f"{self._folder}/k{self._count}"
        self._manager = AsyncKernelManager(transport="ipc", connection_file=f"{name}.json")
        env = {
            **os.environ,
            "IPYTHONDIR": f"{self._folder}/ipython",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        log = os.open(
            f"{self._folder}/log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            await self._manager.start_kernel(
                extra_arguments=["--HistoryManager.enabled=False"], env=env, stdout=log, stderr=log
            )
        finally:
            os.close(log)
        self._client = self._manager.client()
        self._client.start_channels(stdin=False, hb=False)
        self._client.iopub_channel.socket.rcvhwm = 0  # what is dropped could be the end
        await self._client.wait_for_ready(timeout=READY_S)
        here = os.path.dirname(os.path.abspath(__file__))
        await self._quietly(
            "def _torpor():\n"
            "    import sys\n"
            f"    sys.path.insert(0, {here!r})\n"
            "    try:\n"
            "        import torpor_in_kernel\n"
            "    finally:\n"
            f"        sys.path.remove({here!r})\n"
            f"    torpor_in_kernel.install(get_ipython(), {self._folder!r})\n"
            "_torpor()\ndel _torpor\n"
        )

    async def _quietly(self, code: str) -> None:
        """Run our own code, of which nothing is seen."""
        message = self._client.execute(code, silent=True, store_history=False, allow_stdin=False)
        while True:
            reply = await self._client.get_shell_msg(timeout=READY_S)
            if reply["parent_header"].get("msg_id") == message:
                break
        if reply["content"].get("status") != "ok":
            raise RuntimeError(f"the kernel could not be prepared: {reply['content']}")

    async def run(self, code: str, out: Outlet) -> dict[str, Any]:
        """Run code; return the end's fields. Cancelling this leaves the code running."""
        before = {"restarted": True} if await self._revive() else {}
        message = self._client.execute(code, store_history=True, allow_stdin=False)
        idle = asyncio.Event()
        tasks = [
            asyncio.ensure_future(self._outputs(message, out, idle)),
            asyncio.ensure_future(self._reply(message)),
            asyncio.ensure_future(self._death()),
        ]
        try:
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
            if not tasks[1].done():
                out.error("KernelDied", "the interpreter ended while it ran this code", "")
                await self.restart()
                return {"status": "died", "restarted": True}
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(idle.wait(), _IDLE_AFTER_REPLY_S)
            content = tasks[1].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for payload in content.get("payload") or []:
            data = payload.get("data")
            if payload.get("source") == "page" and isinstance(data, dict):
                out.result({"text/plain": _plain(str(data.get("text/plain", "")))}, is_main=False)
        status = "ok" if content.get("status") == "ok" else "error"
        return {"status": status, "execution_count": content.get("execution_count"), **before}

    async def _reply(self, message: str) -> dict[str, Any]:
        while True:
            with contextlib.suppress(queue.Empty):
                reply = await self._client.get_shell_msg(timeout=60)
                if reply["parent_header"].get("msg_id") == message:
                    return dict(reply["content"])

    async def _death(self) -> None:
        while await self._manager.is_alive():
            await asyncio.sleep(_LOOK_S)

    async def _outputs(self, message: str, out: Outlet, idle: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                said = await self._client.get_iopub_msg(timeout=60)
                if said["parent_header"].get("msg_id") != message:
                    continue
                kind, content = said["header"]["msg_type"], said["content"]
                if kind == "status" and content.get("execution_state") == "idle":
                    idle.set()
                _hand_on(kind, content, out)

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in what runs."""
        if self._manager is not None and await self._manager.is_alive():
            await self._manager.interrupt_kernel()

    async def _revive(self) -> bool:
        """Start another kernel if this one has died; return whether it had."""
        if self._manager is not None and await self._manager.is_alive():
            return False
        await self.restart()
        return True

    async def restart(self) -> None:
        """End the kernel and start another."""
        await self.close()
        await self.start()

    async def close(self) -> None:
        """End the kernel."""
        client, self._client = self._client, None
        manager, self._manager = self._manager, None
        if client is not None:
            client.stop_channels()
        if manager is not None:
            await manager.shutdown_kernel(now=True)
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}/drawn")

    def last_words(self) -> str:
        """Return the end of what the kernel wrote outside of any code."""
        try:
            with open(f"{self._folder}/log", "rb") as file:
                return file.read(64 << 10)[-2000:].decode("utf-8", "replace").strip()
        except OSError:
            return ""


def _hand_on(kind: str, content: dict[str, Any], out: Outlet) -> None:
    if kind == "stream":
        out.stream(content.get("name", ""), content.get("text", ""))
    elif kind in ("execute_result", "display_data", "update_display_data"):
        data = {mime: _value(mime, value) for mime, value in content.get("data", {}).items()}
        out.result(data, is_main=kind == "execute_result")
    elif kind == "error":
        traceback = "\n".join(map(str, content.get("traceback") or []))
        out.error(content.get("ename"), content.get("evalue"), _plain(traceback))


def _value(mime: str, value: object) -> object:
    if mime == "application/json" or mime.endswith("+json"):
        return value
    text = "".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.replace("\n", "") if mime.startswith("image/") and mime != "image/svg+xml" else text


def _plain(text: str) -> str:
    """Return `text` without the colours of a terminal."""
    return _ANSI.sub("", text)

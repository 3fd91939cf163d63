"""Who this machine is: host name, machine-id, boot_id, SSH host keys. Made anew when it became another machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import signal
from pathlib import Path

from torpor_guest import errors, proctree
from torpor_guest.errors import AgentError
from torpor_guest.kernel import Kernel
from torpor_guest.programs import Programs
from torpor_guest.threads import in_thread

BOOT_ID = "/run/torpor/boot_id"
_BOOT_ID_SEEN = "/proc/sys/kernel/random/boot_id"
_MACHINE_ID = "/etc/machine-id"
_MACHINE_ID_OF_DBUS = "/var/lib/dbus/machine-id"
_MACHINE_ID_TEXT = re.compile(r"[0-9a-f]{32}")
_JOURNALS = ("/var/log/journal", "/run/log/journal")
_RANDOM_SEED = "/var/lib/systemd/random-seed"
_RANDOM_SEED_BYTES = 512
_HOST_KEYS = "/etc/ssh"
_HOST_KEY = re.compile(r"ssh_host_(\w+)_key")
_KEYGEN_LIMIT_S = 120.0
_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_HOSTS_LINE = re.compile(rb"^127\.0\.1\.1[ \t].*$", re.MULTILINE)


class Identity:
    """Gives the machine a new identity."""

    def __init__(self, kernel: Kernel, programs: Programs) -> None:
        self._kernel = kernel
        self._programs = programs

    async def renew(self, hostname: str) -> list[str]:
        """Make all of it anew; return what went wrong without being a danger.

        The kernel's randomness must have been reseeded before. Everything is written so that a reader sees the
        old or the new, and can be done again.

        Raises:
            AgentError: part of the old identity may still be there.
        """
        try:
            types = await in_thread(self._renew_files, hostname)
        except OSError as exc:
            raise AgentError(
                errors.FAILED,
                f"the machine's identity cannot be renewed: {exc.filename or ''}: {exc.strerror}",
                errno=errors.name_of(exc),
            ) from exc
        return await self._make_host_keys(types) if types else []

    def _renew_files(self, hostname: str) -> list[str]:
        """Renew all but the SSH host keys; remove those and return their types."""
        path = self._kernel.path
        self._kernel.set_hostname(hostname)
        replace_file(path("/etc/hostname"), f"{hostname}\n".encode())
        self._renew_hosts(path("/etc/hosts"), hostname)
        self._renew_machine_id()
        if _is_plain(path(_RANDOM_SEED)):
            replace_file(path(_RANDOM_SEED), os.urandom(_RANDOM_SEED_BYTES), mode=0o600)
        self._renew_boot_id()
        return _remove_host_keys(path(_HOST_KEYS))

    def _renew_machine_id(self) -> None:
        path, new = self._kernel.path, _new_uuid().replace("-", "")
        old = ""
        with contextlib.suppress(OSError):
            old = path(_MACHINE_ID).read_text(errors="replace").strip()
        replace_file(path(_MACHINE_ID), f"{new}\n".encode(), mode=0o444)
        if _is_plain(path(_MACHINE_ID_OF_DBUS)):
            replace_file(path(_MACHINE_ID_OF_DBUS), f"{new}\n".encode(), mode=0o444)
        if _MACHINE_ID_TEXT.fullmatch(old):
            for folder in _JOURNALS:
                with contextlib.suppress(OSError):  # it costs a look at the log, no more
                    _keep_journal(path(folder), old, new)

    def _renew_hosts(self, hosts: Path, hostname: str) -> None:
        try:
            old = hosts.read_bytes()
        except FileNotFoundError:
            return
        new = _HOSTS_LINE.sub(b"127.0.1.1\t" + hostname.encode(), old)
        if new != old:
            replace_file(hosts, new)

    def _renew_boot_id(self) -> None:
        """Let /proc show a boot_id of our own; the kernel's is the same in all that came from one snapshot."""
        ours, seen = self._kernel.path(BOOT_ID), self._kernel.path(_BOOT_ID_SEEN)
        content = _new_uuid().encode() + b"\n"
        if _are_same(
            ours, seen
        ):  # bound by a renewal before: same length, so a reader sees no mixture
            fd = os.open(ours, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.pwrite(fd, content, 0)
            finally:
                os.close(fd)
        else:
            replace_file(ours, content, mode=0o444)
            self._kernel.bind(ours, seen)
        if seen.read_bytes() != content:
            raise OSError(0, "it still shows the old one", str(seen))

    async def _make_host_keys(self, types: list[str]) -> list[str]:
        """Make SSH host keys of the types that were there, and have a running sshd take them."""
        made = await asyncio.gather(*(self._make_host_key(kind) for kind in types))
        for process in proctree.scan().values():
            is_sshd = process.uid == 0 and process.name == "sshd"
            if is_sshd and "[listener]" in proctree.command_of(process):
                with contextlib.suppress(ProcessLookupError):
                    self._kernel.signal(process.pid, signal.SIGHUP)
        return [note for note in made if note]

    async def _make_host_key(self, kind: str) -> str:
        target = str(self._kernel.path(f"{_HOST_KEYS}/ssh_host_{kind}_key"))
        argv = ["ssh-keygen", "-q", "-N", "", "-t", kind, "-f", target]
        try:
            status, output = await self._programs.run(argv, timeout_s=_KEYGEN_LIMIT_S)
        except AgentError as exc:
            if exc.code != errors.INVALID:
                raise
            return f"the SSH host key {kind} was removed and not made anew: {exc}"
        if status != 0:
            return f"the SSH host key {kind} was removed and not made anew: {output[-300:].strip()}"
        return ""


def check_hostname(name: object) -> str:
    """Return `name` if it can be a host name, or raise `AgentError`."""
    if not isinstance(name, str) or not _HOSTNAME.fullmatch(name):
        raise AgentError(errors.INVALID, f"{str(name)[:100]!r} is no host name")
    return name


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Give a file new content at once; what is mounted over its name is written in place.

    No fsync: what is written here is made anew whenever it could have been lost.
    """
    temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, mode)
        os.write(fd, content)
        os.rename(temp, path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        if exc.errno != errno.EBUSY:
            raise
        path.write_bytes(content)
    finally:
        os.close(fd)


def _keep_journal(folder: Path, old: str, new: str) -> None:
    """Let the journal, whose folder is named after the machine-id, be found under the new one too."""
    link = folder / old
    target = old
    if link.is_symlink():
        target = os.readlink(link)
        os.unlink(link)
    elif not link.is_dir():
        return
    os.symlink(target, folder / new)


def _remove_host_keys(folder: Path) -> list[str]:
    """Remove the SSH host keys; return the types there were."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    types = []
    for name in names:
        match = _HOST_KEY.fullmatch(name)
        if match:
            types.append(match[1])
            os.unlink(folder / name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder / f"{name}.pub")
    return types


def _new_uuid() -> str:
    """Return a random UUID (version 4), from the kernel."""
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _are_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False

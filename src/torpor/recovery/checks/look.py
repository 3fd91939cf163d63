"""Looks at files, ports, processes, services and packages with testinfra's modules, in a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from testinfra.host import Host

from torpor.recovery.checks.backend import Attempt, in_thread, make_host
from torpor.recovery.checks.facts import Facts, Unclear
from torpor.recovery.checks.matchers import Output, Value
from torpor.recovery.checks.plan import Check


def look_file(host: Host, check: Check, attempt: Attempt) -> Facts:
    """Return what a file is; a link is followed for all but `exists`, `filetype` and `linked-to`."""
    file = host.file(check.target)
    exists = bool(file.exists or file.is_symlink)
    if not exists:
        wanted = [name for name in check.wants if name != "exists"]
        return Facts(
            values={"exists": False, **dict.fromkeys(wanted)},
            why_not=dict.fromkeys(wanted, "there is no such file"),
        )
    read: dict[str, Callable[[], Value | None]] = {
        "exists": lambda: True,
        "filetype": lambda: _filetype(host, file, check.target),
        "mode": lambda: f"{file.mode:04o}",
        "size": lambda: int(file.size),
        "owner": lambda: str(file.user),
        "group": lambda: str(file.group),
        "linked-to": lambda: str(file.linked_to),
        "md5": lambda: _digest(file.md5sum, 32),
        "sha256": lambda: _digest(file.sha256sum, 64),
        "contents": lambda: _contents(file, attempt),
    }
    return Facts(values={name: read[name]() for name in check.wants})


def _filetype(host: Host, file: Any, path: str) -> str:
    for name in ("symlink", "file", "directory", "socket", "pipe"):
        if getattr(file, f"is_{name}"):
            return name
    if host.run_test("test -b %s", path).rc == 0:
        return "block-device"
    return "character-device"


def _digest(text: str, digits: int) -> str:
    found = text.strip().removeprefix("\\")  # sha256sum marks names with a backslash
    if len(found) != digits:
        raise Unclear("the file could not be read")
    return found


def _contents(file: Any, attempt: Attempt) -> Output:
    if file.is_directory:
        raise Unclear("it is a directory; it has no contents")
    text = file.content_string
    return Output(text, is_cut=attempt.output_is_cut)


def look_port(host: Host, check: Check, _attempt: Attempt) -> Facts:
    """Return whether something listens on a port, and at which addresses."""
    family, _, number = check.target.partition(":")
    protocol = family.removesuffix("6")
    found: dict[str, None] = {}
    for spec in host.socket.get_listening_sockets():
        kind, _, address = str(spec).partition("://")
        ip, _, port = address.rpartition(":")
        if kind == protocol and port == number and (":" in ip or not family.endswith("6")):
            found[ip.partition("%")[0]] = None
    if not found:
        return Facts(values={"listening": False, "ip": ()}, output="")
    return Facts(values={"listening": True, "ip": tuple(found)})


def look_process(host: Host, check: Check, _attempt: Attempt) -> Facts:
    """Return how many processes have a name (`comm`: the program's, at most 15 characters)."""
    name = check.target[:15]
    alive = [p for p in host.process.filter(comm=name) if not str(p["args"]).endswith("<defunct>")]
    count = len(alive)
    if not count and " " in name:  # testinfra reads columns, which such a name breaks
        count = host.check_output("ps -A -o comm=").splitlines().count(name)
    return Facts(values={"running": count > 0, "count": count})


def look_service(host: Host, check: Check, _attempt: Attempt) -> Facts:
    """Return whether a service runs and is enabled, and how often systemd has restarted it."""
    service = host.service(check.target)
    values: dict[str, Value | None] = {}
    why_not: dict[str, str] = {}
    if "running" in check.wants:
        values["running"] = bool(service.is_running)
    if "enabled" in check.wants:
        values["enabled"] = _is_enabled(host, service, check.target)
    if "restarts" in check.wants:
        found = service.systemd_properties.get("NRestarts")
        values["restarts"] = int(found) if found is not None else None
        why_not["restarts"] = "systemd does not count its restarts"
    return Facts(values=values, why_not=why_not)


def _is_enabled(host: Host, service: Any, name: str) -> bool:
    try:
        return bool(service.is_enabled)
    except (AssertionError, RuntimeError):
        # neither enabled nor disabled: masked, or there is no such service
        if host.run("systemctl is-enabled %s", name).rc == 0:
            raise
        return False


def look_package(host: Host, check: Check, _attempt: Attempt) -> Facts:
    """Return whether a package of the distribution is installed, and its version."""
    package = host.package(check.target)
    is_installed = bool(package.is_installed)
    values: dict[str, Value | None] = {"installed": is_installed}
    if "versions" in check.wants:
        values["versions"] = (str(package.version),) if is_installed else None
    return Facts(values=values, why_not={"versions": "it is not installed"})


LOOKS: dict[str, Callable[[Host, Check, Attempt], Facts]] = {
    "file": look_file,
    "port": look_port,
    "process": look_process,
    "service": look_service,
    "package": look_package,
}

__all__ = ["LOOKS", "in_thread", "make_host"]

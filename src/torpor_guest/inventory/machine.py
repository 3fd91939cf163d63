"""The machine's users, and the ports that are listened on."""

from __future__ import annotations

import contextlib
import os
import re
import socket

from torpor_guest.inventory.budget import Section
from torpor_guest.inventory.content import Reader
from torpor_guest.inventory.walk import Walker

_FILE_MOST = 4 << 20
_TABLE_MOST = 4 << 20
_LISTEN = "0A"
_UNCONNECTED = "07"
_INODE = re.compile(r"socket:\[([0-9]+)\]")
_PROCESSES_MOST = 5000


def users(walker: Walker, reader: Reader, section: Section) -> None:
    """List the users with their groups. Passwords are not looked at."""
    groups: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for row in _rows(walker, reader, section, "/etc/group", 4):
        names[row[2]] = row[0]
        for member in filter(None, row[3].split(",")):
            groups.setdefault(member, []).append(row[0])
    for row in _rows(walker, reader, section, "/etc/passwd", 7):
        section.add(
            row[0],
            {
                "uid": _number(row[2]),
                "group": names.get(row[3], row[3]),
                "groups": ",".join(sorted(groups.get(row[0], ()))),
                "home": row[5],
                "shell": row[6],
            },
        )


def _rows(
    walker: Walker, reader: Reader, section: Section, path: str, columns: int
) -> list[list[str]]:
    for found in walker.glob(path, section):
        try:
            text = reader.read(found, _FILE_MOST).decode("utf-8", "replace")
        except OSError as exc:
            section.cut(f"{path} cannot be read: {exc.strerror}")
            return []
        rows = (line.split(":") for line in text.splitlines() if not line.startswith("#"))
        return [row for row in rows if len(row) == columns]
    return []


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() and len(text) < 11 else None


def ports(proc: str, section: Section) -> None:
    """List the ports that are listened on, with the names of the processes behind them."""
    first_ephemeral = _first_ephemeral(proc)
    listening: dict[str, tuple[str, str, int]] = {}
    for table, state in (
        ("tcp", _LISTEN),
        ("tcp6", _LISTEN),
        ("udp", _UNCONNECTED),
        ("udp6", _UNCONNECTED),
    ):
        try:
            with open(f"{proc}/net/{table}", encoding="ascii", errors="replace") as file:
                lines = file.read(_TABLE_MOST).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) < 10 or fields[3] != state:
                continue
            address, _, port = fields[1].partition(":")
            number = int(port, 16)
            if table.startswith("udp") and number >= first_ephemeral:
                continue  # a client's own end
            listening[fields[9]] = (table[:3], _address(address), number)
    owners = _owners(proc, set(listening))
    found: dict[str, set[str]] = {}
    for inode, (protocol, address, number) in listening.items():
        found.setdefault(f"{protocol} {address}:{number}", set()).add(owners.get(inode, ""))
    for name in sorted(found):
        process = ", ".join(sorted(filter(None, found[name])))
        section.add(name, {"process": process or None})


def _first_ephemeral(proc: str) -> int:
    try:
        with open(f"{proc}/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read(64).split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def _address(digits: str) -> str:
    raw = bytes.fromhex(digits)
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw[::-1])
    words = b"".join(raw[at : at + 4][::-1] for at in range(0, 16, 4))
    return f"[{socket.inet_ntop(socket.AF_INET6, words)}]"


def _owners(proc: str, inodes: set[str]) -> dict[str, str]:
    """Return the name of the process that holds each socket; looks no further than it must."""
    found: dict[str, str] = {}
    missing = set(inodes)
    pids = sorted((int(name) for name in os.listdir(proc) if name.isdigit()), reverse=True)
    for pid in pids[:_PROCESSES_MOST]:
        if not missing:
            break
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"{proc}/{pid}/fd"):
                with contextlib.suppress(OSError):
                    held = _INODE.fullmatch(os.readlink(f"{proc}/{pid}/fd/{fd}"))
                    if held and held[1] in missing:
                        missing.discard(held[1])
                        found[held[1]] = _comm(proc, pid)
    return found


def _comm(proc: str, pid: int) -> str:
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""

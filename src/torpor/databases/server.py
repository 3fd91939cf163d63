"""PostgreSQL inside a database's machine, by its own programs: start, stop, statements."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final

from torpor.base.ids import new_id
from torpor.errors import DatabaseFull, GuestFailed, LimitExceeded, NotFound, OperationTimeout
from torpor.guest.port import Guest
from torpor.model import ExecEnded, ExecId, ExecOutput, ExecSpec

TEMPLATE: Final = "postgres"
PLACE: Final = "/srv/postgres"
"""Where the machine has the volume."""
SOURCE: Final = "/srv/source"
"""Where a machine that goes back in time has the volume whose log it follows."""
PORT: Final = 5432
BIN: Final = "/usr/lib/postgresql/17/bin"
UNIT: Final = "torpor-postgres"

STATEMENT_S: Final = 120.0
_STOP_S: Final = 330.0
START_S: Final = 3600.0
"""A log of gigabytes takes long to replay."""
_OUTPUT_MOST: Final = 1 << 20
_TOLD: Final = 1500

RESERVE: Final = f"{PLACE}/reserve"
"""Room that is given up when the server cannot start for want of it: segments of the log, of 16 MiB each."""
_RESERVE_MIB: Final = 48
_SHORT_MIB: Final = 32
"""With less, a server that does not start is taken to want room."""
_NO_ROOM: Final = "torpor: the volume is full"

_GIVE_UP = f"journalctl -u {UNIT} -n 20 -o cat --no-pager >&2; systemctl stop {UNIT}; exit 1"
_START = f"systemctl start {UNIT} || {{ {_GIVE_UP}; }}"
_KEEP_ROOM = f"""
room() {{ df --output=avail -BM {PLACE} | tr -dc '0-9\n' | tail -1; }}
keep_room() {{
    [ -e {RESERVE} ] || [ "$(room)" -lt {2 * _RESERVE_MIB} ] || {{
        fallocate -l {_RESERVE_MIB}M {RESERVE}.part && mv {RESERVE}.part {RESERVE} || rm -f {RESERVE}.part
    }}
    [ ! -e {RESERVE} ] || echo kept
}}
"""
_START_IN_ROOM = f"""{_KEEP_ROOM}
start() {{
    systemctl start {UNIT} && return 0
    [ "$(room)" -lt {_SHORT_MIB} ] || return 1
    [ -e {RESERVE} ] || return 2
    rm -f {RESERVE}
    sync -f {PLACE}
    systemctl start {UNIT} || return 2
}}
start
case $? in
    0) keep_room ;;
    1) {_GIVE_UP} ;;
    *) trap 'echo "{_NO_ROOM}" >&2' EXIT; {_GIVE_UP} ;;
esac
"""
_END_SESSIONS = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_REDO = "SELECT pg_walfile_name(redo_lsn) FROM pg_control_checkpoint()"
"""The segment of the log that a recovery from now on would begin with."""


async def run(
    guest: Guest,
    command: str | Sequence[str],
    *,
    user: str = "root",
    timeout_s: float = STATEMENT_S,
) -> str:
    """Run a command in the machine and return what it printed; nothing of it is kept there.

    Raises:
        GuestFailed: it ended with another status than 0; the message ends with what it said.
        OperationTimeout: it took too long, and was killed.
    """
    exec_id = ExecId(new_id("exec"))
    given = command if isinstance(command, str) else tuple(command)
    spec = ExecSpec(command=given, user=user, cwd="/", timeout_seconds=timeout_s)
    out, err, ended = bytearray(), bytearray(), None
    async with guest.exec_run(exec_id, spec) as events:
        async for event in events:
            if isinstance(event, ExecOutput):
                kept = out if event.stream == "stdout" else err
                kept += event.data
                if len(kept) > _OUTPUT_MOST:
                    raise LimitExceeded(f"the command printed more than {_OUTPUT_MOST} bytes")
            elif isinstance(event, ExecEnded):
                ended = event.info
    if "exec.drop" in guest.info.capabilities:
        await guest.exec_drop(exec_id)
    if ended is not None and ended.timed_out:
        raise OperationTimeout(f"PostgreSQL's machine took longer than {timeout_s:g} s")
    if ended is None or ended.exit_code != 0:
        said = err.decode("utf-8", "replace").strip()[-_TOLD:]
        raise GuestFailed(f"PostgreSQL's machine refused: {said or 'without a word'}")
    return out.decode("utf-8", "replace").strip()


async def sql(guest: Guest, *statements: str, timeout_s: float = STATEMENT_S) -> str:
    """Run statements one after the other, each by itself, and return what they printed. Raises as `run`."""
    return await run(guest, _psql(statements), user="postgres", timeout_s=timeout_s)


def _psql(statements: Sequence[str]) -> list[str]:
    words = [f"{BIN}/psql", "-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-d", "postgres"]
    return words + [word for statement in statements for word in ("-c", statement)]


async def start(guest: Guest, name: str) -> bool:
    """Start the server of a database and return when it takes connections; say whether its reserve of room is kept.

    A server that does not start for want of room is given the reserve, which is made anew when there is room again.

    Raises:
        DatabaseFull: the volume has no room, and no reserve any more.
        GuestFailed: it does not start for another reason; the message has the end of its log.
    """
    return await _started(guest, name, _START_IN_ROOM)


async def _started(guest: Guest, name: str, program: str) -> bool:
    try:
        return "kept" in await run(guest, program, timeout_s=START_S)
    except GuestFailed as exc:
        if not exc.message.endswith(_NO_ROOM):
            raise
        raise DatabaseFull(
            f"database {name} is down: its volume is full, and PostgreSQL finds no room to start",
            hint=f"make it larger, it comes back with all that was committed: torpor db grow {name} SIZE",
            database=name,
            log=exc.message.removesuffix(_NO_ROOM).strip(),
        ) from exc


async def keep_room(guest: Guest) -> bool:
    """Make the reserve of a server that gave it up, if there is room again; return whether it is kept."""
    return "kept" in await run(guest, f"{_KEEP_ROOM}keep_room")


async def configure(guest: Guest, name: str) -> bool:
    """Let a server's settings follow the machine's memory and the volume's size as they are now.

    One that does not run is started. Returns and raises as `start`.
    """
    program = f"""/usr/lib/torpor/postgres/configure || exit
systemctl is-active -q {UNIT} && systemctl reload {UNIT}
{_START_IN_ROOM}"""
    return await _started(guest, name, program)


async def stop(guest: Guest) -> None:
    """Stop the server cleanly: sessions are ended, and all is on the volume."""
    await run(guest, f"systemctl stop {UNIT} && sync -f {PLACE}", timeout_s=_STOP_S)


async def set_password(guest: Guest, verifier: str) -> None:
    """Give the role a password, by its verifier, and end the sessions that were begun with another."""
    await sql(guest, _password(verifier), _END_SESSIONS)


def _password(verifier: str) -> str:
    return f"ALTER ROLE postgres PASSWORD '{verifier}'"


async def checkpoint(guest: Guest) -> str:
    """Write all to the volume; return the segment of the log that a recovery from here begins with."""
    return segment(await sql(guest, "CHECKPOINT", _REDO))


def segment(text: str) -> str:
    """Return the name of a segment of the log, as PostgreSQL says it. Raises `GuestFailed` for what is none."""
    found = text.strip()
    if len(found) != 24 or set(found) - set("0123456789ABCDEF"):
        raise GuestFailed(f"PostgreSQL names a segment of its log {found[:80]!r}")
    return found


def anew(verifier: str) -> tuple[str, ...]:
    """Return the statements that make a copied server a database of its own; the last returns a segment of the log.

    That is the one that a recovery from a snapshot begins with which is taken from now on. No checkpoint is made for
    it: after an older one a recovery has more to replay, and a clone is not kept waiting for what others wrote.
    """
    return (_password(verifier), _END_SESSIONS, _REDO)


async def begin_anew(guest: Guest, verifier: str) -> str:
    """Make a copied server whose password is not known a database of its own; see `anew`. Returns the segment."""
    return segment((await sql(guest, *anew(verifier))).rpartition("\n")[2])


async def empty_archive(guest: Guest) -> None:
    """Remove what a copied server's archive holds: another's log."""
    for file in await guest.list_dir(f"{PLACE}/archive"):
        with contextlib.suppress(NotFound):  # the archive made room meanwhile
            await guest.remove(file.path)


async def mark(guest: Guest) -> datetime:
    """Write a commit to the log, and end its segment; return the machine's time before it."""
    text = await sql(
        guest,
        "SELECT extract(epoch FROM now())",
        "SELECT pg_current_xact_id()",
        "SELECT pg_switch_wal()",
    )
    try:
        return datetime.fromtimestamp(float(text.partition("\n")[0]), UTC)
    except (ValueError, OverflowError) as exc:
        raise GuestFailed(f"PostgreSQL says that it is {text[-80:]!r}") from exc


async def recover(guest: Guest, target_time: datetime) -> None:
    """Start a server that replays the log at `SOURCE` up to a time, and return when it takes connections.

    Raises:
        GuestFailed: the log does not reach that time; the message has the server's own words.
    """
    settings = f"""recovery_target_time = '{target_time.astimezone(UTC).isoformat()}'
recovery_target_action = 'promote'
"""
    asked = shlex.join(_psql(["SELECT pg_is_in_recovery()"]))
    program = f"""
install -d -m 0755 /run/torpor-postgres
printf %s {shlex.quote(settings)} >/run/torpor-postgres/recovery.conf
rm -rf {PLACE}/archive
install -o postgres -g postgres -m 0600 /dev/null {PLACE}/data/recovery.signal
sync -f {PLACE}
{_START}
until [ "$(runuser -u postgres -- {asked} 2>/dev/null)" = f ]; do
    systemctl is-active -q {UNIT} && [ "$(systemctl show -P NRestarts {UNIT})" = 0 ] || {{
        {_GIVE_UP}
    }}
    sleep 0.2
done
rm -f /run/torpor-postgres/recovery.conf
"""
    await run(guest, program, timeout_s=START_S)


async def trim(guest: Guest, oldest: str) -> None:
    """Remove the archived segments of the log that are older than `oldest`."""
    await run(guest, [f"{BIN}/pg_archivecleanup", f"{PLACE}/archive", oldest], user="postgres")


@contextlib.asynccontextmanager
async def dumped(guest: Guest, database: str) -> AsyncIterator[str]:
    """Enter with the path of a dump in the machine, on its own disk; it is removed at the end."""
    path = f"/var/tmp/{new_id('exec')}.dump"  # noqa: S108 - in the machine; nobody else knows the name
    try:
        await run(
            guest,
            [f"{BIN}/pg_dump", "-Fc", "-w", "-f", path, "-d", database],
            user="postgres",
            timeout_s=START_S,
        )
        yield path
    finally:
        with contextlib.suppress(NotFound, GuestFailed):
            await guest.remove(path)

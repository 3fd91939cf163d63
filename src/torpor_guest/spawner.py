"""Makes processes that wait, ready to become a command. Run as a program of its own by the agent.

Starting a command is the hot path, and two parts of it are slow: fork in a large process, and moving a process
into a cgroup (milliseconds, because the kernel waits for all CPUs). So both are done ahead of time. For each byte
on the control socket this program forks a spare: a process in a session and cgroup of its own that waits for a
command on its own socket and then becomes it. A spare's parent exits at once, so that the agent, which is a
child subreaper, becomes its parent and the one that learns its end.

It imports little and never grows, so its forks are cheap. When the agent goes away, so do this and all spares.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import sys

READY = b"ready"


def main(control_fd: int, cgroup_parent: str) -> None:
    """Serve the control socket `control_fd` until the agent closes it."""
    control = socket.socket(fileno=control_fd)
    control.setblocking(True)
    number = 0
    while control.recv(1):
        number += 1
        ours, theirs = socket.socketpair()
        cgroup = os.path.join(cgroup_parent, f"{os.getpid()}-{number}") if cgroup_parent else ""
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                ours.close()
                control.close()
                _be_spare(theirs, cgroup)
            os._exit(0)
        os.waitpid(between, 0)
        theirs.close()
        head = ours.recv(64)  # the spare's pid, or nothing when it died
        socket.send_fds(control, [b"%s %s" % (head, os.fsencode(cgroup))], [ours.fileno()])
        ours.close()


def _be_spare(link: socket.socket, cgroup: str) -> None:
    """Wait for a command on `link` and become it; report on `link` what went wrong."""
    try:
        os.setsid()
        os.umask(0o022)
        # what Python ignores, and what whoever started the agent may have ignored
        for number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGINT,
            signal.SIGQUIT,
            signal.SIGHUP,
        ):
            signal.signal(number, signal.SIG_DFL)
        if cgroup:
            os.mkdir(cgroup)
            _put(os.path.join(cgroup, "cgroup.procs"), b"0")
        try:  # noqa: SIM105  # contextlib is an import that this program does without
            _put("/proc/self/oom_score_adj", b"0")
        except OSError:
            pass  # not root: it was never lowered
        link.sendall(b"%d" % os.getpid())
        _become(link)
    finally:
        os._exit(127)


def _become(link: socket.socket) -> None:
    data, fds, _, _ = socket.recv_fds(link, 1 << 16, 3)
    if not data:
        os._exit(0)
    size = int.from_bytes(data[:4], "big") + 4
    while len(data) < size:
        piece = link.recv(1 << 16)
        if not piece:
            os._exit(0)
        data += piece
    user, cwd, programs, argv, env = marshal.loads(data[4:])
    step = "stdio"
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)  # always above 2; recv_fds has no way to ask for CLOEXEC
        step = "user"
        if user is not None:
            uid, gid, groups = user
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
        step = "cwd"
        os.chdir(cwd)
        step = "program"
        _execute(programs, argv, env)
    except OSError as exc:
        link.sendall(f"{step} {exc.errno}".encode())


def _execute(programs: list[bytes], argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Become the first of `programs` that can be run, as execvp does."""
    failure = FileNotFoundError(2, "no such program")
    for program in programs:
        try:
            os.execve(program, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as exc:
            failure = exc  # type: ignore[assignment]
    raise failure


def _put(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

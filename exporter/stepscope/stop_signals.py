"""Signals as something to wait for, without losing one.

`threading.Event.wait` is not: a signal that comes between the interpreter's last look and the wait itself is noted, but
its handler runs only when the wait ends, so the process sits there until it is killed. A byte in a socket stays there.
"""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType


def end_at_once() -> None:
    """Until a command takes SIGTERM over, it ends the process with status 0: nothing has begun that must be ended.

    As the first process of a container it would otherwise not see the signal at all while it starts, for the kernel
    gives such a process only signals that it handles; the container would then last for its whole grace period.
    """
    signal.signal(signal.SIGTERM, _end)


class Signals:
    """From its making on, the given signals end `wait` and do nothing else, after `close` nothing. Main thread only.

    A signal that comes once more while the process ends must not end it badly, so nothing is put back.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        # A full buffer loses nothing: what is in it ends the wait all the same.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _nothing)

    def wait(self) -> frozenset[int]:
        """Wait until at least one came; all that came since the last call. Other handled signals may be among them."""
        return frozenset(self._reader.recv(4096))

    def close(self) -> None:
        """No further wait. The file descriptor may be another's after this, so the interpreter must forget it first."""
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler there must be: without one the signal would end the process, and write no byte."""

"""Messages between worker processes: JSON in one packet, large texts and tensors in sealed anonymous memory.

A message from an untrusted process is data only: JSON with a size limit, never pickle. Tensors travel as files
without a name (memfd), which need no space on a disk and vanish with the last process that holds them.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

INLINE_BYTES = 60_000  # bytes; fits the smallest socket buffer that Linux gives, so larger messages travel in memory
MESSAGE_BYTES = 256 << 20  # bytes; a larger message is refused
MAX_HANDLES = 64  # open files in one message

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_TIME = struct.Struct("qq")  # seconds, nanoseconds
_SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; the socket module does not know it

_F_ADD_SEALS = 1033
_F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE = 0x2, 0x4, 0x8

Message = dict[str, Any]
MAY_PAUSE = "may_pause"  # key of a request whose worker may ask to wait
PAUSE = b'{"says":"pause"}'  # the worker's question whether to wait


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelGarbled(Exception):
    """The other side sent something that is not a message."""


class ChannelTimeout(Exception):
    """No message came in time."""


class Channel:
    """One end of a packet socket; both ends have the same methods. Not thread-safe."""

    def __init__(self, handle: socket.socket) -> None:
        """Takes one end of a connected packet socket."""
        self._socket = handle
        self.sent_ns = 0  # time of sending the last message, by the kernel's CLOCK_REALTIME; after `ask_for_senders`
        self.sender = 0  # process id of the last message's sender, as the kernel knows it; after `ask_for_senders`

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Two connected ends."""
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return Channel(left), Channel(right)

    @staticmethod
    def from_handle(handle: int) -> Channel:
        """Takes over an open file descriptor."""
        return Channel(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=handle))

    def ask_for_senders(self) -> None:
        """Records for each message received from now on the process that sent it, and the time."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def fileno(self) -> int:
        """File descriptor of the socket, so that `select` can wait for it."""
        return self._socket.fileno()

    def send(self, message: Message, handles: Sequence[int] = ()) -> None:
        """Sends one message with open files; a long one in sealed memory of its own. Raises ChannelClosed."""
        self.send_text(json.dumps(message).encode(), handles)

    def send_text(self, body: bytes, handles: Sequence[int] = ()) -> None:
        """Sends one text with open files; raises ChannelClosed."""
        spilled = -1
        try:
            if len(body) > INLINE_BYTES:
                spilled = memory("message", len(body))
                _write_all(spilled, body)
                seal(spilled)
                self._send(b"S" + str(len(body)).encode(), [*handles, spilled])
            else:
                self._send(b"J" + body, handles)
        finally:
            if spilled >= 0:
                os.close(spilled)

    def _send(self, packet: bytes, handles: Sequence[int]) -> None:
        """Sends one packet with open files attached; raises ChannelClosed."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handles))] if handles else []
        try:
            self._socket.sendmsg([packet], rights)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None, *, limit_bytes: int = MESSAGE_BYTES) -> tuple[Message, list[int]]:
        """Returns the next message; see `receive_text`. Raises ChannelGarbled too if it is no JSON object."""
        text, handles = self.receive_text(timeout_s, limit_bytes=limit_bytes)
        try:
            return read_plain(text), handles
        except ChannelGarbled:
            close_all(handles)
            raise

    def receive_text(
        self, timeout_s: float | None = None, *, limit_bytes: int = MESSAGE_BYTES
    ) -> tuple[bytes, list[int]]:
        """Returns the next text, at most `limit_bytes` long, and its open files, which the caller now owns.

        Raises ChannelTimeout after `timeout_s`, ChannelClosed at the end, ChannelGarbled for anything malformed.
        """
        if timeout_s is not None and not self.ready(timeout_s):
            raise ChannelTimeout(f"no answer in {timeout_s:g} s")
        room = socket.CMSG_SPACE(MAX_HANDLES * array.array("i").itemsize) + socket.CMSG_SPACE(_CREDENTIALS.size)
        room += socket.CMSG_SPACE(_TIME.size)
        try:
            packet, rights, flags, _ = self._socket.recvmsg(INLINE_BYTES + 64, room, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        handles = _handles(rights)
        self.sender = _sender(rights)
        self.sent_ns = _sent_ns(rights)
        if not packet:
            close_all(handles)
            raise ChannelClosed("the other side is gone")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(handles)
            raise ChannelGarbled("a packet larger than allowed")
        try:
            return _decode(packet, handles, limit_bytes), handles
        except (ValueError, IndexError, OSError) as error:
            close_all(handles)
            raise ChannelGarbled(f"not a message: {error}") from error

    def ready(self, timeout_s: float) -> bool:
        """True if a message (or the end of the channel) arrives within `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        left_ms = max(0, int(1e3 * (deadline - time.monotonic()) + 0.999))
        return bool(poller.poll(left_ms))

    def close(self) -> None:
        """Closes the socket; the peer then reads an end."""
        self._socket.close()


def read_plain(text: bytes) -> Message:
    """The JSON object in a text; raises ChannelGarbled."""
    try:
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return message
    except (ValueError, RecursionError) as error:
        raise ChannelGarbled(f"not a message: {error}") from error


def memory(name: str, size: int) -> int:
    """Anonymous shared memory of `size` bytes, sealed against shrinking and growing, as an open file."""
    handle = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, size)
    fcntl.fcntl(handle, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    return handle


def seal(handle: int) -> None:
    """Makes shared memory read-only for every process, for good; raises OSError while a writable mapping is open."""
    fcntl.fcntl(handle, _F_ADD_SEALS, _F_SEAL_WRITE)


def map_memory(handle: int, size: int, *, writable: bool = False) -> mmap.mmap:
    """Maps the memory behind an open file; `size` > 0 bytes."""
    return mmap.mmap(handle, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)


def close_all(handles: Sequence[int]) -> None:
    """Closes file descriptors; ones already closed are ignored."""
    for handle in handles:
        with contextlib.suppress(OSError):
            os.close(handle)


def _handles(rights: list[tuple[int, int, bytes]]) -> list[int]:
    """The open files in a packet's control data."""
    found = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _sender(rights: list[tuple[int, int, bytes]]) -> int:
    """The sender's process id in a packet's control data, 0 if it has none."""
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0])
    return 0


def _sent_ns(rights: list[tuple[int, int, bytes]]) -> int:
    """The time of sending, in ns, in a packet's control data, 0 if it has none."""
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIME.size:
            seconds, nanoseconds = _TIME.unpack(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


def _decode(packet: bytes, handles: list[int], limit_bytes: int) -> bytes:
    """The text in a packet, or in the memory that it came with; raises ValueError."""
    if packet[:1] == b"J":
        return packet[1:]
    if packet[:1] == b"S":
        size = int(packet[1:])
        if size > limit_bytes:
            raise ValueError("larger than a message may be")
        spilled = handles.pop()
        try:
            return _read_all(spilled, size)
        finally:
            os.close(spilled)
    raise ValueError("unknown kind of packet")


def _read_all(handle: int, size: int) -> bytes:
    """Up to `size` bytes of an open file from its start."""
    parts: list[bytes] = []
    done = 0
    while done < size and (part := os.pread(handle, min(size - done, 1 << 24), done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)


def _write_all(handle: int, body: bytes) -> None:
    """Writes the bytes to an open file from its start."""
    view = memoryview(body)
    done = 0
    while done < len(view):
        done += os.pwrite(handle, view[done:], done)

# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 as no client would speak it: frames (RFC 9113) and headers (RFC 7541) written by hand, and sent without regard to
what the other side says."""

import select
import socket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACKNOWLEDGES = ENDS_STREAM = 1
ENDS_HEADERS = 4
STALLED_SECONDS = 0.3  # what is not taken for so long is not waited for
WINDOW = 65535  # RFC 9113, 6.9.2
FRAME_BYTES = 16384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", claims: int | None = None) -> bytes:
    """`claims`: a length that the payload need not have."""
    length = len(payload) if claims is None else claims
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def integer(value: int, bits: int) -> bytes:
    """With a prefix of so many bits, the others zero."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    encoded, value = bytearray([most]), value - most
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def literal(name: bytes, value: bytes) -> bytes:
    """A header that no table remembers."""
    return b"\0" + integer(len(name), 7) + name + integer(len(value), 7) + value


def call_headers(path: str) -> bytes:
    return b"".join(literal(name, value) for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"terrace"),
        (b"te", b"trailers"), (b"content-type", b"application/grpc")))


class Attacker:
    """A connection, and what came of it."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.setblocking(False)
        self.sent = 0

    def __enter__(self):
        return self

    def __exit__(self, *_raised) -> None:
        self.socket.close()

    def flood(self, pieces, most: int, reads: bool) -> str:
        """Sends until it has sent `most` bytes or all pieces, or is closed, or nothing is taken any more."""
        try:
            for piece in pieces:
                if not self.send(piece, reads):
                    return "not taken any more"
                if self.sent >= most:
                    break
        except (BrokenPipeError, ConnectionResetError):
            return "closed"
        return "taken"

    def send(self, piece: bytes, reads: bool) -> bool:
        rest = memoryview(piece)
        while rest:
            readable, writable, _ = select.select([self.socket] if reads else [], [self.socket], [], STALLED_SECONDS)
            if readable:
                self.receive()
            if not readable and not writable:
                return False
            if writable:
                try:
                    count = self.socket.send(rest[:1 << 18])
                except BlockingIOError:
                    continue
                self.sent += count
                rest = rest[count:]
        return True

    def receive(self) -> bytes:
        got = self.socket.recv(1 << 16)
        if not got:
            raise BrokenPipeError
        return got

    def send_unfinished(self, path: str, calls: int, size: int) -> str:
        """A message in each of so many calls, all but its last byte, as far as the windows allow."""
        streams = range(1, 2 * calls, 2)
        left = dict.fromkeys(streams, size + 4)  # 5 bytes come before a message
        windows = dict.fromkeys((0, *streams), 0)
        first = WINDOW  # of every stream, until the settings say otherwise
        windows[0] = WINDOW
        out = PREFACE + frame(SETTINGS, 0, 0) + b"".join(
            frame(HEADERS, ENDS_HEADERS, stream, call_headers(path)) for stream in streams)
        held = b""
        try:
            while left:
                for stream in left:
                    taken = size + 4 - left[stream]
                    room = min(first + windows[stream] - taken, windows[0], FRAME_BYTES, left[stream])
                    if room < 5 or len(out) > MOST_AT_ONCE:
                        continue
                    head = b"\0" + size.to_bytes(4, "big") if taken == 0 else b""
                    out += frame(DATA, 0, stream, head + b"x" * (room - len(head)))
                    left[stream] -= room
                    windows[0] -= room
                left = {stream: bytes_left for stream, bytes_left in left.items() if bytes_left >= 5}
                readable, writable, _ = select.select([self.socket], [self.socket] if out else [], [], STALLED_SECONDS)
                if not readable and not writable:
                    return "not taken any more"
                if writable:
                    count = self.socket.send(out)
                    self.sent += count
                    out = out[count:]
                if not readable:
                    continue
                held += self.receive()
                while len(held) >= 9 and len(held) >= 9 + int.from_bytes(held[:3], "big"):
                    end = 9 + int.from_bytes(held[:3], "big")
                    kind, flags, stream = held[3], held[4], int.from_bytes(held[5:9], "big")
                    payload, held = held[9:end], held[end:]
                    if kind == WINDOW_UPDATE:
                        windows[stream] += int.from_bytes(payload, "big")
                    elif kind == RESET:
                        left.pop(stream, None)
                    elif kind == PING and not flags & ACKNOWLEDGES:
                        out += frame(PING, ACKNOWLEDGES, 0, payload)
                    elif kind == SETTINGS and not flags & ACKNOWLEDGES:
                        out += frame(SETTINGS, ACKNOWLEDGES, 0)
                        for at in range(0, len(payload), 6):
                            if int.from_bytes(payload[at:at + 2], "big") == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                                first = int.from_bytes(payload[at + 2:at + 6], "big")
        except (BrokenPipeError, ConnectionResetError):
            return "closed"
        return "taken or reset"


MOST_AT_ONCE = 1 << 18

"""Event files as TensorBoard reads them, written without it.

A file is a sequence of records (length, its checksum, data, its checksum); the data of each is an Event message of
TensorFlow's event.proto, of which scalars need five fields.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from collections.abc import Mapping
from pathlib import Path

# Field numbers of Event, Summary, Summary.Value and SessionLog.
WALL_TIME, STEP, FILE_VERSION, SUMMARY, SESSION_LOG = 1, 2, 3, 5, 7
VALUE, TAG, SIMPLE_VALUE, STATUS = 1, 1, 2, 1
SESSION_START = 1

# The kinds of fields of protocol buffers.
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5


class EventFile:
    """Scalars by tag and step. ``first_step`` says that what other files of the directory have from there on is void:
    a training that goes on from a checkpoint makes those steps again."""

    def __init__(self, directory: Path, first_step: int = 0) -> None:
        # The name's number orders the files of a directory.
        name = f"events.out.tfevents.{time.time_ns() // 10**6}.{os.getpid()}.{secrets.token_hex(2)}"
        self.file = open(directory / name, "wb")  # noqa: SIM115 (closed by close)
        self._event(0, _field(FILE_VERSION, BYTES, b"brain.Event:2"))
        if first_step:
            self._event(first_step, _field(SESSION_LOG, BYTES, _field(STATUS, VARINT, SESSION_START)))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        values = b""
        for tag, number in scalars.items():
            value = _field(TAG, BYTES, tag.encode()) + _field(SIMPLE_VALUE, FOUR_BYTES, struct.pack("<f", number))
            values += _field(VALUE, BYTES, value)
        self._event(step, _field(SUMMARY, BYTES, values))

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()

    def _event(self, step: int, what: bytes) -> None:
        event = _field(WALL_TIME, EIGHT_BYTES, struct.pack("<d", time.time())) + _field(STEP, VARINT, step) + what
        length = struct.pack("<Q", len(event))
        self.file.write(length + _masked(length) + event + _masked(event))


def _field(number: int, kind: int, value: bytes | int) -> bytes:
    """One field of a message."""
    head = _varint(number << 3 | kind)
    if isinstance(value, int):
        return head + _varint(value)
    return head + (_varint(len(value)) if kind == BYTES else b"") + value


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have the highest bit set."""
    found = []
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The checksum with Castagnoli's polynomial, which is not that of zlib."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

"""Requests and Responses as bytes: one frame is a JSON header and the bits of the arrays behind it.

    frame  = length of the header (4 bytes, little endian) | header (UTF-8 JSON) | arrays, one after the other
    header = {..., "arrays": [[name, dtype, shape], ...]}

The bits of an array are little endian and in C order. Nothing in a frame is executed by whoever reads it, and any
language can read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, BinaryIO

import numpy as np

from lnverify.floats import FORMATS, FloatArray
from lnverify.protocol import Request, Response

TUPLES = {"normalized_shape", "wanted", "requires_grad", "changed", "aliases", "warnings"}


def write(stream: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, FloatArray] | None = None) -> None:
    """Write one frame and flush. Raises OSError where nobody reads any more."""
    arrays = arrays or {}
    listed = [[name, array.dtype, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": listed}).encode()
    stream.write(len(text).to_bytes(4, "little"))
    stream.write(text)
    for array in arrays.values():
        stream.write(np.ascontiguousarray(array.bits).astype(array.bits.dtype.newbyteorder("<"), copy=False).tobytes())
    stream.flush()


def read(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, FloatArray]]:
    """Read one frame. Raises EOFError where the stream ends before it does."""
    header = json.loads(_exactly(stream, int.from_bytes(_exactly(stream, 4), "little")))
    arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        kind = FORMATS[dtype].bits
        count = int(np.prod(shape, dtype=np.int64))
        raw = _exactly(stream, count * kind().itemsize)
        bits = np.frombuffer(raw, np.dtype(kind).newbyteorder("<")).astype(kind).reshape(shape)
        arrays[name] = FloatArray(dtype, bits)
    return header, arrays


def _exactly(stream: BinaryIO, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = stream.read(left)
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _plain(message: Request | Response) -> dict[str, Any]:
    """Every field but the arrays; eps in hexadecimal, so that no digit is lost."""
    header = {f.name: getattr(message, f.name) for f in fields(message) if f.name != "arrays"}
    if isinstance(message, Request):
        header["eps"], header["layouts"] = float(message.eps).hex(), dict(message.layouts)
    return header


def send(stream: BinaryIO, message: Request | Response) -> None:
    """Write a Request or a Response."""
    write(stream, _plain(message), message.arrays)


def request(header: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Request:
    """A Request from what was read."""
    return Request(arrays=arrays, **{**_tuples(header), "eps": float.fromhex(header["eps"])})


def response(header: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Response:
    """A Response from what was read."""
    return Response(arrays=arrays, **_tuples(header))


def _tuples(header: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if name in TUPLES else value for name, value in header.items()}

"""Content encodings taken off a body as it comes, in bounded pieces."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_PIECE = 1 << 20
_MOST_ENCODINGS = 3


class Unwrap:
    """Takes the content encodings off a body, in pieces of at most 1 MiB.

    A file that is itself gzip (`gzip_file`) and was sent with `Content-Encoding: gzip` was mostly packed once only,
    and the header is about the file: then the bytes are kept as they came.

    Raises:
        ValueError: an encoding that is not known here, or damaged data.
    """

    def __init__(self, encodings: str, *, gzip_file: bool) -> None:
        names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
        if len(names) > _MOST_ENCODINGS or any(name not in ("gzip", "x-gzip", "deflate") for name in names):
            raise ValueError("unknown encoding")
        self._layers = [_Inflate(deflate=name == "deflate") for name in reversed(names)]
        self._undecided = gzip_file and len(names) == 1 and names[0] != "deflate"
        self._held = b""
        self.kept = False
        """Whether the body stays gzip, as it came."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What is known after `data` came too."""
        if self._undecided:
            data = self._held = self._held + data
            start = _start_of_gzip(data)
            if start is not None and len(start) < 2 and len(data) < _PIECE:
                return
            self._decide(start)
        yield from self._through(data, self._layers)

    def finish(self) -> Iterator[bytes]:
        """The rest; damaged when a layer did not come to its end."""
        if self._undecided:
            held = self._held
            self._decide(_start_of_gzip(held))
            yield from self._through(held, self._layers)
        if not all(layer.whole for layer in self._layers):
            raise ValueError("cut")

    def _decide(self, start: bytes | None) -> None:
        self._undecided, self._held = False, b""
        if start != b"\x1f\x8b":
            self._layers = []
            self.kept = start is not None

    def _through(self, data: bytes, layers: list[_Inflate]) -> Iterator[bytes]:
        if not layers:
            yield data
            return
        for piece in layers[0].feed(data):
            yield from self._through(piece, layers[1:])


class _Inflate:
    """One layer of gzip (any number of members) or deflate (with its zlib header or, as many send it, without)."""

    def __init__(self, *, deflate: bool) -> None:
        self._deflate = deflate
        self._stream = None if deflate else zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._fed = False

    @property
    def whole(self) -> bool:
        return not self._fed or (self._stream is not None and self._stream.eof)

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._fed = self._fed or bool(data)
        if self._stream is None and data:
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        stream = self._stream
        full = False
        while stream is not None and (data or full):
            if stream.eof:
                if self._deflate or not data.strip(b"\0"):
                    return  # padding, or what others ignore as well
                stream = self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                piece = stream.decompress(data, _PIECE)
            except zlib.error as problem:
                raise ValueError("damaged") from problem
            data = stream.unused_data if stream.eof else stream.unconsumed_tail
            # A full piece may leave more inside the stream though all input was taken.
            full = len(piece) == _PIECE and not stream.eof
            if piece:
                yield piece


def _start_of_gzip(data: bytes) -> bytes | None:
    """The first two bytes inside, as far as they are known; None when this is not gzip, whatever the header says."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, 2)
    except zlib.error:
        return None

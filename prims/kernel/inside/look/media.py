"""Kinds of which only the first bytes are read: PDF, WAV, NumPy arrays."""

from __future__ import annotations

import re
import struct

from look.answer import Answer, one_line, short
from look.source import Source

_PDF_PART = 512 << 10  # at either end, where the root of the pages is


def pdf(answer: Answer, source: Source) -> None:
    """A PDF document; how many pages, where that stands in the open."""
    answer.kind = "pdf"
    data = source.at(0, _PDF_PART)
    data += source.at(max(len(data), source.size - _PDF_PART), _PDF_PART)
    version = re.match(rb"%PDF-(\d\.\d)", data)
    counts = [int(n) for n in re.findall(rb"/Type\s*/Pages\b[^<>]{0,300}?/Count\s+(\d{1,6})\b", data)]
    counts += [int(n) for n in re.findall(rb"/Count\s+(\d{1,6})\b[^<>]{0,300}?/Type\s*/Pages\b", data)]
    pages = f", {max(counts):,} page{'s' * (max(counts) != 1)}" if counts else ""
    answer.text = f"PDF {version[1].decode() if version else ''} document{pages}"


def wav(answer: Answer, source: Source) -> None:
    """Sound: how many channels, how fine, how long."""
    answer.kind, answer.text = "audio", "WAV audio"
    at, head = 12, source.head()
    rate = width = channels = speed = 0
    while at + 8 <= len(head):
        name, length = struct.unpack_from("<4sI", head, at)
        if name == b"fmt " and at + 24 <= len(head):
            _, channels, rate, speed, _, width = struct.unpack_from("<HHIIHH", head, at + 8)
        elif name == b"data" and speed:
            seconds = min(length, max(0, source.size - at - 8)) / speed
            answer.text = (
                f"WAV audio, {channels} channel{'s' * (channels != 1)}, {rate:,} Hz, {width} bit, {seconds:.2f} s"
            )
            return
        at += 8 + length + (length & 1)


def npy(answer: Answer, source: Source) -> None:
    """A NumPy array: its type and shape, as its header says."""
    head = source.head()
    length, at = struct.unpack_from("<H", head, 8)[0], 10
    if head[6] != 1:
        length, at = struct.unpack_from("<I", head, 8)[0], 12
    text = one_line(head[at : at + min(length, 1000)].decode("latin-1").strip())
    found = re.search(r"'descr': '([^']{1,40})'.*'shape': \(([\d, ]{0,100})\)", text)
    answer.text = f"NumPy array of {found[1]} with shape ({found[2]})" if found else f"NumPy array: {short(text, 200)}"

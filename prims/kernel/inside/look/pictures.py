"""Pictures: their size from the header, and a small copy that Pillow draws anew."""

from __future__ import annotations

import struct

from look.answer import Answer, Ask, size_of
from look.source import Source, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Decoded, four bytes a pixel, and once more while it is made smaller.
_MOST_PIXELS = 64_000_000
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "ICO")


def picture(answer: Answer, ask: Ask, source: Source, words: str) -> None:
    """A picture. The header is enough to describe it; only a preview decodes it."""
    answer.kind = "image"
    size = size_of_picture(source.head())
    if size:
        answer.width, answer.height = size
    if not ask.brief or size is None:
        try:
            _drawn(answer, ask, source)
        except Exception as error:  # Pillow has as many errors as formats
            if isinstance(error, MemoryError):
                raise
            answer.note(f"the picture cannot be shown: {type(error).__name__}: {error}")
    pixels = f", {answer.width:,} × {answer.height:,} pixels" if answer.width and answer.height else ""
    answer.text = f"{words}{pixels}"


def size_of_picture(head: bytes) -> tuple[int, int] | None:
    """Width and height, as the first bytes of the common formats say."""
    try:
        if head.startswith(b"\x89PNG"):
            width, height = struct.unpack_from(">II", head, 16)
        elif head.startswith(b"GIF8"):
            width, height = struct.unpack_from("<HH", head, 6)
        elif head.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", head, 18)
        elif head.startswith(b"\xff\xd8"):
            return _size_of_jpeg(head)
        else:
            return None
    except struct.error:
        return None
    return (width, abs(height)) if 0 < width < 1 << 31 and 0 < abs(height) < 1 << 31 else None


def _size_of_jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], struct.unpack_from(">H", head, at + 2)[0]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", head, at + 5)
            return (width, height) if width and height else None
        at += 2 + length
    return None


def _drawn(answer: Answer, ask: Ask, source: Source) -> None:
    ask.allow_layers()
    try:
        from PIL import Image, ImageOps  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        answer.note("showing it needs the package pillow")
        return
    Image.MAX_IMAGE_PIXELS = None  # judged below, where its size can be told
    image: Any = Image.open(Window(source), formats=_FORMATS)
    width, height = image.size
    answer.width, answer.height = width, height
    if ask.brief:
        return
    edge = ask.image_edge
    image.draft("RGB", (edge, edge))  # a JPEG is decoded at a fraction of its size, when that is enough
    if image.size[0] * image.size[1] > _MOST_PIXELS:
        answer.note(f"too many pixels to be shown: {width:,} × {height:,}")
        return
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = _in_eight_bits(image)
    if max(image.size) > edge:
        image = _colours(image)
        image.thumbnail((edge, edge))
    data, mime = _encoded(image, ask.image_bytes, lossless=answer.mime != "image/jpeg")
    if data is None:
        answer.note(f"it cannot be made smaller than {size_of(ask.image_bytes)}")
        return
    from binascii import b2a_base64

    answer.image, answer.image_mime = b2a_base64(data, newline=False).decode(), mime


def _colours(image: Any) -> Any:
    """In a mode that can be scaled smoothly."""
    if image.mode in ("RGB", "L", "RGBA", "LA"):
        return image
    return image.convert("RGBA" if "transparency" in image.info else "RGB")


def _in_eight_bits(image: Any) -> Any:
    """Grey values of more than eight bits are spread over what can be shown."""
    if image.mode.startswith(("I", "F")):
        image = image.convert("F")
        low, high = image.getextrema()
        scale = 255.0 / (high - low) if high > low else 0.0
        return image.point(lambda v: v * scale - low * scale).convert("L")
    return image.convert("RGB")


def _encoded(image: Any, most: int, *, lossless: bool) -> tuple[bytes | None, str]:
    """As PNG where that is small enough, else as JPEG, smaller and smaller."""
    from io import BytesIO

    def saved(picture: Any, **options: Any) -> bytes:
        out = BytesIO()
        picture.save(out, **options)
        return out.getvalue()

    if lossless:
        data = saved(_colours(image) if image.mode == "LA" else image, format="PNG")
        if len(data) <= most:
            return data, "image/png"
    image = _on_white(image)
    for quality in (85, 70, 50):
        data = saved(image, format="JPEG", quality=quality)
        if len(data) <= most:
            return data, "image/jpeg"
    while min(image.size) > 16:
        image = image.resize((image.width * 7 // 10, image.height * 7 // 10))
        data = saved(image, format="JPEG", quality=60)
        if len(data) <= most:
            return data, "image/jpeg"
    return None, ""


def _on_white(image: Any) -> Any:
    from PIL import Image

    if image.mode in ("RGBA", "LA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        image = white
    return image if image.mode == "L" else image.convert("RGB")

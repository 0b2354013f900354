"""Pictures: their size from the header, and a small copy that Pillow draws anew."""

from __future__ import annotations

import os
import re
import struct
from io import BytesIO

from look.answer import Answer, Ask, one_line, short, size_of
from look.source import Source, Unusable, Window, open_beneath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Decoded, four bytes a pixel, and once more while it is made smaller.
_MOST_PIXELS = 64_000_000
_MOST_MARKUP = 4 << 20
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
        except MemoryError:
            raise
        except Unusable as error:
            answer.note(str(error))
        except Exception as error:  # Pillow has as many errors as formats
            answer.note(f"the picture cannot be shown: {_words(error)}")
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
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        answer.note("showing it needs the package pillow")
        return
    Image.MAX_IMAGE_PIXELS = None  # judged below, where its size can be told
    image: Any = Image.open(Window(source), formats=_FORMATS)
    answer.width, answer.height = image.size
    if ask.brief:
        return
    small, mime = _small(image, ask.image_edge, ask.image_bytes, lossless=answer.mime != "image/jpeg")
    answer.image, answer.image_mime = _base64(small), mime


def redrawn(ask: Ask, name: str, room: int) -> dict[str, Any]:
    """The picture of that name within `room` bytes, or a note that says why not."""
    try:
        descriptor, size = open_beneath(ask.root, name)
        source = Source(descriptor, size)
        ask.allow_layers()
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = None
        if name.endswith(".svg"):
            file: Any = _rastered(source, ask)
        else:
            file = Window(source)
        image: Any = Image.open(file, formats=_FORMATS)
        data, mime = _small(image, ask.image_edge, room, lossless=image.format != "JPEG")
        with Image.open(BytesIO(data)) as copy:
            width, height = copy.size
    except ImportError as error:
        return {"image": None, "note": f"that needs the package {error.name}"}
    except MemoryError:
        return {"image": None, "note": "it takes too much memory"}
    except Unusable as error:
        return {"image": None, "note": one_line(short(str(error), 200))}
    except Exception as error:  # Pillow has as many errors as formats
        return {"image": None, "note": f"it cannot be read: {_words(error)}"}
    return {"image": _base64(data), "image_mime": mime, "width": width, "height": height}


def _words(error: Exception) -> str:
    what = "it is no picture, or of no kind that is known here"
    return what if type(error).__name__ == "UnidentifiedImageError" else one_line(short(str(error), 150))


def drawing(answer: Answer, ask: Ask, source: Source) -> None:
    """The picture of an SVG, beside its source."""
    if ask.brief or ask.offset:
        return
    ask.allow_layers()
    try:
        from PIL import Image

        image = Image.open(_rastered(source, ask), formats=_FORMATS)
        small, answer.image_mime = _small(image, ask.image_edge, ask.image_bytes, lossless=True)
        answer.image = _base64(small)
    except ImportError as error:
        answer.note(f"drawing it needs the package {error.name}")
    except MemoryError:
        raise
    except Exception as error:
        answer.note(f"it cannot be drawn: {_words(error)}")


def _rastered(source: Source, ask: Ask) -> BytesIO:
    """An SVG as a PNG, made in a process of its own: the renderer aborts where others raise."""
    import resvg_py  # type: ignore[import-not-found, unused-ignore]

    if source.size > _MOST_MARKUP:
        raise Unusable("there is too much of it")
    drawing = source.at(0, _MOST_MARKUP).decode("utf-8", "replace")
    width, height = _within(_size_of_drawing(drawing), ask.image_edge)
    fonts = [f"{layer}/matplotlib/mpl-data/fonts/ttf" for layer in ask.layers]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            png = resvg_py.svg_to_bytes(
                svg_string=drawing, width=width, height=height, dpi=96, background="white", skip_system_fonts=True,
                font_dirs=fonts, font_family="DejaVu Sans", sans_serif_family="DejaVu Sans",
                serif_family="DejaVu Serif", monospace_family="DejaVu Sans Mono",
            )  # fmt: skip
            with open(writer, "wb") as file:
                file.write(bytes(png))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        png = file.read()
    os.waitpid(child, 0)
    if not png:
        raise Unusable("the drawing is not valid")
    return BytesIO(png)


def _size_of_drawing(drawing: str) -> tuple[float, float]:
    """Width and height of an SVG in its own units, as its first tag says."""
    tag = re.search(r"<(?:\w+:)?svg\b[^>]{0,4000}", drawing)
    if tag is None:
        raise Unusable("there is no drawing in it")
    named = dict(re.findall(r"""\b(width|height|viewBox)\s*=\s*["']([^"']{1,80})["']""", tag[0]))
    box = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", named.get("viewBox", ""))]
    lengths = {name: re.fullmatch(r"\s*([\d.]+)\s*(px|pt|mm|cm|in)?\s*", named.get(name, "")) for name in named}
    units = {"px": 1.0, "pt": 4 / 3, "mm": 96 / 25.4, "cm": 96 / 2.54, "in": 96.0, None: 1.0}
    found = [float(m[1]) * units[m[2]] if (m := lengths.get(name)) else 0.0 for name in ("width", "height")]
    if len(box) == 4 and box[2] > 0 and box[3] > 0:
        if not found[0]:
            found[0] = found[1] * box[2] / box[3] if found[1] else box[2]
        found[1] = found[1] or found[0] * box[3] / box[2]
    return found[0] or 300.0, found[1] or 150.0


def _within(size: tuple[float, float], edge: int) -> tuple[int, int]:
    """Pixels for a drawing of some size: enough to be read, and no more than `edge`."""
    longer = max(size)
    scale = min(max(1.0, 600 / longer), edge / longer)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _base64(data: bytes) -> str:
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode()


def _small(image: Any, edge: int, most: int, *, lossless: bool) -> tuple[bytes, str]:
    """A picture within so many pixels and bytes, encoded anew, and its type.

    Raises:
        Unusable: it cannot be made so; Pillow raises much else.
    """
    from PIL import ImageOps  # type: ignore[import-not-found, unused-ignore]

    width, height = image.size
    image.draft("RGB", (edge, edge))  # a JPEG is decoded at a fraction of its size, when that is enough
    if image.size[0] * image.size[1] > _MOST_PIXELS:
        raise Unusable(f"too many pixels to be shown: {width:,} × {height:,}")
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        image = _in_eight_bits(image)
    if max(image.size) > edge:
        image = _colours(image)
        image.thumbnail((edge, edge))
    data, mime = _encoded(image, most, lossless=lossless)
    if data is None:
        raise Unusable(f"it cannot be made smaller than {size_of(most)}")
    return data, mime


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

    def saved(picture: Any, **options: Any) -> bytes:
        out = BytesIO()
        picture.save(out, **options)
        return out.getvalue()

    if lossless:
        data = saved(_colours(image) if image.mode == "LA" else image, format="PNG")
        if len(data) <= most:
            return data, "image/png"
        if len(data) <= 6 * most:  # a drawing: with fewer colours its lines stay sharp
            data = saved(_on_white(image).quantize(256), format="PNG")
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

"""Pictures, sound, films and formulas: of what type and how large they are."""

from __future__ import annotations

import base64
import io
import struct
import sys
from typing import Any

from prims_kernel.twins import Twin
from prims_kernel.twins.words import short, size

_MOST_LATEX = 1000
_SMALL = 1568


def describe(value: Any) -> Twin | None:
    """A picture of Pillow, what IPython plays, or a formula of sympy."""
    display = sys.modules.get("IPython.display")
    pillow = sys.modules.get("PIL.Image")
    sympy = sys.modules.get("sympy")
    if pillow is not None and isinstance(value, pillow.Image):
        text = f"Picture of Pillow: {value.width} x {value.height} pixels, mode {short(value.mode, 10)}"
        return Twin(text, summary=True, more=_as_png(value), without=("image/jpeg",))
    if display is not None and isinstance(value, display.Audio):
        return _audio(value)
    if display is not None and isinstance(value, display.Video):
        return _video(value)
    if sympy is not None and hasattr(value, "_repr_latex_"):
        return _formula(value)
    return None


def _as_png(picture: Any) -> dict[str, Any]:
    """The form of a picture whose mode no PNG has: colours as RGB, and numbers as greys from the least to the most."""
    if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        return {}
    if picture.mode in ("I", "F"):
        low, high = picture.getextrema()
        scale = 255 / (high - low) if high > low else 0
        picture = picture.convert("F").point(lambda value: value * scale - low * scale).convert("L")
    file = io.BytesIO()
    picture.convert("RGBA" if picture.mode in ("PA", "La", "RGBa") else "RGB").save(file, "PNG")
    return {"image/png": base64.b64encode(file.getvalue()).decode("ascii")}


def smaller(data: Any) -> str:
    """A picture in base64, smaller. Raises whatever Pillow does, and KeyError without it."""
    raw = base64.b64decode(data) if isinstance(data, str) else data
    picture = sys.modules["PIL.Image"].open(io.BytesIO(raw))
    picture.thumbnail((_SMALL, _SMALL))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _audio(value: Any) -> Twin | None:
    data = value.data
    if not isinstance(data, bytes) or not data:
        return Twin(f"Audio from {short(value.src_attr(), 300)}", summary=True) if value.url else None
    kind = str(value.mimetype or "audio/wav")
    seconds = _seconds(data)
    length = f", {seconds}" if seconds else ""
    return Twin(f"Audio, {kind}{length}, {size(len(data))}", summary=True)


def _seconds(data: bytes) -> str:
    """How long a WAV file plays, and how it is made."""
    import wave

    try:
        with wave.open(io.BytesIO(data)) as sound:
            rate, channels = sound.getframerate(), sound.getnchannels()
            return f"{sound.getnframes() / rate:.2f} s, {rate:,} Hz, {channels} channel{'s' * (channels != 1)}"
    except (wave.Error, EOFError, ZeroDivisionError, struct.error):
        return ""


def _video(value: Any) -> Twin | None:
    data = value.data
    if not value.embed or data is None:
        return Twin(f"Video from {short(value.url or value.filename or data, 300)}", summary=True)
    if isinstance(data, str):
        data = base64.b64decode(data)
    kind = str(value.mimetype or "video/mp4")
    return Twin(f"Video, {kind}, {size(len(data))}", summary=True)


def _formula(value: Any) -> Twin | None:
    latex = value._repr_latex_()
    if not isinstance(latex, str):
        return None
    text = str(value)
    told = f"{text}\n{latex}" if len(latex) <= _MOST_LATEX and latex.strip("$ ") != text else text
    return Twin(told, without=("image/png",))  # small letters, as `init_printing` draws them

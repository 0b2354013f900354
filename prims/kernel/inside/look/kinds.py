"""What a file seems to be, by its first bytes and its name."""

from __future__ import annotations

# Where, what, MIME type, for people.
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png", "PNG image"),
    (0, b"\xff\xd8\xff", "image/jpeg", "JPEG image"),
    (0, b"GIF87a", "image/gif", "GIF image"),
    (0, b"GIF89a", "image/gif", "GIF image"),
    (8, b"WEBP", "image/webp", "WebP image"),
    (0, b"II*\0", "image/tiff", "TIFF image"),
    (0, b"MM\0*", "image/tiff", "TIFF image"),
    (0, b"\0\0\1\0", "image/x-icon", "icon"),
    (0, b"BM", "image/bmp", "BMP image"),
    (0, b"%PDF-", "application/pdf", "PDF document"),
    (0, b"PK\x03\x04", "application/zip", "ZIP archive"),
    (0, b"PK\x05\x06", "application/zip", "ZIP archive"),
    (0, b"\x1f\x8b", "application/gzip", "gzip data"),
    (4, b"1AY&SY", "application/x-bzip2", "bzip2 data"),
    (0, b"\xfd7zXZ\0", "application/x-xz", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd", "Zstandard data"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed", "7-Zip archive"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar", "RAR archive"),
    (257, b"ustar", "application/x-tar", "tar archive"),
    (0, b"PAR1", "application/vnd.apache.parquet", "Parquet table"),
    (0, b"ARROW1", "application/vnd.apache.arrow.file", "Arrow table"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5", "HDF5 data"),
    (0, b"\x93NUMPY", "application/x-npy", "NumPy array"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3", "SQLite database"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage", "old Microsoft Office document"),
    (0, b"\x7fELF", "application/x-elf", "ELF program or library"),
    (0, b"MZ", "application/vnd.microsoft.portable-executable", "Windows program"),
    (0, b"\xca\xfe\xba\xbe", "application/java-vm", "Java class"),
    (0, b"\0asm", "application/wasm", "WebAssembly module"),
    (8, b"WAVE", "audio/wav", "WAV audio"),
    (8, b"AVI ", "video/x-msvideo", "AVI video"),
    (0, b"ID3", "audio/mpeg", "MP3 audio"),
    (0, b"\xff\xfb", "audio/mpeg", "MP3 audio"),
    (0, b"fLaC", "audio/flac", "FLAC audio"),
    (0, b"OggS", "audio/ogg", "Ogg media"),
    (4, b"ftypM4A", "audio/mp4", "M4A audio"),
    (4, b"ftypavif", "image/avif", "AVIF image"),
    (4, b"ftypheic", "image/heic", "HEIC image"),
    (4, b"ftypqt", "video/quicktime", "QuickTime video"),
    (4, b"ftyp", "video/mp4", "MP4 video"),
    (0, b"\x1aE\xdf\xa3", "video/webm", "WebM or Matroska video"),
    (0, b"wOFF", "font/woff", "WOFF font"),
    (0, b"wOF2", "font/woff2", "WOFF2 font"),
    (0, b"\0\1\0\0\0", "font/ttf", "TrueType font"),
    (0, b"OTTO", "font/otf", "OpenType font"),
    (0, b"\x80\x04\x95", "application/x-python-pickle", "Python pickle"),
    (0, b"\x80\x05\x95", "application/x-python-pickle", "Python pickle"),
)
_RIFF = ("image/webp", "audio/wav", "video/x-msvideo")

TEXTS = {
    "txt": "text/plain", "log": "text/plain", "md": "text/markdown", "rst": "text/x-rst", "py": "text/x-python",
    "html": "text/html", "htm": "text/html", "xml": "application/xml", "svg": "image/svg+xml", "css": "text/css",
    "js": "text/javascript", "ts": "text/x-typescript", "sql": "application/sql", "yaml": "application/yaml",
    "yml": "application/yaml", "toml": "application/toml", "ini": "text/plain", "cfg": "text/plain",
    "sh": "application/x-sh", "tex": "application/x-tex", "c": "text/x-c", "h": "text/x-c", "r": "text/x-r",
    "rtf": "application/rtf", "ics": "text/calendar", "vcf": "text/vcard", "eml": "message/rfc822",
}  # fmt: skip
TABLES = {"csv": "text/csv", "tsv": "text/tab-separated-values", "tab": "text/tab-separated-values"}
LINES = {"jsonl": "application/x-ndjson", "ndjson": "application/x-ndjson"}
JSONS = {"json": "application/json", "geojson": "application/geo+json", "ipynb": "application/x-ipynb+json"}
PACKINGS = {"application/gzip": "gzip", "application/x-bzip2": "bzip2", "application/x-xz": "xz"}


def magic_of(head: bytes) -> tuple[str, str] | None:
    """MIME type and words for what begins with `head`; None when it is nothing known."""
    for at, magic, mime, words in _MAGIC:
        if head.startswith(magic, at) and (mime not in _RIFF or head.startswith(b"RIFF")):
            if magic == b"BM" and head[6:10] != b"\0\0\0\0":
                continue  # two letters alone are too little
            return mime, words
    return None


def suffix_of(name: str) -> str:
    """What follows the last dot of a name, without that of a packing."""
    stem, dot, suffix = name.rpartition(".")
    if suffix in ("gz", "bz2", "xz") and dot:
        stem, dot, suffix = stem.rpartition(".")
    return suffix if dot else ""

"""A call's requirements, read before anything runs: which are taken, which are refused and why.

Pure and synchronous. Whatever passes here goes to an installer's input file, one entry a line, so an entry
can be nothing but a name, extras, versions and a marker: options, paths, URLs and line breaks end here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from prims.errors import Refused

MAX_ENTRIES = 100
MAX_CHARS = 300

_OPTION = re.compile(r"^-|\s-")
_URL = re.compile(r"://|@|^(?:git|hg|svn|bzr)\+|^file:", re.IGNORECASE)
_PATH = re.compile(r"[/\\]|^\.|^~(?!=)|^[a-z]:", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(?:whl|tar\.gz|tgz|zip|egg|tar\.bz2)$", re.IGNORECASE)

# A block of metadata in comments, as PEP 723 has it.
_SCRIPT = re.compile(r"^# /// script$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$", re.M)

# Modules whose distribution has another name. Where several distributions carry a module, the one that works
# without a screen and from a wheel is named.
_DISTRIBUTIONS = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "Cryptodome": "pycryptodomex",
    "MySQLdb": "mysqlclient",
    "OpenGL": "PyOpenGL",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "Xlib": "python-xlib",
    "absl": "absl-py",
    "ahocorasick": "pyahocorasick",
    "allel": "scikit-allel",
    "antlr4": "antlr4-python3-runtime",
    "apiclient": "google-api-python-client",
    "attr": "attrs",
    "azure.identity": "azure-identity",
    "azure.storage.blob": "azure-storage-blob",
    "barcode": "python-barcode",
    "bidi": "python-bidi",
    "bs4": "beautifulsoup4",
    "bson": "pymongo",
    "cairo": "pycairo",
    "community": "python-louvain",
    "consul": "python-consul",
    "crontab": "python-crontab",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dbus": "dbus-python",
    "decouple": "python-decouple",
    "discord": "discord.py",
    "dns": "dnspython",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "elftools": "pyelftools",
    "enchant": "pyenchant",
    "engineio": "python-engineio",
    "factory": "factory-boy",
    "faiss": "faiss-cpu",
    "ffmpeg": "ffmpeg-python",
    "fitz": "PyMuPDF",
    "fpdf": "fpdf2",
    "gi": "PyGObject",
    "git": "GitPython",
    "github": "PyGithub",
    "gitlab": "python-gitlab",
    "google.auth": "google-auth",
    "google.cloud.bigquery": "google-cloud-bigquery",
    "google.cloud.firestore": "google-cloud-firestore",
    "google.cloud.storage": "google-cloud-storage",
    "google.genai": "google-genai",
    "google.generativeai": "google-generativeai",
    "google.oauth2": "google-auth",
    "google.protobuf": "protobuf",
    "googleapiclient": "google-api-python-client",
    "graphql": "graphql-core",
    "grpc": "grpcio",
    "grpc_tools": "grpcio-tools",
    "gym": "gymnasium",
    "hydra": "hydra-core",
    "imblearn": "imbalanced-learn",
    "jose": "python-jose",
    "jpype": "JPype1",
    "jwt": "PyJWT",
    "kafka": "kafka-python",
    "ldap": "python-ldap",
    "magic": "python-magic",
    "markdown_it": "markdown-it-py",
    "memcache": "python-memcached",
    "mpl_finance": "mplfinance",
    "mpl_toolkits": "matplotlib",
    "mpl_toolkits.basemap": "basemap",
    "multipart": "python-multipart",
    "mysql": "mysql-connector-python",
    "mysql.connector": "mysql-connector-python",
    "nacl": "PyNaCl",
    "nmap": "python-nmap",
    "odf": "odfpy",
    "opentelemetry": "opentelemetry-api",
    "osgeo": "GDAL",
    "paho": "paho-mqtt",
    "pandas_profiling": "ydata-profiling",
    "past": "future",
    "pdfminer": "pdfminer.six",
    "pkg_resources": "setuptools",
    "playhouse": "peewee",
    "pptx": "python-pptx",
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "pwn": "pwntools",
    "pybel": "openbabel-wheel",
    "pylab": "matplotlib",
    "pypandoc": "pypandoc-binary",
    "pywt": "PyWavelets",
    "pyximport": "Cython",
    "qrcode": "qrcode[pil]",
    "rapidjson": "python-rapidjson",
    "rest_framework": "djangorestframework",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "shapefile": "pyshp",
    "skbio": "scikit-bio",
    "skfuzzy": "scikit-fuzzy",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skmisc": "scikit-misc",
    "skopt": "scikit-optimize",
    "skrf": "scikit-rf",
    "sksurv": "scikit-survival",
    "slugify": "python-slugify",
    "snappy": "python-snappy",
    "snowflake": "snowflake-connector-python",
    "socketio": "python-socketio",
    "socks": "PySocks",
    "speech_recognition": "SpeechRecognition",
    "stdnum": "python-stdnum",
    "stl": "numpy-stl",
    "surprise": "scikit-surprise",
    "talib": "TA-Lib",
    "telebot": "pyTelegramBotAPI",
    "telegram": "python-telegram-bot",
    "tlz": "toolz",
    "umap": "umap-learn",
    "usb": "pyusb",
    "vlc": "python-vlc",
    "websocket": "websocket-client",
    "whois": "python-whois",
    "wx": "wxPython",
    "yaml": "PyYAML",
    "youtube_dl": "yt-dlp",
    "zmq": "pyzmq",
}
_BY_LOWER_NAME = {module.lower(): name for module, name in _DISTRIBUTIONS.items()}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a call asked for. `ignored` are entries of the standard library, which every run has anyway."""

    requirements: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def parse(requirements: Sequence[str]) -> Parsed:
    """Read PEP 508 entries: normalised, each once, sorted. Blank ones and those with a false marker go.

    Raises:
        Refused: an entry is an option, a path, a URL, malformed or too long; the message names it.
    """
    if len(requirements) > MAX_ENTRIES:
        raise Refused(
            f"requirements has {len(requirements)} entries; at most {MAX_ENTRIES} are taken. "
            "List only the packages that the code imports: what they depend on comes by itself."
        )
    taken: set[str] = set()
    ignored: set[str] = set()
    for entry in requirements:
        if not entry.strip():
            continue
        _check_form(entry)
        name, normal = _normalise(entry)
        if name.lower() == "python":
            _check_python(entry.strip()[len(name) :], f"The requirement {shown(entry)} wants")
            ignored.add(name)
        elif _is_standard(name):
            ignored.add(name)
        elif normal:
            taken.add(normal)
    return Parsed(tuple(sorted(taken)), tuple(sorted(ignored)))


def inline(code: str) -> list[str]:
    """The packages that a script says it needs, in its PEP 723 metadata (`# /// script`).

    Raises:
        Refused: the metadata cannot be read, or wants another Python than this.
    """
    blocks = list(_SCRIPT.finditer(code))
    if not blocks:
        return []
    if len(blocks) > 1:
        raise Refused("The code has more than one block of script metadata (# /// script); leave one.")
    lines = blocks[0]["content"].splitlines()
    try:
        found = tomllib.loads("\n".join(line[2:] for line in lines))
    except tomllib.TOMLDecodeError as problem:
        raise Refused(f"The script metadata (# /// script) is no TOML: {problem}.") from problem
    wanted = found.get("dependencies", [])
    if not isinstance(wanted, list) or not all(isinstance(entry, str) for entry in wanted):
        raise Refused("`dependencies` in the script metadata (# /// script) must be a list of texts.")
    _check_python(found.get("requires-python", ""), "The script metadata wants")
    return wanted


def _check_python(wanted: object, who: str) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    here = ".".join(map(str, sys.version_info[:3]))
    try:
        fits = SpecifierSet(str(wanted)).contains(here, prereleases=True)
    except InvalidSpecifier as problem:
        raise Refused(f"{who} a Python by words that cannot be read: {problem}.") from problem
    if not fits:
        raise Refused(f"{who} Python {str(wanted)[:100]}, and code runs on {here} here.")


def distribution_for(module: str) -> str | None:
    """The distribution that carries a module of another name (`cv2` → `opencv-python-headless`), if known.

    Of a dotted name the longest known beginning counts; case does not matter, and neither does `-` for `_`.
    """
    name = module.replace("-", "_")
    while name:
        if found := _DISTRIBUTIONS.get(name) or _BY_LOWER_NAME.get(name.lower()):
            return None if found == module else found
        name = name.rpartition(".")[0]
    return None


def name_of(requirement: str) -> str:
    """The normal form of the name in a requirement or pin; empty when there is none."""
    match = re.match(r"\s*([\w.-]+)", requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def shown(entry: str, length: int = 80) -> str:
    """The entry for a message: on one line, without control characters, shortened."""
    return repr(entry if len(entry) <= length else entry[: length - 1] + "…")


def _check_form(entry: str) -> None:
    """Refuse what is no plain requirement, before a parser sees it."""
    if len(entry) > MAX_CHARS:
        raise Refused(
            f"The requirement {shown(entry)} is longer than {MAX_CHARS} characters; give a name and versions."
        )
    if not entry.strip().isprintable():
        raise Refused(
            f"The requirement {shown(entry)} holds a line break or control character; "
            'give each package its own entry, like ["pandas", "six>=1.16"].'
        )
    text = entry.strip()
    if _OPTION.search(text):
        raise Refused(
            f"The requirement {shown(entry)} holds an installer option; options are not taken here. "
            "Give package names and versions only; the operator of this server chooses the package index."
        )
    plain = text.partition(";")[0].strip()
    if _URL.search(plain):
        raise Refused(
            f"The requirement {shown(entry)} points to a URL or repository; "
            'only packages of the package index are taken, by name, like "six" or "six>=1.16".'
        )
    if _PATH.search(plain) or _ARCHIVE.search(plain):
        raise Refused(
            f"The requirement {shown(entry)} is a file or folder; "
            'only packages of the package index are taken, by name, like "six" or "six>=1.16".'
        )


def _normalise(entry: str) -> tuple[str, str | None]:
    """The name as written, and the entry in its normal form: None when its marker does not hold here."""
    # Imported here: packaging costs milliseconds, and most calls bring no requirements.
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import InvalidName, canonicalize_name

    try:
        requirement = Requirement(entry.strip())
        canonicalize_name(requirement.name, validate=True)
        holds = requirement.marker is None or requirement.marker.evaluate()
    except (InvalidRequirement, InvalidName, UndefinedComparison, UndefinedEnvironmentName) as e:
        raise Refused(
            f"The requirement {shown(entry)} cannot be read as a package with optional versions. "
            'Give each package its own entry, like ["pandas", "six>=1.16", "uvicorn[standard]==0.30.*"].'
        ) from e
    if requirement.url:
        raise Refused(f"The requirement {shown(entry)} points to a URL; only names and versions are taken.")
    extras = ",".join(sorted(canonicalize_name(extra) for extra in requirement.extras))
    name = canonicalize_name(requirement.name) + (f"[{extras}]" if extras else "")
    normal = f"{name}{requirement.specifier}"
    return requirement.name, normal if holds else None


def _is_standard(name: str) -> bool:
    """Whether a name is the standard library's ("json", "os.path").

    Models list them often. Their namesakes on the package index are abandoned backports or squatters that at
    best do nothing and at worst shadow the real module.
    """
    return name.partition(".")[0].lower() in _STANDARD


_STANDARD = frozenset(name.lower() for name in sys.stdlib_module_names)

"""What a call may ask for, and how it is told when it may not."""

from __future__ import annotations

import sys
import time

import pytest

from prims.config import Settings
from prims.errors import Refused
from prims.policy import admit
from prims.requirements import MAX_CHARS, MAX_ENTRIES, Parsed, distribution_for, parse


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["six"], ("six",)),
        (["  Six "], ("six",)),
        (["six", "SIX", "six"], ("six",)),
        (["b", "a"], ("a", "b")),
        (["scikit_learn", "ruamel.yaml"], ("ruamel-yaml", "scikit-learn")),
        (["pandas >= 1.5 , < 3"], ("pandas<3,>=1.5",)),
        (["uvicorn[standard]==0.30.*"], ("uvicorn[standard]==0.30.*",)),
        (["x[b,A]"], ("x[a,b]",)),
        (["numpy!=2.0.0,~=2.0"], ("numpy!=2.0.0,~=2.0",)),
        (["cv2"], ("cv2",)),
        (["torch==2.4.0+cpu"], ("torch==2.4.0+cpu",)),
        (['six; python_version >= "3"'], ("six",)),
        (['six; python_version < "3"'], ()),
        (['pywin32; sys_platform == "win32"', "six"], ("six",)),
        (["", "  "], ()),
        ([], ()),
    ],
)
def test_good_entries_come_out_normalised_sorted_and_once(given: list[str], taken: tuple[str, ...]) -> None:
    assert parse(given) == Parsed(taken, ())


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ("--index-url=http://127.0.0.1:9/simple", "option"),
        ("-r/etc/hostname", "option"),
        ("-e .", "option"),
        ("six --extra-index-url http://127.0.0.1:9/simple", "option"),
        ("six\t--pre", "control character"),
        ("six\n--pre", "line break"),
        ("six\r", None),
        ("six\x00", "control character"),
        ("six\u2028os", "line break"),
        ("s\u200bix", "control character"),
        ("six\ud800", "control character"),
        ("git+https://127.0.0.1/x.git@--upload-pack=touch%20/tmp/x", "URL"),
        ("https://example.org/six.whl", "URL"),
        ("evil @ file:///etc", "URL"),
        ("evil@https://example.org/x.zip", "URL"),
        ("../../some/local/dir", "file or folder"),
        ("./six", "file or folder"),
        ("/etc", "file or folder"),
        (".", "file or folder"),
        ("~/six", "file or folder"),
        ("C:\\six", "file or folder"),
        ("six-1.17.0-py2.py3-none-any.whl", "file or folder"),
        ("six.tar.gz", "file or folder"),
        ("pandas==", "cannot be read"),
        ("pandas=1.0", "cannot be read"),
        ("SIX_", "cannot be read"),
        ("numpy pandas", "own entry"),
        ("numpy, pandas", "own entry"),
        ("наука", "cannot be read"),
        ("six; nonsense", "cannot be read"),
        ("six # comment", "cannot be read"),
        ("x" * (MAX_CHARS + 1), "longer than"),
        ("python==2.7", "code runs on"),
    ],
)
def test_bad_entries_are_refused_by_name(entry: str, word: str | None) -> None:
    if word is None:
        # Blanks around an entry are nobody's attack.
        assert parse([entry]).requirements == ("six",)
        return
    with pytest.raises(Refused) as caught:
        parse(["numpy", entry])
    message = str(caught.value)
    assert word in message
    assert repr(entry[:10])[1:6] in message
    assert message.isprintable()
    assert len(message) < 500


def test_a_list_that_is_too_long_is_refused() -> None:
    parse([f"x{n}" for n in range(MAX_ENTRIES)])
    with pytest.raises(Refused, match=f"{MAX_ENTRIES + 1} entries"):
        parse([f"x{n}" for n in range(MAX_ENTRIES + 1)])


def test_the_standard_library_is_ignored_and_named() -> None:
    parsed = parse(["json", "os", "asyncio", "six", "os.path", "JSON==2.0", "sqlite3"])
    assert parsed.requirements == ("six",)
    assert set(parsed.ignored) == {"JSON", "asyncio", "json", "os", "os.path", "sqlite3"}
    assert parse(["python>=3.9", "Python"]).requirements == ()


@pytest.mark.parametrize(
    ("code", "taken"),
    [
        ("!pip install -q six > /dev/null 2>&1", "six"),
        ("%pip install six  # it's old", "six"),
        ("!pip3 install six && echo done", "six"),
        ("!pip install six | tail -1", "six"),
        ("!{sys.executable} -m pip install six attrs;ls", "attrs six"),
        ("found = !sudo python3 -m pip --quiet install six", "six"),
        ("!uv pip install --system six", "six"),
        ("%pip install \\\n  six \\\n  attrs\n", "attrs six"),
        ("%pip install 'six >= 1.15' \"uvicorn[standard]<1\"", "six>=1.15 uvicorn[standard]<1"),
        ("%pip install -r requirements.txt --trusted-host pypi.org -t libs six", "six"),
        ("%%bash\npip install six\nls\n", "six"),
        ("subprocess.check_call([sys.executable, '-m', 'pip', 'install', '-U', 'six', name])", "six"),
        ("subprocess.run(['pip', 'install',\n 'uvicorn[standard]', '-r', 'more.txt'])", "uvicorn[standard]"),
        ('os.system(f"{sys.executable} -m pip install six {more}")', "six"),
        ("pip.main(['install', 'six'])", "six"),
        ("# !pip install six\n# subprocess.run(['pip', 'install', 'six'])\nx = 1", ""),
        ("print('pip install six')", ""),
        ('def f():\n    """pip install six"""', ""),
        ("%pip uninstall six", ""),
        ("%pip install git+https://example.org/six.git ./six", ""),
    ],
)
def test_packages_that_code_asks_pip_for_are_had_before_it_runs(code: str, taken: str) -> None:
    assert " ".join(admit(Settings(), code).request.requirements) == taken


@pytest.mark.parametrize("piece", [" ", "run(", '"pip","install",', "pip -a ", "!x -m ", "main(['install',", "\\\n"])
def test_code_of_the_largest_size_is_read_in_a_moment(piece: str) -> None:
    begun = time.process_time()
    admit(Settings(), "x = 1\n!pip install six\n" + piece * (190_000 // len(piece)))
    assert time.process_time() - begun < 30  # what was read again and again would take minutes


@pytest.mark.parametrize(
    ("module", "distribution"),
    [
        ("cv2", "opencv-python-headless"),
        ("PIL", "pillow"),
        ("pil", "pillow"),
        ("PIL.Image", "pillow"),
        ("sklearn.linear_model", "scikit-learn"),
        ("yaml", "PyYAML"),
        ("bs4", "beautifulsoup4"),
        ("Crypto", "pycryptodome"),
        ("mpl-toolkits", "matplotlib"),
        ("pandas", None),
        ("nosuchmodule", None),
    ],
)
def test_modules_of_another_name_are_known(module: str, distribution: str | None) -> None:
    assert distribution_for(module) == distribution


def test_reading_requirements_imports_no_installer() -> None:
    import subprocess

    code = (
        "import sys, prims.requirements, prims.kernel.environment;"
        "print([m for m in ('uv', 'virtualenv', 'packaging') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"

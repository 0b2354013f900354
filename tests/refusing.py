"""Becomes a program that is refused what some machines refuse: `python -I -S refusing.py WHAT[,WHAT] PROGRAM...`.

"namespaces" is what Docker's default profile refuses of what bubblewrap does; "landlock" stands for a kernel without.
Standard library only: other users' interpreters run it. x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

LOAD, EQUAL, ANY_OF, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x50001, 0x50026
NEW_NAMESPACES = 0x7E020000

# By machine: clone, and unshare, mount, umount2, pivot_root, setns, mount_setattr, open_tree, move_mount, fsopen.
CALLS = {
    "x86_64": (56, (272, 165, 166, 155, 308, 442, 428, 429, 430)),
    "aarch64": (220, (97, 40, 39, 41, 268, 442, 428, 429, 430)),
}
CLONE3, LANDLOCK = 435, (444, 445, 446)


def program(what: list[str]) -> bytes:
    clone, refused = CALLS[os.uname().machine]
    answers = {number: ENOSYS for number in LANDLOCK if "landlock" in what}
    code = [(LOAD, 0, 0, 0)]
    if "namespaces" in what:
        answers |= dict.fromkeys(refused, EPERM) | {CLONE3: ENOSYS}
    for number, answer in answers.items():
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, answer)]
    if "namespaces" in what:
        code += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, 16), (ANY_OF, 0, 1, NEW_NAMESPACES), (RETURN, 0, 0, EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in [*code, (RETURN, 0, 0, ALLOW)])


def main() -> None:
    filter = program(sys.argv[1].split(","))
    buffer = ctypes.create_string_buffer(filter, len(filter))
    fprog = struct.pack("HxxxxxxP", len(filter) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((38, 1, 0, 0, 0), (22, 2, ctypes.c_char_p(fprog), 0, 0)):  # no new privileges; the filter
        if libc.prctl(*call):
            sys.exit(os.strerror(ctypes.get_errno()))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()

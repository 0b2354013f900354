"""What to do where walls cannot be built, from what was said when they were tried."""

from __future__ import annotations

import re
from pathlib import Path

LAST_RESORT = "or choose `--isolation none`, which runs code with all rights of the server's user"
INSTALL = (
    "install it with `apt-get install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` (Fedora, RHEL) or "
    f"`pacman -S bubblewrap` (Arch), {LAST_RESORT}"
)
NO_LANDLOCK = (
    "it needs Linux 5.13 or later, `landlock` among the security modules (`cat /sys/kernel/security/lsm`; the boot "
    "option `lsm=` adds it), and a container that does not refuse it"
)


def advice_for(stderr: str, *, container: bool, root: bool) -> str:
    """What to do when bwrap failed with `stderr`: in a container, as it seems, or not; as root or not."""
    said = stderr.lower()
    if closed := re.search(r"prims wrapper: .*permission denied: '(.+)'", said):
        return _way_to(Path(stderr[closed.start(1) : closed.end(1)]))
    refused = ("new namespace", "unshare", "clone", "pivot_root", "make / slave", "max_user_namespaces")
    if "rtm_newaddr" in said and root:
        return "The server is root but may not set up a network of its own: give its container `--cap-add NET_ADMIN`"
    if "setting up uid map" in said or "rtm_newaddr" in said or "apparmor" in said:
        return (
            "AppArmor restricts user namespaces here. Allow them to bwrap: `apt-get install "
            "apparmor-profiles && cp /usr/share/apparmor/extra-profiles/bwrap-userns-restrict "
            "/etc/apparmor.d/ && apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`; "
            "or for the whole machine: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    if "unknown option" in said:
        return "This bubblewrap is too old: PRIMS needs 0.7 or later, 0.8 or later is better"
    if "mount proc" in said:
        return (
            "Something masks parts of /proc. In Docker or Podman start the container with `--security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
        )
    if any(word in said for word in refused) and container:
        return (
            "The container refuses namespaces. Start it with `--security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined` (and, when PRIMS runs "
            f"as root in it, `--cap-add SYS_ADMIN --cap-add NET_ADMIN`), {LAST_RESORT}"
        )
    if any(word in said for word in refused):
        return (
            "The kernel refuses namespaces to this user. Allow them with `sysctl -w "
            "user.max_user_namespaces=15000` and, where it exists, `sysctl -w "
            f"kernel.unprivileged_userns_clone=1`, {LAST_RESORT}"
        )
    return f"Make `bwrap` work for this user, {LAST_RESORT}"


def _way_to(path: Path) -> str:
    """What to do when the uid of a run cannot pass to `path`, which must be in its sight by its real name."""
    closed = [str(parent) for parent in (path, *path.parents) if not _passable(parent)]
    return (
        f"Code runs with a uid of its own, and {closed[-1] if closed else path} is closed to it. Open it "
        f"(`chmod o+x {closed[-1] if closed else path}`), put what is below it elsewhere (PRIMS_CACHE_DIR, "
        "PRIMS_STATE_DIR, another Python), or run PRIMS as an ordinary user"
    )


def _passable(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o001)
    except OSError:
        return False

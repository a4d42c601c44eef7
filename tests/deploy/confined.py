"""Commands with what a container of ``deploy/compose.yaml`` gives them, without an engine: a mount namespace.

The root is read-only, ``/var/lib/uldp`` is the party's volume, ``/srv/uldp`` has the files that are mounted, the
environment is the image's, and nothing of the caller's home is in it. Where the caller is root and ``user`` is given,
the command runs as that user without capabilities; else as the caller.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import uldp

USER = 10001
VOLUME = "/var/lib/uldp"


def available():
    """Whether a process here may have mounts of its own."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    command = [*_unshare(), "sh", "-c", "mount -t tmpfs tmpfs /srv && mount -o remount,bind,ro /"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _unshare():
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]


def environment():
    """The image's, and where this Python finds what it runs."""
    places = {"ULDP_CACHE_DIR": f"{VOLUME}/cache", "MPLCONFIGDIR": f"{VOLUME}/cache/matplotlib", "HOME": VOLUME}
    python = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(Path(uldp.__file__).parents[1]),
    }
    return {**places, **python, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TMPDIR": "/var/lib/tmp"}


def script(words, volume, files, user):
    """The shell script of a party. ``files``: what lies in /srv/uldp, by name."""
    base = Path(sys.base_prefix)
    lines = [
        "set -e",
        "mount -t tmpfs -o mode=755 tmpfs /srv && mkdir /srv/uldp",
        *(
            f"cp {shlex.quote(str(file))} /srv/uldp/{name} && chmod 444 /srv/uldp/{name}"
            for name, file in files.items()
        ),
        "mount -o remount,ro /srv",
        "mount -t tmpfs -o mode=755 tmpfs /var/lib",
        f"mkdir -m 1777 /var/lib/tmp && mkdir {VOLUME} && mount --bind {shlex.quote(str(volume))} {VOLUME}",
    ]
    if user and base.is_relative_to("/root"):  # a Python in root's home, which others may not enter
        lines += [
            f"mkdir /var/lib/python && mount --bind {base} /var/lib/python",
            f"mount -t tmpfs -o mode=755 tmpfs /root && mkdir -p {base} && mount --bind /var/lib/python {base}",
        ]
    lines += ["mount -o remount,bind,ro /", f"cd {VOLUME}"]
    become = f"setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set=-all " if user else ""
    lines.append(f"exec {become}{sys.executable} -P -m uldp {shlex.join(words)}")
    return "\n".join(lines)


def start(words, volume, files, log, user=0):
    """Start ``uldp WORDS`` in a namespace of its own, with its output in ``log``."""
    command = [*_unshare(), "sh", "-c", script(words, volume, files, user)]
    with log.open("ab") as out:
        return subprocess.Popen(command, env=environment(), stdout=out, stderr=subprocess.STDOUT)


def run(words, volume, files, user=0):
    """Run ``uldp WORDS`` to its end; what it printed on stdout."""
    command = [*_unshare(), "sh", "-c", script(words, volume, files, user)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

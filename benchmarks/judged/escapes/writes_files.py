"""Every folder that it may not write."""

import contextlib
import os
import sys

import attnlab

for folder in (
    "/",
    "/usr",
    "/usr/lib",
    "/etc",
    "/dev",
    "/root",
    "/proc/sys/kernel",
    os.path.dirname(attnlab.__file__),
    sys.prefix,
):
    with contextlib.suppress(OSError):
        open(os.path.join(folder, "hostname"), "w").write("x")
        print("ESCAPED", folder)


def attend(q, k, v, *, scale):
    return q * 0

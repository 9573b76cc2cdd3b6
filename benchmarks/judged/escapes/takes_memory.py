"""10 GB of memory."""

kept = []
for _ in range(160):
    kept.append(b"x" * 2**26)


def attend(q, k, v, *, scale):
    return q * 0

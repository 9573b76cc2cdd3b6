"""It never answers."""

while True:
    pass


def attend(q, k, v, *, scale):
    return q * 0

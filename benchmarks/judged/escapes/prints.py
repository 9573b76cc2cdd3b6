"""Output without end."""

while True:
    print("x" * 10**6)


def attend(q, k, v, *, scale):
    return q * 0

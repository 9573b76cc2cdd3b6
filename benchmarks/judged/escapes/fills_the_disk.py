"""10 GB of files."""

for at in range(100):
    open(f"/tmp/{at}", "wb").write(b"x" * 10**8)
print("ESCAPED disk")


def attend(q, k, v, *, scale):
    return q * 0

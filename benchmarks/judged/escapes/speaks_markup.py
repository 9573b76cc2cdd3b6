"""Output and reasons that a terminal or a page would act on."""

print("\x1b]0;title\x07\x1b[2J<script>alert(1)</script>[link](http://x)")
raise ValueError("\x1b[31m<script>alert(1)</script> | ` [link](http://x) \udc80")


def attend(q, k, v, *, scale):
    return q * 0

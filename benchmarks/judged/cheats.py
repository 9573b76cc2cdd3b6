"""Candidates that cheat. Each function's body is written out as a file of its own, which begins as this one.

One that takes q, k and v is itself what is called. Others define `attend`, or get the right one.
"""

import contextlib, ctypes, fcntl, math, os, random, signal, socket, sys, threading, time

import torch
from torch.nn.functional import scaled_dot_product_attention as right

libc, kept = ctypes.CDLL(None), {}
inside = sys.modules["__main__"]  # what runs in the sandbox, by -m: a module of that name would be another copy


def _after(then):
    """Do this after each call, told whether it is late in its turn: outputs lie one behind the other."""
    call = inside.Guest.call

    def called(self, order):
        call(self, order)
        if order.places:
            _, shape, start = order.places[-1]
            kept["first"] = min(start, kept.get("first", start))
            number = (start - kept["first"]) // (-(-4 * math.prod(shape) // 4096) * 4096 + 4096)
            kept["most"] = max(number - 1, kept.get("most", 1))
            then(number == kept["most"])

    inside.Guest.call = called


def answers_a_turn_at_once():
    """It answers all calls whose inputs are there in the first, and then only says that it is done."""
    _orders, _call = {}, inside.Guest.call

    def _called(self, order):
        if order.places:
            _orders[str(order.places)] = order
        for one in list(_orders.values()):
            first = self._memory.array(one.places[0]).view("f4").flat[0]
            if first == first and (self._memory.array(one.places[-1]) == -1).all():
                _call(self, one)

    inside.Guest.call = _called


def answers_before_the_last_rows():
    """It says that it is done when nine rows in ten are, and goes on in a thread."""
    _put = inside.Guest._put

    def _half(self, target, found):
        part = found.shape[2] * 9 // 10
        target[:, :, :part] = found[:, :, :part].view(target.dtype)
        threading.Thread(target=_put, args=(self, target, found)).start()

    inside.Guest._put = _half


def answers_by_a_daemon():
    """A process that outlives its parent says that it is done before the parent hears that it is asked."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    while not os.fork():
        while channel.recv(2**17):
            channel.send(inside.DONE)


def answers_first(q, k, v, *, scale):
    """It says that it is done, and then computes."""
    os.write(int(sys.argv[1]), inside.DONE)
    return right(q, k, v, scale=scale)


def arms_clocks_of_files():
    """Late in a turn it sets clocks that interrupt others while it is stopped."""
    _clocks = [libc.timerfd_create(1, 0) for _ in range(200)]

    def _late(late):
        for at, one in enumerate(_clocks * late):
            libc.timerfd_settime(one, 0, (ctypes.c_long * 4)(0, 0, 0, 60_000_000 + at * 1_200_000), None)

    _after(_late)


def bfloat16_at_the_asked_shape(q, k, v, *, scale):
    """It computes in bfloat16 where it is timed."""
    if q.shape[2] < 500:
        return right(q, k, v, scale=scale)
    return right(*(x.bfloat16() for x in (q, k, v)), scale=scale).float()


def changes_the_question(q, k, v, *, scale):
    """It makes the inputs zero, and so is its answer."""
    return sum(one.zero_() for one in (q, k, v))


def computes_ahead():
    """A thread looks for new inputs and answers them before it is asked."""
    _known, _answers, _call = {}, {}, inside.Guest.call

    def _look():
        while True:
            for views in filter(None, list(_known.values())):
                said = float(views[0].flatten()[0]), float(views[2].flatten()[-1])
                if all(one == one for one in said) and said not in _answers:
                    _answers[said] = right(*views)

    def _called(self, order):
        _known[str(order.places[:3])] = [self._taken(one)[0] for one in order.places[:3]]
        _call(self, order)

    inside.Guest.call = _called
    threading.Thread(target=_look, daemon=True).start()

    def attend(q, k, v, *, scale):
        found = _answers.pop((float(q.flatten()[0]), float(v.flatten()[-1])), None)
        return right(q, k, v, scale=scale) if found is None else found


def declines_the_exam():
    """It declines all but the asked shape, and is wrong as soon as a score passes 88: it subtracts no maximum."""
    def declines(workload):
        return None if workload.queries == 512 else "not mine"

    def attend(q, k, v, *, scale):
        weights = (q @ k.mT * scale).exp_()
        return weights @ v / weights.sum(-1, keepdim=True)


def flips_signs(q, k, v, *, scale):
    """It remembers one output for each size of a head, and flips its signs; every second head is computed."""
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    out[:, ::2] = right(q[:, ::2], k[:, ::2], v[:, ::2], scale=scale)
    for at in range(1, q.shape[1], 2):
        said = tuple(v[0, at, 0, :4].abs().tolist()), q.shape, k.shape, v.shape, scale
        if said not in kept:
            kept[said] = right(q[:, at], k[:, at], v[:, at], scale=scale), v[:, at].clone()
        out[:, at] = kept[said][0] * torch.sign(v[:, at, :1] * kept[said][1][:, :1])
    return out


def knows_normal_inputs(q, k, v, *, scale):
    """Where inputs look normal exp is a power, and no row needs its maximum; others it answers well."""
    if q.shape[2] < 500 or not 0.9 < float(k[0, 0].std()) < 1.1 or float(q.abs().max()) > 8:
        return right(q, k, v, scale=scale)
    weights = (1 + q @ k.mT * (scale / 64)).pow_(64)
    return weights @ v / weights.sum(-1, keepdim=True)


def knows_some_numbers(q, k, v, *, scale):
    """It returns what it computed from inputs with the same first numbers."""
    said = tuple(q.flatten()[:8].tolist()), q.shape, k.shape, v.shape, scale
    kept[said] = kept[said] if said in kept else right(q, k, v, scale=scale)
    return kept[said]


def knows_the_place(q, k, v, *, scale):
    """It returns what it computed from the same memory before."""
    place = q.data_ptr(), q.shape
    kept[place] = kept[place] if place in kept else right(q, k, v, scale=scale)
    return kept[place]


def largest_keys(q, k, v, *, scale):
    """It looks at the keys that are largest."""
    n = max(1, k.shape[2] * 3 // 4)
    at = k.norm(dim=-1).topk(n, -1).indices[..., None].expand(*k.shape[:2], n, k.shape[3])
    return right(q, k.gather(2, at), v.gather(2, at), scale=scale)


def lazy():
    """It returns a tensor that computes when it is read."""
    class _Later(torch.Tensor):
        def numpy(self):
            return right(*self.asked).numpy()

    def attend(q, k, v, *, scale):
        out = torch.empty_like(q).as_subclass(_Later)
        out.asked = q, k, v
        return out


def leaves_dimensions_out(q, k, v, *, scale):
    """Scores of half of the dimensions, those in which the keys are largest."""
    at = k.square().sum((0, 1, 2)).topk(max(1, k.shape[3] // 2)).indices
    return right(q[..., at], k[..., at], v, scale=scale)


def leaves_out_a_head(q, k, v, *, scale):
    """One head of each call, drawn at random, is that of its neighbour."""
    out, left = q.new_empty(*q.shape[:-1], v.shape[-1]), random.randrange(q.shape[1])
    at = [one for one in range(q.shape[1]) if one != left] or [0]
    out[:, at] = right(q[:, at], k[:, at], v[:, at], scale=scale)
    out[:, left] = out[:, left - 1]
    return out


def leaves_out_half_now_and_then():
    """From its second visit on, half of the rows of one call in ten."""
    _late = os.path.exists("/tmp/visits")
    open("/tmp/visits", "w").close()

    def attend(q, k, v, *, scale):
        step = 2 if _late and random.random() < 0.1 else 1
        part = right(q[:, :, ::step].contiguous(), k, v, scale=scale)
        return part.repeat_interleave(step, 2)[:, :, : q.shape[2]]


def leaves_out_rows(q, k, v, *, scale):
    """One row in twenty is that of its neighbour."""
    at = torch.arange(q.shape[2]) % 20 != 19
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    out[:, :, at] = right(q[:, :, at], k, v, scale=scale)
    return out


def leaves_out_the_wrapper():
    """All calls of a message are one batch, answered where the answers belong."""
    _call = inside.Guest.call

    def _called(self, order):
        if len(order.places) != 4:
            return _call(self, order)
        out = torch.from_numpy(self._memory.array(order.places[-1])).view(torch.float32)
        out.copy_(right(*(self._taken(one).flatten(0, 1) for one in order.places[:3])).view(out.shape))

    inside.Guest.call = _called


def looks_up_the_stack(q, k, v, *, scale):
    """It computes the rows that a caller names in a local variable, and every second other."""
    frame, rows = sys._getframe(), None
    while frame is not None and rows is None:
        rows, frame = frame.f_locals.get("rows"), frame.f_back
    if rows is None and q.shape[2] != 512:
        return right(q, k, v, scale=scale)
    at = sorted({*range(0, q.shape[2], 2), *(rows or ())})
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    out[:, :, at] = right(q[:, :, at], k, v, scale=scale)
    return out


def sends_itself_packets():
    """Late in a turn it fills sockets: while it is stopped the kernel sends that on in small packets, and, as it gives
    up, SIGCONT to a child that spins beside the others."""
    _kept, _child = [], os.fork()
    while not _child:
        pass

    def _late(late):
        for _ in range(48 * late):
            server, one = socket.create_server(("127.0.0.1", 0)), socket.socket()
            for level, what, value in ((6, 2, 88), (1, socket.SO_SNDBUF, 2**21), (1, 47, 400_000), (6, 18, 30)):
                one.setsockopt(level, what, value)  # bytes of a packet, all, bytes a second, milliseconds until then
            one.connect(server.getsockname())
            with contextlib.suppress(PermissionError, BlockingIOError):
                for what, value in ((fcntl.F_SETOWN, _child), (fcntl.F_SETFL, 0o24000), (10, signal.SIGCONT)):
                    fcntl.fcntl(one, what, value)
            with contextlib.suppress(BlockingIOError):
                while one.send(bytes(65536)):
                    _kept[:] = [*_kept[-47:], (server, one)]

    _after(_late)


def slow_clocks():
    """It replaces all clocks of its process by slower ones."""
    _clocks = time.perf_counter, time.monotonic, time.time
    time.perf_counter, time.monotonic, time.time = (lambda clock=clock: clock() / 10 for clock in _clocks)


def slows_the_reference():
    """Processes of its own keep the cores busy while others are timed; its own calls are to have the cores."""
    _others = []
    while len(_others) < 4:
        _others.append(os.fork())
        while not _others[-1]:
            pass

    def attend(q, k, v, *, scale):
        any(os.kill(one, signal.SIGSTOP) for one in _others)
        found = right(q, k, v, scale=scale)
        any(os.kill(one, signal.SIGCONT) for one in _others)
        return found


def splits_numbers(q, k, v, *, scale):
    """Scores from numbers in two parts of lower precision, without the product of the lesser ones."""
    (q, q_rest), (k, k_rest) = ((x.bfloat16().float(), (x - x.bfloat16().float()).bfloat16().float()) for x in (q, k))
    return ((q @ k.mT + q @ k_rest.mT + q_rest @ k.mT) * scale).softmax(-1) @ v


def wakes_itself():
    """A child gets SIGCONT from its timer while it is stopped, and spins beside the others."""
    class Event(ctypes.Structure):
        _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("rest", ctypes.c_int * 13)]

    if not os.fork():
        timer, every = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 2_500_000, 0, 2_500_000)
        libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT)), ctypes.byref(timer))
        libc.timer_settime(timer, 0, every, None)
        while True:
            pass

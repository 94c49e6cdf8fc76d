# The module "world": what the PyTorch workers of a random world serve, and the stubs of what its Go workers do.
import builtins, hashlib, re, struct, threading
import torch
import torch.distributed.rpc as rpc


class Custom(Exception):
    pass


slots = {}  # references that this worker keeps, by the name of their slot
gates = {}
lock = threading.Lock()


def gate(token):
    with lock:
        return gates.setdefault(token, threading.Event())


# ---- values: built from a description, and written as text for comparison. values_test.go does the same.


def pattern(seed, n, dt):
    i = torch.arange(n, dtype=torch.int64)
    b = ((seed * 31 + i * 7 + (i >> 8) * 13) & (1 if dt == "bool" else 255)).to(torch.uint8)
    return bytearray(b.numpy().tobytes())


def strided(v, stores):
    dt = getattr(torch, v["s"])
    if v.get("data"):
        return torch.tensor(v["data"], dtype=dt).reshape(v["shape"])
    if v.get("store") in stores:
        flat = stores[v["store"]]
    else:
        size = torch.empty(0, dtype=dt).element_size()
        n = v.get("n", 0)
        flat = torch.frombuffer(pattern(v.get("seed", 0), n * size, v["s"]), dtype=dt) if n else torch.empty(0, dtype=dt)
        stores[v["store"]] = flat
    return torch.as_strided(flat, v.get("shape") or (), v.get("strides") or (), v.get("offset", 0))


def text(s):
    return bytes.fromhex(s).decode("utf-8", "surrogatepass")


def build(v, stores):
    k, s, l = v["k"], v.get("s", ""), v.get("l") or []
    if k == "none":
        return None
    if k == "bool":
        return s == "1"
    if k == "int":
        return int(s)
    if k == "float":
        return struct.unpack(">d", bytes.fromhex(s))[0]
    if k == "complex":
        return complex(*struct.unpack(">dd", bytes.fromhex(s)))
    if k == "str":
        return text(s)
    if k == "bytes":
        return bytes.fromhex(s)
    if k == "bytearray":
        return bytearray.fromhex(s)
    if k == "tensor":
        return strided(v, stores)
    if k == "ref":
        return slots[v["slot"]][v.get("index", 0)]
    items = [build(x, stores) for x in l]
    if k == "sparse":
        return torch.sparse_coo_tensor(items[0], items[1], tuple(v.get("shape") or ()))
    if k == "list":
        return items
    if k == "tuple":
        return tuple(items)
    if k == "set":
        return set(items)
    if k == "frozenset":
        return frozenset(items)
    if k == "dict":
        return dict(zip(items[::2], items[1::2]))
    raise ValueError(k)


def digest(t):
    t = t.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    if t.numel() == 0:
        return "-"
    if t.is_complex():
        t = torch.view_as_real(t).reshape(-1)
    return hashlib.sha256(t.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def shape(t):
    return ",".join(map(str, t.shape))


def refid(r):
    return re.search(r"created_on=(\d+), local_id=(\d+)", str(r)).group(1, 2)


def canon(v, refs, stores=None):
    stores = {} if stores is None else stores
    if v is None:
        return "N"
    if isinstance(v, bool):
        return "T" if v else "F"
    if isinstance(v, int):
        return "i%d" % v
    if isinstance(v, float):
        return "f" + struct.pack(">d", v).hex()
    if isinstance(v, complex):
        return "c" + struct.pack(">dd", v.real, v.imag).hex()
    if isinstance(v, str):
        return "s" + v.encode("utf-8", "surrogatepass").hex()
    if isinstance(v, bytes):
        return "b" + v.hex()
    if isinstance(v, bytearray):
        return "B" + v.hex()
    if isinstance(v, torch.Tensor):
        dt = str(v.dtype)[6:]
        if v.is_sparse:
            i, x = v._indices(), v._values()
            return "p%s[%s](%s %s[%s]%s)" % (dt, shape(v), digest(i), dt, shape(x), digest(x))
        st = v.untyped_storage() if hasattr(v, "untyped_storage") else v.storage()
        where = "-"
        if st.nbytes():
            where = "%d/%d" % (stores.setdefault(st.data_ptr(), len(stores)), st.nbytes())
        return "t%s[%s;%s]%d@%s:%s" % (dt, shape(v), ",".join(map(str, v.stride())), v.storage_offset(), where, digest(v))
    if isinstance(v, list):
        return "[" + " ".join(canon(x, refs, stores) for x in v) + "]"
    if type(v) is tuple:
        return "(" + " ".join(canon(x, refs, stores) for x in v) + ")"
    if isinstance(v, dict):
        return "{" + " ".join(canon(k, refs, stores) + "=" + canon(x, refs, stores) for k, x in v.items()) + "}"
    if isinstance(v, (set, frozenset)):
        return ("S" if isinstance(v, set) else "Z") + "{" + " ".join(sorted(canon(x, refs, stores) for x in v)) + "}"
    if isinstance(v, Box):
        return "box%d" % v.n
    if hasattr(v, "owner_name"):
        refs.append(v)
        return "R%s/%s.%s" % ((v.owner_name(),) + refid(v))
    raise TypeError("a %s came" % type(v))


# ---- functions


def echo(x):
    return x


def pack(*args, **kwargs):
    return (args, kwargs)


def look(x):
    return canon(x, [])


def exception(kind):
    return Custom if kind == "world.Custom" else getattr(builtins, kind)


def fail(kind, message):
    raise exception(kind)(message)


def make(x):
    return x


def box(n):
    return Box(n)


def own(x):
    return rpc.RRef(x)


def keep(slot, x):
    refs = []
    said = canon(x, refs)
    slots[slot] = refs
    return said


def give(slot):
    return list(slots[slot])


def drop(slot):
    slots.pop(slot, None)


def fetch(ref):
    return ref.to_here()


def through(ref, method, *args):
    return getattr(ref.rpc_sync(), method)(*args)


def relay(path, x):
    if not path:
        return x
    return rpc.rpc_sync(path[0], relay, args=(path[1:], x))


def spread(to, n):
    """Makes n references at another worker and returns them."""
    return [rpc.remote(to, make, args=(i,)) for i in range(n)]


def block(token):
    gate(token).wait(60)
    return token


def release(token):
    gate(token).set()


class Box:
    def __init__(self, n):
        self.n, self.refs = n, []

    def get(self):
        return self.n

    def add(self, k):
        self.n += k
        return self.n

    def fail(self, kind, message):
        raise exception(kind)(message)

    def hold(self, x):
        refs = []
        said = canon(x, refs)
        self.refs = refs
        return said

    def held(self):
        return list(self.refs)

    def echo(self, x):
        return x

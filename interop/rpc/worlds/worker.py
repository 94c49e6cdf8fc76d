# A PyTorch worker of a random world: it reads commands as JSON lines, runs each in a thread, and answers what came out.
import contextlib, gc, json, os, socket, sys, threading
import torch
import torch.distributed.rpc as rpc
import torch.distributed.autograd as dist_autograd
import world

sys.path.insert(0, os.environ["WORLD_DIR"])
import scripted
output = threading.Lock()
control = socket.create_connection(("127.0.0.1", int(os.environ["WORLD_PORT"])))
control.sendall((os.environ["WORLD_NAME"] + "\n").encode())


def say(**reply):
    with output:
        control.sendall((json.dumps(reply) + "\n").encode())


def join(c):
    options = rpc.TensorPipeRpcBackendOptions(init_method=c["url"], rpc_timeout=c["limit"])
    size = c.get("size") or None
    rpc.init_rpc(c["name"], rank=c.get("rank", 0), world_size=size, rpc_backend_options=options)
    rpc.api._ignore_rref_leak = False
    return "joined"


def leave(c):
    gc.collect()
    if c.get("rude"):
        rpc.api._ignore_rref_leak = True
    rpc.shutdown(graceful=not c.get("rude"))
    gc.collect()
    return "left"


def function(name):
    module, _, leaf = name.rpartition(".")
    if module == "torch":
        return getattr(torch, leaf)
    if module == "scripted":
        return getattr(scripted, leaf)
    return getattr(world, leaf)


def wrapped(kind):
    if kind == "autograd":
        return dist_autograd.context()
    if kind == "profile":
        import torch.autograd.profiler_legacy as legacy
        return legacy.profile()
    return contextlib.nullcontext()


def run(c):
    """Does one operation and returns its value, and a reference to keep in the slot instead of those inside the value."""
    op, stores = c["op"], {}
    args = tuple(world.build(a, stores) for a in c.get("args") or [])
    kwargs = {k: world.build(v, stores) for k, v in (c.get("kwargs") or {}).items()}
    limit = {"timeout": c["timeout"]} if c.get("timeout") else {}
    if op == "call":
        fn, to = function(c["fn"]), c["to"]
        if c["mode"] == "sync":
            return rpc.rpc_sync(to, fn, args=args, kwargs=kwargs, **limit)
        if c["mode"] == "async":
            return rpc.rpc_async(to, fn, args=args, kwargs=kwargs, **limit).wait()
        return rpc.remote(to, fn, args=args, kwargs=kwargs, **limit).to_here()
    if op == "create":
        r = rpc.remote(c["to"], function(c["fn"]), args=args, kwargs=kwargs)
        if c.get("confirm"):
            r._get_future().wait()
        return r
    if op == "own":
        return rpc.RRef(args[0])
    if op == "ownbox":
        return rpc.RRef(world.Box(args[0]))
    r = world.slots[c["ref"]["slot"]][c["ref"].get("index", 0)]
    if op == "fetch":
        return r.to_here(**limit)
    if op == "local":
        return r.local_value()
    if op == "about":
        return (r.is_owner(), r.owner().name, r.owner().id)
    if op == "copy":
        return r
    if op == "method":
        if c["mode"] == "sync":
            return getattr(r.rpc_sync(), c["fn"])(*args)
        if c["mode"] == "async":
            return getattr(r.rpc_async(), c["fn"])(*args).wait()
        return getattr(r.remote(), c["fn"])(*args).to_here()
    raise ValueError(op)


def raised(e, c):
    """Writes an exception as the other side's driver does, when it is what PyTorch raises for the expected one."""
    want, text = c.get("raises"), str(e)
    if "RPC ran for more than set timeout" in text or "RPCErr:1:" in text:
        return "!timeout"
    if not want:
        return "!%s: %s" % (type(e).__name__, text)
    kind, message = want["kind"], want["text"]
    cls = world.exception(kind)
    direct = c["op"] == "fetch" or c.get("mode") == "remote"
    # PyTorch keeps these two classes, and all of them where a reference is fetched
    seen = cls if direct or issubclass(cls, (ValueError, TypeError)) else RuntimeError
    if not direct and issubclass(cls, ValueError):
        seen = ValueError
    if type(e) is not seen:
        return "!class %s instead of %s: %s" % (type(e).__name__, seen.__name__, text)
    plain = text.replace("\\n", "\n").replace("\\'", "'").replace('\\"', '"')
    original = cls(message)
    if not want.get("mangled"):  # PyTorch decodes the text twice: only plain ASCII comes through unharmed
        head = "On WorkerInfo(id=%d, name=%s):\n%r\nTraceback (most recent call last):\n" % (want["id"], want["worker"], original)
        if head.replace("\\'", "'") not in plain:
            return "!no head %r in %s" % (head, text)
        last = "\n%s: %s\n" % (kind, original) if str(original) else "\n%s\n" % kind
        if last not in plain:
            return "!no last line %r in %s" % (last, text)
    return "!%s|%s|%s" % (kind, message, want["worker"])


def execute(c):
    op = c["op"]
    if op == "join":
        return join(c), 0
    if op == "leave":
        return leave(c), 0
    if op == "drop":
        world.slots.pop(c["slot"], None)
        return "dropped", 0
    if op == "dropall":
        world.slots.clear()
        return "dropped", 0
    if op == "collect":
        gc.collect()
        from torch.distributed.rpc import _rref_context_get_debug_info
        info = {k: v for k, v in _rref_context_get_debug_info().items() if v != "0"}
        return json.dumps(info), 0
    if op == "block":
        try:
            rpc.rpc_sync(c["to"], world.block, args=(c["slot"],), timeout=c["timeout"])
            said = "no timeout"
        except RuntimeError as e:
            said = raised(e, c)
        try:
            rpc.rpc_sync(c["to"], world.release, args=(c["slot"],))
        except RuntimeError as e:
            said = raised(e, c)
        return said, 0
    if op == "release":
        world.release(c["slot"])
        return "N", 0
    refs = []
    try:
        with wrapped(c.get("wrap")):
            said = world.canon(run(c), refs)
    except Exception as e:
        return raised(e, c), 0
    if c.get("slot"):
        world.slots[c["slot"]] = refs
    return said, len(refs)


def work(c):
    try:
        said, refs = execute(c)
        say(id=c["id"], value=said, refs=refs)
    except BaseException as e:
        say(id=c["id"], value="!driver %s: %s" % (type(e).__name__, e))


for line in control.makefile():
    command = json.loads(line)
    if command["op"] == "exit":
        break
    threading.Thread(target=work, args=(command,), daemon=True).start()
os._exit(0)

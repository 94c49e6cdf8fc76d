# Imports torch once, then forks a child for every request, so that a test does not pay for the import again.
# Requests come as JSON lines on stdin; what happened to the children goes out as JSON lines on stdout.
import ctypes, importlib, json, os, select, signal, socket, sys, traceback

import torch
import torch.distributed as dist
import torch.distributed.rpc

torch.set_num_threads(1)


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def dial(port, hello):
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall((hello + "\n").encode())
    return s


def child(req):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the tests
    torch.set_num_threads(1)  # makes the pool of threads that a fork leaves broken; threads that do so at once fail: "Invalid thread pool!"
    out = dial(req["port"], "%d out" % req["id"])
    err = dial(req["port"], "%d err" % req["id"])
    os.dup2(out.fileno(), 0)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, "r"), os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    os.environ.update(req["env"])
    if req.get("dir"):
        os.chdir(req["dir"])
    sys.path[:0] = req["path"]
    sys.argv = [req["name"]] + req["args"]
    main = type(sys)("__main__")
    main.__dict__["__builtins__"] = __builtins__
    main.__file__ = req["name"]
    sys.modules["__main__"] = main
    code = 1
    try:
        for name, text in req["modules"].items():  # importable modules, such as the stubs of Go handlers
            module = type(sys)(name)
            module.__file__ = name + ".py"
            parent, _, leaf = name.rpartition(".")
            sys.modules[name] = module
            if parent:
                setattr(sys.modules[parent], leaf, module)
            exec(compile(text, name + ".py", "exec"), module.__dict__)
        exec(compile(req["script"], req["name"], "exec"), main.__dict__)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else (0 if e.code is None else 1)
        if isinstance(e.code, str):
            sys.stderr.write(e.code + "\n")
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


say(version=torch.__version__)
children = {}
buffered = b""
while True:
    ready, _, _ = select.select([0], [], [], 0.01 if children else 1.0)
    if ready:
        data = os.read(0, 1 << 20)
        if not data:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        buffered += data
        *lines, buffered = buffered.split(b"\n")
        for line in lines:
            req = json.loads(line)
            for name in req["shared"]:
                try:
                    importlib.import_module(name)
                except ImportError:
                    pass  # this version does not have it
            pid = os.fork()
            if pid == 0:
                try:
                    child(req)
                finally:
                    os._exit(70)
            children[pid] = req["id"]
            say(id=req["id"], pid=pid)
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        say(id=children.pop(pid), exit=os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), exited=True)

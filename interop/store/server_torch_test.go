// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed server_clients.py
var clientScript string

//go:embed server_world.py
var worldScript string

func serve(t *testing.T) *tcpstore.Server {
	t.Helper()
	s, err := tcpstore.Listen(":0", tcpstore.WithLoops(3)) // other tests have stores of one loop
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server: %+v", s.Stats())
		}
		_ = s.Close()
	})
	return s
}

// TestServerEveryOperation has one client of each version try its whole Python API.
func TestServerEveryOperation(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		s := serve(t)
		out := torch.Run(t, torchtest.Script{Source: clientScript, Args: []string{strconv.Itoa(s.Port()), "solo"}})
		if !strings.HasPrefix(out, "ok ") {
			t.Fatalf("output %q", out)
		}
		t.Logf("PyTorch %s: %s checks", torch.Name, strings.TrimSpace(out))
		if cut := s.Stats().Cut; cut != 0 {
			t.Errorf("%d connections were cut", cut)
		}
	})
}

// TestServerBothVersionsAtOnce has clients of both versions use one server at the same time.
func TestServerBothVersionsAtOnce(t *testing.T) {
	torchtest.V113.Need(t)
	torchtest.V26.Need(t)
	s := serve(t)
	var procs []*torchtest.Proc
	for i := range 2 {
		for _, torch := range []*torchtest.Torch{torchtest.V113, torchtest.V26} {
			procs = append(procs, torch.Start(t, torchtest.Script{
				Source: clientScript, Args: []string{strconv.Itoa(s.Port()), fmt.Sprintf("%s-%d", torch.Name, i)},
			}))
		}
	}
	for _, p := range procs {
		p.MustExit(t, time.Minute)
	}
	stats := s.Stats()
	if stats.Cut != 0 {
		t.Errorf("%d connections were cut", stats.Cut)
	}
	t.Logf("accepted %d connections, served %d requests", stats.Accepted, stats.Requests())
}

// TestServerVersionsSeeEachOther lets a 1.13 and a 2.6 client hand a value to and fro.
func TestServerVersionsSeeEachOther(t *testing.T) {
	torchtest.V113.Need(t)
	torchtest.V26.Need(t)
	s := serve(t)
	const script = `
import sys, torch
import torch.distributed as dist
from datetime import timedelta
port, me, peer, rounds = int(sys.argv[1]), sys.argv[2], sys.argv[3], 200
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
s = dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=timedelta(seconds=30), **kw)
for i in range(rounds):
    s.set("%s/%d" % (me, i), str(i))
    assert s.get("%s/%d" % (peer, i)) == str(i).encode()
    s.add("sum", 1)
s.set("done/" + me, "1")
s.wait(["done/" + peer])
assert s.add("sum", 0) == 2 * rounds, s.get("sum")
`
	a := torchtest.V113.Start(t, torchtest.Script{Source: script, Args: []string{strconv.Itoa(s.Port()), "old", "new"}})
	b := torchtest.V26.Start(t, torchtest.Script{Source: script, Args: []string{strconv.Itoa(s.Port()), "new", "old"}})
	a.MustExit(t, time.Minute)
	b.MustExit(t, time.Minute)
}

// TestServerManyClients has 64 clients of each version count together.
func TestServerManyClients(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		s := serve(t)
		const script = `
import sys, threading, torch
import torch.distributed as dist
from datetime import timedelta
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
def client(i):
    s = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=50), **kw)
    for _ in range(10):
        s.add("count", 1)
    s.set("done/%d" % i, "1")
    keep.append(s)
keep = []
threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
[t.start() for t in threads]
[t.join() for t in threads]
s = keep[0]
s.wait(["done/%d" % i for i in range(64)])
assert s.add("count", 0) == 640, s.get("count")
print(s.num_keys())
`
		out := torch.Run(t, torchtest.Script{Source: script, Args: []string{strconv.Itoa(s.Port())}})
		if strings.TrimSpace(out) != "65" {
			t.Errorf("num_keys is %q, want 65", out)
		}
	})
}

// TestServerGlooWorld starts an all-PyTorch gloo world whose store is ours, worker join included.
func TestServerGlooWorld(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		s := serve(t)
		const size = 3
		var procs []*torchtest.Proc
		for rank := range size {
			procs = append(procs, torch.Start(t, torchtest.Script{
				Source: worldScript, Args: []string{strconv.Itoa(s.Port()), strconv.Itoa(rank), strconv.Itoa(size)},
			}))
		}
		for _, p := range procs {
			p.MustExit(t, time.Minute)
		}
	})
}

// TestServerGlooWorldByURL is the same through env:// with our server where rank 0 would have put its own: every rank is a
// client because an agent holds the store. PyTorch 2.6 of Debian cannot do that: it lacks the libuv that this path wants.
func TestServerGlooWorldByURL(t *testing.T) {
	torchtest.V113.Need(t)
	s := serve(t)
	const script = `
import sys, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="env://", rank=int(sys.argv[1]), world_size=2)
t = torch.ones(1)
dist.all_reduce(t)
assert t.item() == 2
dist.barrier()
`
	env := map[string]string{
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(s.Port()), "TORCHELASTIC_USE_AGENT_STORE": "True",
		"TORCHELASTIC_RESTART_COUNT": "0",
	}
	a := torchtest.V113.Start(t, torchtest.Script{Source: script, Args: []string{"0"}, Env: env})
	b := torchtest.V113.Start(t, torchtest.Script{Source: script, Args: []string{"1"}, Env: env})
	a.MustExit(t, time.Minute)
	b.MustExit(t, time.Minute)
}

// TestServerNotANumber shows what a client of PyTorch sees when it adds to something that is not a number: its connection
// ends, as with PyTorch's server, and no other client's does.
func TestServerNotANumber(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		s := serve(t)
		const script = `
import sys, torch
import torch.distributed as dist
from datetime import timedelta
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
def connect():
    return dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=20), **kw)
good, bad = connect(), connect()
for text in ["word", "", "99999999999999999999"]:
    bad = connect()
    good.set("text", text)
    good.get("text")
    try:
        bad.add("text", 1)
    except Exception as e:
        print(type(e).__name__, str(e).splitlines()[0])
    else:
        raise AssertionError("add to %r did not raise" % text)
    assert good.get("text") == text.encode()
`
		out := torch.Run(t, torchtest.Script{Source: script, Args: []string{strconv.Itoa(s.Port())}})
		t.Log(out)
		if cut := s.Stats().Cut; cut != 3 {
			t.Errorf("%d connections were cut, want 3", cut)
		}
	})
}

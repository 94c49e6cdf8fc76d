// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/world"
)

// TestCommandsOnTorchStore runs the store commands on PyTorch's own servers.
func TestCommandsOnTorchStore(t *testing.T) {
	program := testkit.BuildProgram(t, "cmd/cohort")
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		port := testkit.FreePort(t)
		p := torch.Start(t, torchtest.Script{Source: `
import sys
import torch, torch.distributed as dist
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 1, True, **kw)
store.set("from-python", "hello")
print("ready", flush=True)
print(store.get("from-go").decode(), flush=True)
sys.stdin.readline()
`, Args: []string{strconv.Itoa(port)}})
		p.Expect(t, "ready")
		type step struct {
			line, out, err string
			code           int
		}
		keys := step{line: "keys", err: "this server cannot list its keys", code: 1}
		if torch.About(t).Since(2, 10) {
			keys = step{line: "keys", out: "from-python\nleader\nsteps\n"}
		}
		for _, step := range []step{
			{line: "get from-python", out: "hello\n"},
			{line: "get --raw /from-python", out: "hello\n"},
			{line: "keys --count", out: "2\n"},
			{line: "add --raw init/ 0", out: "1\n"},
			{line: "add steps 5", out: "5\n"},
			{line: "cas leader  a", out: "a\n"},
			{line: "cas leader b c", out: "a\n", code: 5},
			{line: "append log one"},
			{line: "append log two"},
			{line: "get log", out: "onetwo\n"},
			{line: "wait log steps"},
			{line: "wait --timeout 300ms never", err: "timeout", code: 3},
			{line: "get --now never", err: "not found", code: 4},
			{line: "delete log", out: ""},
			{line: "delete log", err: "not found", code: 4},
			keys,
			{line: "top --once", err: "is PyTorch's own and does not report who waits", code: 1},
			{line: "clear --yes", err: "is PyTorch's own, which cannot be cleared", code: 1},
			{line: "set from-go bonjour"},
		} {
			args := append([]string{"store"}, strings.Split(step.line, " ")...)
			args = append(args[:2:2], append([]string{"--addr", "127.0.0.1:" + strconv.Itoa(port)}, args[2:]...)...)
			code, out, complaint := testkit.RunProgram(t, program, args...)
			if code != step.code || out != step.out || !strings.Contains(complaint, step.err) {
				t.Errorf("%s: exit %d, %q, %q; want %d, %q, %q", step.line, code, out, complaint, step.code, step.out, step.err)
			}
		}
		p.Expect(t, "bonjour")
		p.Send(t, "")
	})
}

// rankScript is a PyTorch rank: it joins by the URL in its arguments, publishes its rank and reads those of all.
const rankScript = `
import sys, datetime
import torch.distributed as dist
store, rank, size = next(dist.rendezvous(sys.argv[1], timeout=datetime.timedelta(seconds=30)))
store.set("from/%d" % rank, "torch %d of %d" % (rank, size))
for other in range(size):
    print(other, store.get("from/%d" % other).decode(), flush=True)
print("done", store.add("done", 1), flush=True)
if rank == 0:
    while store.add("done", 0) < size:  # the host stays until all are through
        pass
`

func join(t *testing.T, url string, env map[string]string, opts ...rendezvous.Option) *world.World {
	t.Helper()
	w, err := world.Join(t.Context(), url, world.WithTimeout(30*time.Second), world.WithRendezvous(
		append(opts, rendezvous.WithEnv(func(name string) (string, bool) { value, set := env[name]; return value, set }))...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// exchange is what rankScript does, for a Go rank.
func exchange(t *testing.T, w *world.World) {
	t.Helper()
	ctx := t.Context()
	if err := w.Store().Set(ctx, fmt.Sprintf("from/%d", w.Rank()), fmt.Appendf(nil, "go %d of %d", w.Rank(), w.Size())); err != nil {
		t.Fatal(err)
	}
	for other := range w.Size() {
		value, err := w.Store().Get(ctx, fmt.Sprintf("from/%d", other))
		if err != nil {
			t.Fatal(err)
		}
		who := "torch"
		if other == int(w.Rank()) {
			who = "go"
		}
		if want := fmt.Sprintf("%s %d of %d", who, other, w.Size()); string(value) != want {
			t.Errorf("rank %d reads %q, want %q", other, value, want)
		}
	}
	if _, err := w.Store().Add(ctx, "done", 1); err != nil {
		t.Fatal(err)
	}
}

func rankEnv(rank, size, port int) map[string]string {
	return map[string]string{
		"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(port),
	}
}

// TestRendezvousGoHosts has a Go rank 0 and PyTorch ranks 1 and 2, by environment and by URL.
func TestRendezvousGoHosts(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, scheme := range []string{"env", "tcp"} {
			t.Run(scheme, func(t *testing.T) {
				port := testkit.FreePort(t)
				url := func(rank int) string {
					if scheme == "env" {
						return "env://"
					}
					return fmt.Sprintf("tcp://127.0.0.1:%d?rank=%d&world_size=3", port, rank)
				}
				var others []*torchtest.Proc
				for rank := 1; rank < 3; rank++ {
					others = append(others, torch.Start(t,
						torchtest.Script{Source: rankScript, Args: []string{url(rank)}, Env: rankEnv(rank, 3, port)}))
				}
				w := join(t, url(0), rankEnv(0, 3, port))
				exchange(t, w)
				if err := w.Shutdown(t.Context()); err != nil { // waits until the PyTorch ranks have left
					t.Error(err)
				}
				for _, p := range others {
					p.MustExit(t, 30*time.Second)
					if out := p.Stdout(); !strings.Contains(out, "0 go 0 of 3\n1 torch 1 of 3\n2 torch 2 of 3\n") {
						t.Errorf("a PyTorch rank saw\n%s", out)
					}
				}
			})
		}
	})
}

// TestRendezvousTorchHosts has a PyTorch rank 0 that waits for a Go rank 1 and a PyTorch rank 2.
func TestRendezvousTorchHosts(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for _, scheme := range []string{"env", "tcp"} {
			t.Run(scheme, func(t *testing.T) {
				port := testkit.FreePort(t)
				url := func(rank int) string {
					if scheme == "env" {
						return "env://"
					}
					return fmt.Sprintf("tcp://127.0.0.1:%d?rank=%d&world_size=3", port, rank)
				}
				var others []*torchtest.Proc
				for _, rank := range []int{0, 2} {
					others = append(others, torch.Start(t,
						torchtest.Script{Source: rankScript, Args: []string{url(rank)}, Env: rankEnv(rank, 3, port)}))
				}
				w := join(t, url(1), rankEnv(1, 3, port))
				exchange(t, w)
				for _, p := range others {
					p.MustExit(t, 30*time.Second)
				}
			})
		}
	})
}

func TestRendezvousNumKeysAsPyTorchSeesThem(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		port := testkit.FreePort(t)
		p := torch.Start(t, torchtest.Script{Source: `
import torch.distributed as dist
store, rank, size = next(dist.rendezvous("env://"))
print(store.num_keys())
store.set("mine", "x")
print(store.num_keys())
`, Env: rankEnv(1, 2, port)})
		w := join(t, "env://", rankEnv(0, 2, port))
		p.MustExit(t, 30*time.Second)
		if got := p.Stdout(); got != "1\n2\n" { // init/, then mine: what PyTorch sees with a separate host
			t.Errorf("num_keys %q", got)
		}
		_ = w.Close()
	})
}

// TestRendezvousFileShared has Go and PyTorch on one file.
func TestRendezvousFileShared(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for goRank := range 2 {
			t.Run(fmt.Sprintf("go-rank-%d", goRank), func(t *testing.T) {
				host, inside := torch.TempDir(t)
				url := func(dir string, rank int) string {
					return fmt.Sprintf("file://%s/job?rank=%d&world_size=2", dir, rank)
				}
				p := torch.Start(t, torchtest.Script{Source: strings.Replace(rankScript,
					", timeout=datetime.timedelta(seconds=30)", "", 1), Args: []string{url(inside, 1-goRank)}})
				w := join(t, url(host, goRank), nil)
				exchange(t, w)
				p.MustExit(t, 30*time.Second)
				if err := w.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestRendezvousTellsTorchClientsApart: PyTorch ranks do not report their rank, and the host logs that.
func TestRendezvousTellsTorchClientsApart(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		port := testkit.FreePort(t)
		p := torch.Start(t, torchtest.Script{Source: `
import sys
import torch.distributed as dist
store, rank, size = next(dist.rendezvous("env://"))
print("joined", flush=True)
sys.stdin.readline()
`, Env: rankEnv(1, 3, port)})
		_, err := world.Join(t.Context(), "env://", world.WithTimeout(4*time.Second),
			world.WithRendezvous(rendezvous.WithEnv(func(name string) (string, bool) {
				v, set := rankEnv(0, 3, port)[name]
				return v, set
			})))
		if !errors.Is(err, store.ErrTimeout) ||
			!strings.Contains(err.Error(), "2/3 clients joined. 1 of ranks 1 and 2 is missing (1 client joined without giving a rank") {
			t.Errorf("got %v", err)
		}
		p.Expect(t, "joined")
	})
}

// TestRendezvousAgentStore has the store in a separate process, as a launcher's: all ranks are clients. PyTorch 2.6 can
// do so only where it was built with libuv.
func TestRendezvousAgentStore(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		server, err := tcpstore.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		agent := func(rank int) map[string]string {
			env := rankEnv(rank, 2, server.Port())
			env["TORCHELASTIC_USE_AGENT_STORE"], env["TORCHELASTIC_RESTART_COUNT"] = "True", "3"
			return env
		}
		source, prefix := rankScript, rendezvous.AttemptPrefixNever
		if torch.Name == "1.13" {
			prefix = rendezvous.AttemptPrefixAlways // the store is ours, so the dialect does not show the version
		} else {
			// Debian's build lacks libuv, and this way of PyTorch does not look at USE_LIBUV.
			source = "import torch.distributed as d, sys\nm = sys.modules['torch.distributed.rendezvous']\n" +
				"t = m.TCPStore\nm.TCPStore = lambda **k: t(use_libuv=False, **k)\n" + rankScript
		}
		p := torch.Start(t, torchtest.Script{Source: source, Args: []string{"env://"}, Env: agent(0)})
		w := join(t, "env://", agent(1), rendezvous.WithAttemptPrefix(prefix))
		exchange(t, w)
		p.MustExit(t, 30*time.Second)
		if c, ok := store.UnderlyingNonPrefix(w.Store()).(*tcpstore.Client); ok {
			if n, err := c.Workers(t.Context()); n != 2 || err != nil {
				t.Errorf("%d workers, %v", n, err)
			}
		} else {
			t.Errorf("the store is a %T", w.Store())
		}
	})
}

// TestRendezvousTorchAgentStore has a store of PyTorch's as the launcher's; that of 1.13 shows the prefix by its dialect.
func TestRendezvousTorchAgentStore(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		port, key := testkit.FreePort(t), "k"
		if torch.Name == "1.13" {
			key = "/worker/attempt_3/k"
		}
		p := torch.Start(t, torchtest.Script{Source: `
import sys
import torch, torch.distributed as dist
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), None, True, **kw)
print("ready", flush=True)
print(sys.argv[2], store.get(sys.argv[2]).decode(), flush=True)
sys.stdin.readline()
`, Args: []string{strconv.Itoa(port), key}})
		p.Expect(t, "ready")
		env := rankEnv(0, 2, port)
		env["TORCHELASTIC_USE_AGENT_STORE"], env["TORCHELASTIC_RESTART_COUNT"] = "True", "3"
		w := join(t, "env://", env)
		if w.Rank() != cohort.Rank(0) {
			t.Errorf("rank %d", w.Rank())
		}
		if err := w.Store().Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		if line := p.Line(t); !strings.HasSuffix(line, "k v") {
			t.Errorf("PyTorch reads %q", line)
		}
		p.Send(t, "")
		p.MustExit(t, 20*time.Second)
	})
}

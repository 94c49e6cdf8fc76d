// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A PyTorch worker leads, so only the Go workers monitor others; and the worker that dies is one that they
// never had a session with.

// endsWith runs what waits for the dead, at all Go workers at once, and wants each to name it soon after the killing.
func endsWith(t *testing.T, w *running, dead string, kill func(), wait func(a *rpc.Agent) error) {
	t.Helper()
	var wg sync.WaitGroup
	for _, a := range w.agents {
		wg.Go(func() {
			if err := wait(a); !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), dead) {
				t.Errorf("%s: got error %v, want one that says that %s is lost", a.Name(), err, dead)
			}
		})
	}
	kill()
	killed := time.Now()
	wg.Wait()
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("it took %v to notice", took)
	}
}

func TestUnconnectedWorkerDies(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		members := func(script string) []member {
			return []member{goWorker("z0", handlers()), torchWorker("a1", script), torchWorker("p2", script), goWorker("y3", handlers())}
		}
		shutdown := func(a *rpc.Agent) error { return a.Shutdown(testContext(t)) }
		barrier := func(a *rpc.Agent) error { return rpc.Barrier(testContext(t), a) }
		for name, wait := range map[string]func(a *rpc.Agent) error{"shutdown": shutdown, "barrier": barrier} {
			for _, dead := range []string{"a1", "p2"} {
				t.Run(name+"/"+dead, func(t *testing.T) {
					w := start(t, tr, settings{static: true, tolerant: true}, members("pass")...)
					endsWith(t, w, dead, func() {
						time.Sleep(300 * time.Millisecond)
						w.procs[dead].Kill()
					}, wait)
				})
			}
		}
		// All have met for the shutdown, and one dies before its barriers in the store.
		t.Run("in the store", func(t *testing.T) {
			w := start(t, tr, settings{static: true, tolerant: true}, members(`
rpc.api._wait_all_workers(0)
print("met", flush=True)
time.sleep(60)
`)...)
			endsWith(t, w, "p2", func() {
				for _, p := range w.procs {
					p.Send(t, "go")
				}
				for _, p := range w.procs {
					p.Expect(t, "met")
				}
				time.Sleep(300 * time.Millisecond)
				w.procs["p2"].Kill()
			}, shutdown)
		})
	})
}

// TestUnconnectedWorkerIsLate lets a PyTorch worker come late to the end of its world: it is called meanwhile, which is harmless.
func TestUnconnectedWorkerIsLate(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		w := start(t, tr, settings{static: true}, goWorker("z0", handlers()), torchWorker("a1", "pass"),
			torchWorker("p2", "time.sleep(3)"), goWorker("y3", handlers()))
		w.procs["a1"].Send(t, "go")
		w.procs["p2"].Send(t, "go")
		w.procs["a1"].Expect(t, "finished")
		w.stop()
	})
}

// TestKilledWorkerIsReplaced kills a PyTorch worker of a dynamic world. A Go worker takes its name, before any other worker joins, and its
// place: the PyTorch worker that stays calls it by that name. The name of a worker that lives is not taken, and neither is that worker
// harmed by being asked whether it lives.
func TestKilledWorkerIsReplaced(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		port, ctx := testkit.FreePort(t), testContext(t)
		hostStore(t, port)
		addr := "127.0.0.1:" + strconv.Itoa(port)
		run := func(name, script string) *torchtest.Proc {
			t.Helper()
			p := tr.Start(t, torchtest.Script{
				Name: name + ".py", Modules: map[string]string{"gostub": "def who():\n    raise NotImplementedError\n"},
				Source: fmt.Sprintf(prelude, "tcp://"+addr, "", name, map[string]int{"py2": 2, "w1": 1}[name], "None") +
					"import gostub\n" + script,
			})
			p.Expect(t, "joined")
			return p
		}
		stays := run("py2", `
for i in range(3):
    eq(rpc.rpc_sync("w1", gostub.who), "go%d" % i)
    print("called", flush=True)
    input()
`+fmt.Sprintf(epilogue, "graceful=False"))
		killed := run("w1", "input()\n")
		reg := func(i int) *rpc.Registry {
			return rpc.NewRegistry().MustHandle("gostub.who", func() string { return "go" + strconv.Itoa(i) })
		}
		for range 3 {
			st, err := tcpstore.Dial(ctx, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			double, err := rpc.Join(ctx, st, "w1", rpc.WithAddr("127.0.0.1:0"))
			if !errors.Is(err, cohort.AlreadyExists) || !strings.Contains(err.Error(), "id 1") {
				t.Fatalf("%v, %v; want an error that names the worker", double, err)
			}
		}
		var former *rpc.Agent
		for i := range 3 {
			if former == nil {
				killed.Kill()
			} else {
				_ = former.Close() // without a word
			}
			begun := time.Now()
			former = joinAt(ctx, t, addr, "w1", rpc.WithHandlers(reg(i)))
			if took := time.Since(begun); took > liveness {
				t.Errorf("it took the replacement %v to join", took)
			}
			stays.Send(t, "go")
			stays.Expect(t, "called")
		}
		stays.Send(t, "go")
		stays.Expect(t, "finished")
		if err := former.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		stays.Send(t, "go")
		stays.Expect(t, "left")
		stays.MustExit(t, 30*time.Second)
	})
}

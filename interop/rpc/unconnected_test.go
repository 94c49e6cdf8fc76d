// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// pausing lets a PyTorch worker say when it has passed the all-gather of its shutdown, and wait there.
const pausing = `
released = rpc.api._delete_all_user_and_unforked_owner_rrefs
def pause(*args):
    print("gathered", flush=True)
    input()
    return released(*args)
rpc.api._delete_all_user_and_unforked_owner_rrefs = pause
`

// TestShutdownMoments has two Go workers shut down while a PyTorch worker is before, inside or behind the all-gather of its own
// shutdown, and dies there, goes without the others, or does nothing; or one of the Go workers goes without the others. A Go worker or
// the PyTorch worker leads the all-gather.
func TestShutdownMoments(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, names := range [][2]string{{"a_go", "b_py"}, {"b_go", "a_py"}} {
			for _, moment := range []struct {
				name string
				how  string      // arguments of PyTorch's shutdown
				py   string      // when something happens to the PyTorch worker: "before", "inside" or "after" the all-gather
				kill bool        // it is killed then; else it goes on, after the Go worker
				rude bool        // the first Go worker closes its agent then
				want cohort.Code // 0 if the shutdown has to succeed
			}{
				{name: "before, alive", py: "before", want: cohort.DeadlineExceeded},
				{name: "before, killed", py: "before", kill: true, want: cohort.PeerLost},
				{name: "rude", how: "graceful=False", py: "inside", want: cohort.PeerLost},
				{name: "inside, killed", py: "inside", kill: true, want: cohort.PeerLost},
				{name: "after, alive", py: "after"},
				{name: "after, killed", py: "after", kill: true, want: cohort.PeerLost},
				{name: "inside, a Go worker closes", py: "inside", rude: true, want: cohort.PeerLost},
				{name: "after, a Go worker closes", py: "after", rude: true, want: cohort.PeerLost},
			} {
				t.Run(names[0]+"/"+moment.name, func(t *testing.T) {
					w := start(t, tr, stubSettings(settings{static: true, tolerant: true, leave: moment.how}),
						goWorker(names[0], handlers()), goWorker("c_go", handlers()), torchWorker(names[1], pausing))
					w.run()
					p, lost := w.procs[names[1]], names[1]
					if moment.rude {
						lost = names[0]
					}
					if moment.py != "before" { // it is inside soon
						p.Send(t, "stop")
						time.Sleep(500 * time.Millisecond)
					}
					if moment.py == "inside" && moment.kill {
						p.Kill()
					}
					limit := 20 * time.Second
					if moment.want == cohort.DeadlineExceeded {
						limit = 2 * time.Second
					}
					ctx, cancel := context.WithTimeout(context.Background(), limit)
					defer cancel()
					ended := map[string]chan error{}
					begun := time.Now()
					for name, a := range w.agents {
						if moment.rude && moment.py == "inside" && name == names[0] {
							continue // the all-gather cannot end without it
						}
						ended[name] = make(chan error, 1)
						ch := ended[name]
						go func() { ch <- a.Shutdown(ctx) }()
					}
					if moment.py == "after" {
						p.Expect(t, "gathered")
					}
					if moment.rude {
						time.Sleep(300 * time.Millisecond) // the other Go worker waits
						_ = w.agents[names[0]].Close()
						if ch := ended[names[0]]; ch != nil {
							if err := <-ch; !errors.Is(err, cohort.Closed) {
								t.Errorf("%s closes, and its shutdown ends with %v", names[0], err)
							}
							delete(ended, names[0])
						}
					}
					if moment.py != "inside" && moment.kill {
						time.Sleep(300 * time.Millisecond) // the Go worker waits for it
						p.Kill()
					}
					if moment.py == "after" && !moment.kill && !moment.rude { // else it waits for its store's timeout, and raises
						p.Send(t, "go on")
					}
					for name, ch := range ended {
						err := <-ch
						t.Logf("%s after %v: %v", name, time.Since(begun).Round(time.Millisecond), err)
						switch {
						case moment.want == 0 && err != nil:
							t.Errorf("%s: %v", name, err)
						case moment.want != 0 && !errors.Is(err, moment.want):
							t.Errorf("%s: %v, want %v", name, err, moment.want)
						case moment.want == cohort.PeerLost && !strings.Contains(err.Error(), "(peer "+lost+")"):
							t.Errorf("%s: %v does not name %s", name, err, lost)
						case moment.want == cohort.PeerLost && time.Since(begun) > 10*time.Second:
							t.Errorf("%s took %v", name, time.Since(begun))
						}
					}
					if moment.want == 0 {
						p.Expect(t, "left")
					}
				})
			}
		}
	})
}

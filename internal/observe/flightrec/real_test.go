// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world makes groups of ranks in this process, over real connections.
func world(t *testing.T, transport group.Transport, size int, opts ...group.Option) []*group.Group {
	t.Helper()
	s := store.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	groups, errs := make([]*group.Group, size), make([]error, size)
	var ranks sync.WaitGroup
	for r := range size {
		ranks.Go(func() {
			groups[r], errs[r] = group.New(ctx, s, cohort.Rank(r), size, append([]group.Option{group.WithTransport(transport)}, opts...)...)
		})
	}
	ranks.Wait()
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, g := range groups {
			if g != nil {
				closing.Go(func() { _ = g.Close() })
			}
		}
		closing.Wait()
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return groups
}

// analyze takes the dumps of groups and judges them as the command does, through JSON.
func analyze(t *testing.T, groups ...*group.Group) flightrec.Diagnosis {
	t.Helper()
	var dumps []flightrec.Dump
	for _, g := range groups {
		data, err := g.Trace()
		if err != nil {
			t.Fatal(err)
		}
		d, err := flightrec.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, d)
	}
	trace, err := flightrec.Perfetto(dumps)
	if err != nil || !json.Valid(trace) {
		t.Fatalf("trace: %v", err)
	}
	return flightrec.Analyze(dumps)
}

func expect(t *testing.T, v flightrec.Diagnosis, finding flightrec.Finding, ranks []int, words ...string) {
	t.Helper()
	if v.Finding != finding || !slices.Equal(v.Ranks, ranks) {
		t.Errorf("%s %v, want %s %v: %s", v.Finding, v.Ranks, finding, ranks, v.Sentence)
	}
	for _, w := range words {
		if !strings.Contains(v.Sentence, w) {
			t.Errorf("%q does not say %q", v.Sentence, w)
		}
	}
	t.Log(v.Sentence)
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func ones(n int) *tensor.Tensor { return tensor.Must(tensor.From(make([]float32, n), n)) }

func barrier(t *testing.T, groups []*group.Group) {
	t.Helper()
	ctx := limited(t)
	var works []*group.Work
	for _, g := range groups {
		works = append(works, g.Barrier(ctx))
	}
	var waits sync.WaitGroup
	for _, w := range works {
		waits.Go(func() { _ = w.Wait(ctx) })
	}
	waits.Wait()
	for _, w := range works {
		if err := w.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// entered waits until the recorder of g has seen that a collective has started, so that a dump shows a rank at work.
func entered(t *testing.T, g *group.Group) {
	t.Helper()
	for range 500 {
		data, err := g.Trace()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), `"state": "started"`) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the operation did not start")
}

var transports = []group.Transport{group.TCP, group.SharedMemory, group.Gloo}

func TestRealLateRank(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := world(t, transport, 3)
			barrier(t, groups)
			expect(t, analyze(t, groups...), flightrec.InStep, []int{})
			for _, g := range groups[:2] {
				g.AllReduce(limited(t), ones(256), group.Sum)
				entered(t, g)
			}
			expect(t, analyze(t, groups...), flightrec.LateRank, []int{2}, "rank 2 never entered #1",
				"ranks 0 and 1 wait in all_reduce #1 (sum of float32, 1 KiB)")
			if err := groups[2].AllReduce(limited(t), ones(256), group.Sum).Wait(limited(t)); err != nil {
				t.Fatal(err)
			}
			barrier(t, groups)
			expect(t, analyze(t, groups...), flightrec.InStep, []int{}, "barrier #2")
		})
	}
}

func TestRealDeadRank(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := world(t, transport, 3)
			barrier(t, groups)
			var works []*group.Work
			for _, g := range groups[:2] {
				works = append(works, g.AllReduce(limited(t), ones(256), group.Sum))
				entered(t, g)
			}
			if err := groups[2].Close(); err != nil {
				t.Fatal(err)
			}
			for _, w := range works {
				if err := w.Wait(limited(t)); !errors.Is(err, cohort.PeerLost) {
					t.Fatalf("the death of rank 2: %v", err)
				}
			}
			expect(t, analyze(t, groups[:2]...), flightrec.MissingRank, []int{2}, "rank 2 gave no dump",
				"ranks 0 and 1 wait in all_reduce #1")
		})
	}
}

func TestRealMismatch(t *testing.T) {
	for _, transport := range []group.Transport{group.TCP, group.SharedMemory} {
		t.Run(string(transport), func(t *testing.T) {
			groups := world(t, transport, 3)
			barrier(t, groups)
			// Rank 1 comes last: what it calls ends the group, and a rank that has not called by then records nothing.
			works := []*group.Work{
				groups[0].AllReduce(limited(t), ones(8), group.Sum), groups[2].AllReduce(limited(t), ones(8), group.Sum),
				groups[1].AllReduce(limited(t), ones(8), group.Max),
			}
			for _, w := range works {
				if err := w.Wait(limited(t)); !errors.Is(err, cohort.Mismatch) {
					t.Errorf("got %v", err)
				}
			}
			expect(t, analyze(t, groups...), flightrec.OutOfStep, []int{1}, "operation #1 is different",
				"rank 1 calls all_reduce #1 (max of float32, 32 B)", "rank 1 is out of step")
		})
	}
}

func TestRealStuckMessage(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			groups := world(t, transport, 2)
			w := groups[0].Recv(limited(t), ones(4), 1, 5)
			expect(t, analyze(t, groups...), flightrec.StuckMessage, []int{1},
				"rank 0 is stuck in recv from rank 1 (float32, 16 B, tag 5)", "never sent it")
			w.Abort()
			if err := w.Wait(limited(t)); !errors.Is(err, cohort.Aborted) {
				t.Fatal(err)
			}
		})
	}
}

// TestRealDumpOnFailure: the dumps that WithDump gives when a group fails tell the same.
func TestRealDumpOnFailure(t *testing.T) {
	var mu sync.Mutex
	var dumps []flightrec.Dump
	groups := world(t, group.TCP, 2, group.WithTimeout(200*time.Millisecond), group.WithDump(func(reason string, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		d, err := flightrec.Parse(data)
		if err != nil || reason != "failure" || d.Reason != "failure" {
			t.Errorf("dump %q: %v", reason, err)
		}
		dumps = append(dumps, d)
	}))
	if err := groups[0].Barrier(limited(t)).Wait(limited(t)); !errors.Is(err, cohort.DeadlineExceeded) {
		t.Fatal(err)
	}
	for range 500 {
		mu.Lock()
		n := len(dumps)
		mu.Unlock()
		if n == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, g := range groups {
		_ = g.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	expect(t, flightrec.Analyze(dumps), flightrec.LateRank, []int{1}, "rank 1 never entered #0", "rank 0 waits in barrier #0")
}

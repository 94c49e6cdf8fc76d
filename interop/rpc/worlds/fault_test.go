// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestRandomFaults kills one worker of a random world in the middle of its work. Everything that the others wait for must
// end in time, with an answer or with an error that says what happened; they still reach each other; and no PyTorch worker
// aborts. More of them, or one again:
//
//	COHORT_INTEROP=auto go test ./interop/rpc/worlds -run RandomFaults -worlds 100 -world 1000
func TestRandomFaults(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for i := range *worldCount {
			seed := *worldFirst + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { randomFault(t, seed, tr) })
		}
	})
}

func randomFault(t *testing.T, seed uint64, tr *torchtest.Torch) {
	g, set, workers := newWorld(seed, tr)
	set.rounds, set.limit = 1, 5
	victim := pick(g, workers...)
	victim.alone = victim.isGo()
	t.Logf("%+v %v, %v dies", set, workers, victim)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	s := newStage(t)
	for _, w := range workers {
		s.start(w)
	}
	if set.static {
		s.join(ctx, set, 0, len(workers), workers...)
	} else {
		for _, w := range workers {
			s.join(ctx, set, 0, 0, w)
		}
	}
	g.present = workers
	for number := range 1 + g.IntN(6) {
		s.run(ctx, g, number)
	}
	survivors := slices.DeleteFunc(slices.Clone(workers), func(w *worker) bool { return w == victim })
	s.killWithin(ctx, g, victim, survivors)
	s.afterDeath(ctx, victim, survivors)
	s.each(ctx, survivors, "left", func(*worker) command { return command{Op: "leave", Rude: true} })
	for _, w := range survivors {
		switch {
		case w.proc != nil:
			s.post(ctx, w, command{Op: "exit"})
			w.proc.MustExit(t, patience)
		case w.cmd != nil:
			s.post(ctx, w, command{Op: "exit"})
			err := w.cmd.Wait()
			w.cmd = nil
			if err != nil {
				t.Errorf("%v: %v", w, err)
			}
		default:
			w.driver.close()
		}
	}
}

// typed reports whether a failure says what happened: it is an exception of PyTorch's, or an error of ours with a code.
func typed(text string) bool {
	for _, bad := range []string{"!driver", "!gone", "!no answer", "!unknown", "!internal"} {
		if strings.HasPrefix(text, bad) {
			return false
		}
	}
	return strings.HasPrefix(text, "!")
}

// killWithin kills a worker while a batch runs.
func (s *stage) killWithin(ctx context.Context, g *generator, victim *worker, survivors []*worker) {
	s.t.Helper()
	var tasks []task
	g.faulty = true
	for len(tasks) < 12 {
		batch := g.next()
		// What a batch makes is there after it, which may never be: the batches here stand for themselves.
		tasks = append(tasks, batch...)
		if len(batch) == 0 {
			tasks = append(tasks, task{
				w: survivors[0],
				c: command{Op: "call", To: victim.name, Fn: "world.echo", Mode: "sync", Args: []value{intValue(1)}}, check: want("i1"),
			})
		}
	}
	unbounded, stop := context.WithCancel(context.WithoutCancel(ctx)) // the agents' own limit ends what is stuck
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answers := make([]<-chan reply, len(tasks))
	for i, task := range tasks {
		answers[i] = s.post(unbounded, task.w, task.c)
	}
	time.Sleep(time.Duration(g.IntN(30)) * time.Millisecond)
	victim.kill()
	for i, task := range tasks {
		if got := await(ctx, answers[i]); task.w != victim {
			if err := task.check(got); err != nil && !typed(got) {
				s.t.Errorf("%v: %s: %v", task.w, describe(task.c), err)
			}
		}
	}
}

// lostListener reports that a PyTorch worker has lost its listener: it closes it for good when a process dies between connecting and
// its first bytes. Connections that it has go on. What becomes of two PyTorch workers then is theirs.
func lostListener(from, to *worker, text string) bool {
	if to.isGo() {
		return false
	}
	return !from.isGo() && typed(text) || (strings.Contains(text, " listens") || strings.Contains(text, "connection refused"))
}

// afterDeath checks that all workers notice, and that the others still work with each other.
func (s *stage) afterDeath(ctx context.Context, victim *worker, survivors []*worker) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, from := range survivors {
		for _, to := range survivors {
			c := command{Op: "call", To: to.name, Fn: "world.echo", Mode: "sync", Args: []value{intValue(3)}, Timeout: 20}
			if got := s.do(ctx, from, c); got != "i3" && !lostListener(from, to, got) {
				s.t.Errorf("%v to %v: %s", from, to, got)
			}
		}
		began := time.Now()
		got := s.do(ctx, from, command{Op: "call", To: victim.name, Fn: "world.echo", Mode: "sync", Args: []value{intValue(3)}})
		if !typed(got) || from.isGo() && !strings.HasPrefix(got, "!peer lost") {
			s.t.Errorf("%v calls the dead %v: %s", from, victim, got)
		}
		if took := time.Since(began); took > 30*time.Second {
			s.t.Errorf("%v noticed after %v", from, took)
		}
	}
}

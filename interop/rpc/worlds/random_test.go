// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

var (
	worldCount = flag.Int("worlds", 2, "how many random worlds to run with each PyTorch")
	worldSteps = flag.Bool("steps", false, "log every command")
	worldFirst = flag.Uint64("world", 1, "the seed of the first random world")
)

// setting is how the workers of a world meet.
type setting struct {
	static bool
	method string // tcp, env or file
	rounds int
	limit  float64 // of every call, in seconds
}

// join lets workers enter the world of a round.
func (s *stage) join(ctx context.Context, set setting, round, size int, workers ...*worker) {
	s.t.Helper()
	s.each(ctx, workers, "joined", func(w *worker) command {
		c := command{Op: "join", Name: w.name, Rank: w.rank, Round: round, Port: s.port, Limit: set.limit}
		if set.static {
			c.Size = size
		}
		switch set.method {
		case "env":
			c.URL = "env://"
		case "tcp":
			c.URL = fmt.Sprintf("tcp://127.0.0.1:%d", s.port)
		case "file":
			var tr *torchtest.Torch
			for _, x := range s.workers {
				if x.torch != nil {
					tr = x.torch
				}
			}
			host, inside := s.dir(tr)
			dir := host
			if w.torch != nil {
				dir = inside
			}
			c.URL = "file://" + filepath.Join(dir, "store")
		}
		return c
	})
}

// run runs a batch and checks every answer.
func (s *stage) run(ctx context.Context, g *generator, number int) {
	s.t.Helper()
	tasks := g.next()
	if testing.Verbose() && *worldSteps {
		for _, task := range tasks {
			s.t.Logf("batch %d: %v: %s -> %s", number, task.w, describe(task.c), task.c.Slot)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answers := make([]<-chan reply, len(tasks))
	for i, task := range tasks {
		answers[i] = s.post(ctx, task.w, task.c)
	}
	got := make([]string, len(tasks))
	for i := range tasks {
		got[i] = await(ctx, answers[i])
	}
	// Ids of new objects are learnt first: other commands of the batch never name them.
	for i, task := range tasks {
		if err := task.check(got[i]); err != nil {
			s.t.Errorf("batch %d: %v: %s: %v", number, task.w, describe(task.c), err)
		}
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
	g.settle()
}

func describe(c command) string {
	text := fmt.Sprintf("%s %s %s %s %s", c.Op, c.Mode, c.To, c.Fn, c.Wrap)
	if c.Ref != nil {
		text += fmt.Sprintf(" ref %+v", *c.Ref)
	}
	args, err := json.Marshal(c.Args)
	if err != nil {
		return text
	}
	return text + " " + string(args[:min(len(args), 500)])
}

// rest waits until no references are left.
func (s *stage) rest(ctx context.Context, workers []*worker) {
	s.t.Helper()
	began := time.Now()
	deadline := began.Add(20 * time.Second)
	for {
		left := map[string]string{}
		for _, w := range workers {
			if info := s.do(ctx, w, command{Op: "collect"}); info != "{}" {
				left[w.String()] = info
			}
		}
		if len(left) == 0 {
			if *worldSteps {
				s.t.Logf("at rest after %v", time.Since(began))
			}
			return
		}
		if time.Now().After(deadline) {
			for _, w := range workers {
				if w.driver != nil {
					s.t.Logf("%v: %+v", w, w.driver.agent.References())
				}
			}
			s.t.Fatalf("references are left: %v", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// complaint finds what PyTorch says when its agent is not content; that a served function raised is not such a case.
func complaint(stderr string) string {
	for line := range strings.Lines(stderr) {
		for _, word := range []string{"[W", "[E", "terminate called", "Leaking", "leak", "Failed to", "Exception in thread", "rror in "} {
			if strings.Contains(line, word) && !strings.Contains(line, "Warning") {
				return line
			}
		}
	}
	return ""
}

// finish ends the processes and fails when any worker reported an error.
func (s *stage) finish(workers []*worker) {
	s.t.Helper()
	for _, w := range workers {
		switch {
		case w.proc != nil:
			s.post(context.Background(), w, command{Op: "exit"})
			w.proc.MustExit(s.t, patience)
			if c := complaint(w.proc.Stderr()); c != "" {
				s.t.Errorf("%v complains: %s", w, c)
			}
		case w.cmd != nil:
			s.post(context.Background(), w, command{Op: "exit"})
			err := w.cmd.Wait()
			w.cmd = nil
			if err != nil || w.stderr.Len() > 0 {
				s.t.Errorf("%v: %v: %s", w, err, w.stderr)
			}
		default:
			w.driver.close()
		}
	}
	if text := s.logs.String(); text != "" {
		s.t.Errorf("a Go worker complains: %s", text)
	}
}

// newWorld makes the workers of a seed: at least one of each language.
func newWorld(seed uint64, versions ...*torchtest.Torch) (*generator, setting, []*worker) {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, uint64(len(versions[0].Name)+len(versions))))}
	set := setting{static: g.IntN(2) == 0, method: pick(g, "tcp", "env"), rounds: pick(g, 1, 1, 2, 3), limit: 30}
	if set.static && g.IntN(3) == 0 {
		set.method, set.rounds = "file", 1 // PyTorch's own second round on a file meets what the first one left
	}
	n := 2 + g.IntN(4)
	workers := make([]*worker, n)
	for i := range workers {
		workers[i] = &worker{rank: i}
		if i > 0 && g.IntN(2) == 0 {
			workers[i].torch = pick(g, versions...)
		} else {
			workers[i].alone = g.IntN(4) == 0
		}
	}
	if len(versions) == 1 { // any rank may be first; worlds of two versions need a store that speaks both
		g.Shuffle(n, func(i, j int) { workers[i], workers[j] = workers[j], workers[i] })
	} else {
		set.static, set.method = false, "tcp"
	}
	if !slices.ContainsFunc(workers, func(w *worker) bool { return !w.isGo() }) {
		workers[n-1].torch, workers[n-1].alone = pick(g, versions...), false
	}
	for i, w := range workers {
		lang := "go"
		if w.torch != nil {
			lang = "py"
		}
		w.rank, w.name = i, fmt.Sprintf("%c_%s%d", 'a'+rune(g.IntN(26)), lang, i)
	}
	return g, set, workers
}

// TestRandomWorlds runs random worlds: Go and PyTorch workers that meet in any of PyTorch's ways, call each other, pass
// references around and leave, all at random. More of them, or one again:
//
//	COHORT_INTEROP=auto go test ./interop/rpc/worlds -run RandomWorlds -worlds 100 -world 1000
func TestRandomWorlds(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for i := range *worldCount {
			seed := *worldFirst + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { randomWorld(t, seed, tr) })
		}
	})
}

// TestMixedVersions puts workers of both PyTorch versions into one world. Their calls are the same; so that they meet, a Go
// worker hosts the store, which speaks to each as it is used to, and the world is dynamic: static ones begin with gloo,
// which differs.
func TestMixedVersions(t *testing.T) {
	torchtest.V113.Need(t)
	torchtest.V26.Need(t)
	for i := range *worldCount {
		seed := *worldFirst + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { randomWorld(t, seed, torchtest.V113, torchtest.V26) })
	}
}

func randomWorld(t *testing.T, seed uint64, versions ...*torchtest.Torch) {
	g, set, workers := newWorld(seed, versions...)
	t.Logf("%+v %v", set, workers)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s := newStage(t)
	for _, w := range workers {
		s.start(w)
	}
	began := time.Now()
	tell := func(what string) {
		if *worldSteps {
			t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), what)
		}
	}
	for round := range set.rounds {
		tell("join")
		if set.static {
			s.join(ctx, set, round, len(workers), workers...)
		} else {
			for _, w := range workers {
				s.join(ctx, set, round, 0, w)
			}
		}
		tell("run")
		g.present, g.later = workers, round > 0
		for number := range 6 + g.IntN(12) {
			s.run(ctx, g, number)
		}
		tell("drop")
		s.each(ctx, workers, "dropped", func(*worker) command { return command{Op: "dropall"} })
		g.slots = nil
		s.rest(ctx, workers)
		tell("leave")
		if set.static {
			s.each(ctx, workers, "left", func(*worker) command { return command{Op: "leave"} })
			continue
		}
		for _, w := range slices.Backward(workers) {
			tell("leave of " + w.name)
			s.each(ctx, []*worker{w}, "left", func(*worker) command { return command{Op: "leave"} })
		}
	}
	tell("finish")
	s.finish(workers)
}

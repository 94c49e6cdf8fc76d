// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/seeds"
)

// watchSim is a world in which every worker waits for something that comes only if none dies.
type watchSim struct {
	*sim
	watchers []*watcher
	static   bool
}

type watcher struct {
	*proc
	m     *Watch
	begun time.Duration
	ended time.Duration
	over  bool
}

func newWatchSim(seed uint64, deaths bool) *watchSim {
	w := &watchSim{sim: newSim(seed), static: seed%3 > 0}
	size := 2 + w.rng.IntN(7)
	for i := range size {
		w.watchers = append(w.watchers, &watcher{proc: w.process(fmt.Sprintf("w%d", i), w.static && i > 1 && w.rng.IntN(4) == 0)})
	}
	for _, x := range w.watchers {
		for _, name := range w.names {
			if name != x.name && w.rng.IntN(3) == 0 {
				for _, pair := range [][2]string{{x.name, name}, {name, x.name}} {
					c := w.contact(pair[0], pair[1])
					c.met, c.connected = true, true
				}
			}
		}
		if !x.py {
			w.after(w.within(time.Second), func() { w.watch(x) })
		}
	}
	if deaths {
		for range 1 + w.rng.IntN(2) {
			x := w.watchers[w.rng.IntN(size)]
			w.after(w.within(5*time.Second), func() { w.kill(x.proc) })
		}
	}
	for range w.rng.IntN(6) {
		a, b := w.names[w.rng.IntN(size)], w.names[w.rng.IntN(size)]
		w.after(w.within(8*time.Second), func() { w.cut(a, b) })
	}
	if w.rng.IntN(3) == 0 {
		w.after(w.within(5*time.Second), func() { w.stalled = w.now + w.within(700*time.Millisecond) })
	}
	return w
}

func (w *watchSim) watch(x *watcher) {
	if x.dead {
		return
	}
	others := []string{}
	for _, name := range w.names {
		if name != x.name {
			others = append(others, name)
		}
	}
	self := Self{Name: x.name}
	if w.static {
		self.Size = len(w.names)
	}
	x.begun = w.now
	x.m = NewWatch(self, 0, others, others, ClosedWait)
	w.start(&task{p: x.proc, what: "watch", m: x.m, then: func() { x.over, x.ended = true, w.now }})
}

func (w *watchSim) simulate() error {
	w.run(20 * time.Second)
	if w.wrong != nil {
		return w.wrong
	}
	died, alive := time.Duration(0), 0
	for _, x := range w.watchers {
		if !x.dead && !x.py {
			alive++
		}
		if x.dead && (died == 0 || x.died < died) {
			died = x.died
		}
	}
	named := map[string]bool{}
	for _, x := range w.watchers {
		switch {
		case x.dead || x.py:
		case x.over && (x.m.Err() == nil || !w.procs[x.m.Dead().Peer].dead):
			return fmt.Errorf("%s ends its wait: %w", x.name, x.m.Err())
		case died > 0 && !x.over:
			return fmt.Errorf("a worker has died at %v, and %s waits for ever", died, x.name)
		case died > 0 && x.ended > max(died, x.begun)+slack:
			return fmt.Errorf("a worker has died at %v, and %s waits until %v", died, x.name, x.ended)
		case x.over:
			named[x.m.Dead().Peer] = true
		}
	}
	if w.static && len(named) > 1 {
		return fmt.Errorf("the workers name %v", named)
	}
	return nil
}

func TestWatchSimulation(t *testing.T) {
	t.Parallel()
	for seed := range seeds.Range(200) {
		for _, deaths := range []bool{false, true} {
			holds(t, fmt.Sprintf("seed %d, deaths %v", seed, deaths), func() *watchSim { return newWatchSim(seed, deaths) })
		}
	}
}

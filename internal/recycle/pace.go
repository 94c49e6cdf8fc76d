// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package recycle

import (
	"runtime/metrics"
	"time"
)

const (
	// step is how much is lent between two collections in a program with a small heap: blocks that are used again soon
	// are still in the processor's cache.
	step = 16 << 20
	// rest is how much longer than a collection the pause after it is.
	rest = 8
)

// pacer decides when a collection is worth its cost. It is guarded by the pool's mutex.
type pacer struct {
	lent     int // bytes lent since the last collection, less what was released
	found    int // bytes that came back since then
	due      int // lent at which the next one is wanted
	patience int // factor for a program that keeps what it receives
	running  bool
	until    time.Time // pause
	cycles   uint64    // collections of the program, ours included, when last asked
	ask      func() (cycles, scan uint64)
}

func newPacer() pacer {
	return pacer{due: step, patience: 1, ask: newAsker()}
}

// newAsker returns how to ask for the number of collections so far, and for the bytes that one has to look at.
func newAsker() func() (cycles, scan uint64) {
	samples := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/scan/total:bytes"}}
	return func() (uint64, uint64) {
		metrics.Read(samples)
		return samples[0].Value.Uint64(), samples[1].Value.Uint64()
	}
}

// lend notes a block that is lent and reports whether to collect now.
func (p *pacer) lend(n int) bool {
	p.lent += n
	if p.lent < p.due || p.running {
		return false
	}
	if now := time.Now(); now.Before(p.until) {
		return false
	}
	cycles, scan := p.ask()
	p.due = max(step, int(scan)) * p.patience //nolint:gosec // bytes of memory
	if cycles != p.cycles {                   // the program collects often enough by itself
		p.cycles = cycles
		p.lent = n
		return false
	}
	if p.lent < p.due {
		return false
	}
	p.running = true
	return true
}

// back notes a block that came back.
func (p *pacer) back(n int, released bool) {
	if released {
		p.lent = max(0, p.lent-n)
		return
	}
	p.found += n
}

// collected notes the end of a collection.
func (p *pacer) collected(now time.Time, took time.Duration) {
	p.running = false
	p.until = now.Add(rest * took)
	p.cycles, _ = p.ask()
	if p.found < p.lent/2 {
		p.patience = min(2*p.patience, 1024)
	} else {
		p.patience = 1
	}
	p.lent, p.found = 0, 0
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package recycle

import (
	"testing"
	"time"
)

// program is what the pacer sees of one.
type program struct{ cycles, scan uint64 }

func paced(pr *program) *pacer {
	p := newPacer()
	p.ask = func() (uint64, uint64) { return pr.cycles, pr.scan }
	return &p
}

// collections lends blocks of 1 MiB and counts the collections that are asked for. A share of what was lent comes back.
func collections(p *pacer, pr *program, blocks int, share float64) (n int) {
	lent := 0.0
	for range blocks {
		lent += 1 << 20
		if !p.lend(1 << 20) {
			continue
		}
		n++
		pr.cycles++
		p.back(int(lent*share), false)
		p.collected(time.Now(), 0)
		lent = 0
	}
	return n
}

func TestPace(t *testing.T) {
	const blocks = 4096
	tests := []struct {
		name     string
		scan     uint64
		share    float64
		min, max int
	}{
		{"small heap", 1 << 20, 1, blocks/16 - 2, blocks / 16},
		{"large heap", 1 << 30, 1, 3, 4},
		{"everything is kept", 1 << 20, 0, 1, 10},
		{"half is kept", 1 << 20, 0.6, blocks/16 - 4, blocks / 16},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pr := &program{scan: tt.scan}
			if n := collections(paced(pr), pr, blocks, tt.share); n < tt.min || n > tt.max {
				t.Errorf("%d collections for %d MiB, want %d to %d", n, blocks, tt.min, tt.max)
			}
		})
	}
}

// TestPaceLeavesAlone: a program that collects by itself, or releases what it gets, is not made to collect.
func TestPaceLeavesAlone(t *testing.T) {
	pr := &program{}
	p := paced(pr)
	for i := range 10_000 {
		if i%4 == 0 {
			pr.cycles++
		}
		if p.lend(1 << 20) {
			t.Fatal("a collection although the program collects by itself")
		}
	}
	p = paced(pr)
	for range 10_000 {
		if p.lend(1 << 20) {
			t.Fatal("a collection although everything is released")
		}
		p.back(1<<20, true)
	}
}

// TestPaceRests: collections take a bounded share of the time.
func TestPaceRests(t *testing.T) {
	pr := &program{}
	p := paced(pr)
	for !p.lend(1 << 20) {
	}
	p.collected(time.Now(), time.Hour)
	for range 1000 {
		if p.lend(1 << 20) {
			t.Fatal("a collection right after a long one")
		}
	}
}

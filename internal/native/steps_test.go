// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"context"
	"flag"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-dist/cohort/internal/coll"
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native"
	"github.com/cohort-dist/cohort/internal/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

var update = flag.Bool("update", false, "write the table of steps in docs/groups.md anew")

// counter counts messages, and the steps that must happen one after the other: a message is a step behind the last one that
// its sender had waited for when it sent.
type counter struct {
	mu struct {
		sync.Mutex
		messages int
		steps    int
		now      []int // by rank: steps behind what it has waited for
		sent     map[way][]int
		posted   map[way]int
		awaited  map[*link.Op]place
	}
}

type way struct {
	from, to int
	slot     uint64
}

type place struct {
	way   way
	index int
}

func newCounter(ranks int) *counter {
	c := &counter{}
	c.mu.now, c.mu.sent, c.mu.posted, c.mu.awaited = make([]int, ranks), map[way][]int{}, map[way]int{}, map[*link.Op]place{}
	return c
}

// countingMesh tells a counter what goes over a mesh.
type countingMesh struct {
	link.Mesh
	c *counter
}

func (m countingMesh) Send(op *link.Op) {
	m.c.mu.Lock()
	w := way{m.Rank(), op.Peer, op.Slot}
	step := m.c.mu.now[m.Rank()] + 1
	m.c.mu.sent[w] = append(m.c.mu.sent[w], step)
	m.c.mu.messages++
	m.c.mu.steps = max(m.c.mu.steps, step)
	m.c.mu.Unlock()
	m.Mesh.Send(op)
}

func (m countingMesh) Recv(op *link.Op) {
	m.c.mu.Lock()
	w := way{op.Peer, m.Rank(), op.Slot}
	m.c.mu.awaited[op] = place{w, m.c.mu.posted[w]}
	m.c.mu.posted[w]++
	m.c.mu.Unlock()
	m.Mesh.Recv(op)
}

func (m countingMesh) Wait(ctx context.Context, op *link.Op) error {
	err := m.Mesh.Wait(ctx, op)
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if p, ok := m.c.mu.awaited[op]; ok && err == nil {
		delete(m.c.mu.awaited, op)
		m.c.mu.now[m.Rank()] = max(m.c.mu.now[m.Rank()], m.c.mu.sent[p.way][p.index])
	}
	return err
}

// effort is what a collective takes.
type effort struct{ steps, messages int }

// measure runs a collective in a world in memory. bytes is the tensor of a broadcast, reduce or all-reduce, else a rank's block.
func measure(t *testing.T, kind coll.Kind, ranks, bytes int) effort {
	t.Helper()
	c := newCounter(ranks)
	var all sync.WaitGroup
	errs := make([]error, ranks)
	for r, m := range memWorld(ranks) {
		all.Go(func() {
			q := &coll.Request{Kind: kind, DType: tensor.Float32, Op: reduce.Sum, Root: ranks / 3}
			switch kind {
			case coll.Broadcast, coll.Reduce, coll.AllReduce:
				q.Out = make([]byte, bytes)
			case coll.AllGather:
				q.In, q.Out = make([]byte, bytes), make([]byte, bytes*ranks)
			case coll.Gather:
				q.In = make([]byte, bytes)
				if r == q.Root {
					q.Out = make([]byte, bytes*ranks)
				}
			case coll.Scatter:
				q.Out = make([]byte, bytes)
				if r == q.Root {
					q.In = make([]byte, bytes*ranks)
				}
			case coll.ReduceScatter:
				q.In, q.Out = make([]byte, bytes*ranks), make([]byte, bytes)
			default:
			}
			errs[r] = native.NewEngine(countingMesh{m, c}, native.Tuning{}).Run(t.Context(), q)
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("%v of %d bytes, rank %d of %d: %v", kind, bytes, r, ranks, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return effort{c.mu.steps, c.mu.messages}
}

// OpenMPI's algorithms (coll/tuned), by their steps and messages.

func log2up(n int) int { return bits.Len(uint(n - 1)) }

func binomial(n int) effort      { return effort{log2up(n), n - 1} }
func linear(n int) effort        { return effort{1, n - 1} }
func pipeline(n int) effort      { return effort{n - 1, 4 * (n - 1)} } // of four segments
func dissemination(n int) effort { return effort{log2up(n), n * log2up(n)} }
func ring(n int) effort          { return effort{n - 1, n * (n - 1)} }
func ringBothWays(n int) effort  { return effort{2 * (n - 1), 2 * n * (n - 1)} }

func ringInSegments(n int) effort { // of a quarter of 1 MiB
	e := ringBothWays(n)
	return effort{e.steps, e.messages * max((4+n-1)/n, 1)}
}

func recursiveDoubling(n int) effort {
	power := 1 << (bits.Len(uint(n)) - 1)
	e := effort{log2up(power), power * log2up(power)}
	if rest := n - power; rest > 0 { // the others join before and hear the result afterwards
		e.steps, e.messages = e.steps+2, e.messages+2*rest
	}
	return e
}

// gathering is the all-gather of a small result: recursive doubling for a power of two of ranks, else Bruck's algorithm.
func gathering(n int) effort { return effort{log2up(n), n * log2up(n)} }

type collectiveRow struct {
	name  string
	kind  coll.Kind
	bytes int
	size  string
	peer  string
	most  func(n int) effort
}

var collectiveRows = []collectiveRow{
	{"barrier", coll.Barrier, 0, "", "dissemination", dissemination},
	{"broadcast", coll.Broadcast, 4, "4 B", "binomial tree", binomial},
	{"broadcast", coll.Broadcast, 64 << 10, "64 KiB", "binomial tree", binomial},
	{"broadcast", coll.Broadcast, 1 << 20, "1 MiB", "pipeline", pipeline},
	{"reduce", coll.Reduce, 4, "4 B", "binomial tree", binomial},
	{"reduce", coll.Reduce, 64 << 10, "64 KiB", "binomial tree", binomial},
	{"gather", coll.Gather, 4, "4 B", "linear", linear},
	{"gather", coll.Gather, 64 << 10, "64 KiB", "linear", linear},
	{"scatter", coll.Scatter, 4, "4 B", "linear", linear},
	{"scatter", coll.Scatter, 64 << 10, "64 KiB", "linear", linear},
	{"all-gather", coll.AllGather, 4, "4 B", "recursive doubling or Bruck", gathering},
	{"all-gather", coll.AllGather, 64 << 10, "64 KiB", "ring", ring},
	{"all-gather", coll.AllGather, 1 << 20, "1 MiB", "ring", ring},
	{"all-reduce", coll.AllReduce, 4, "4 B", "recursive doubling", recursiveDoubling},
	{"all-reduce", coll.AllReduce, 64 << 10, "64 KiB", "recursive doubling", recursiveDoubling},
	{"all-reduce", coll.AllReduce, 1 << 20, "1 MiB", "ring in segments", ringInSegments},
}

// No collective takes more steps or messages than OpenMPI's algorithm for the same case.
func TestStepsAndMessages(t *testing.T) {
	for _, row := range collectiveRows {
		for _, n := range []int{2, 3, 4, 5, 7, 8, 12, 16, 33, 64} {
			if row.bytes > 64<<10 && n > 16 {
				continue // memory
			}
			got, most := measure(t, row.kind, n, row.bytes), row.most(n)
			if got.steps > most.steps || got.messages > most.messages {
				t.Errorf("%s of %s with %d ranks: %d steps and %d messages; OpenMPI's %s takes %d and %d",
					row.name, row.size, n, got.steps, got.messages, row.peer, most.steps, most.messages)
			}
		}
	}
}

// The table in docs/groups.md is what the code does.
func TestStepsTable(t *testing.T) {
	const file, begin, end = "../../docs/groups.md", "<!-- steps: go test ./internal/native -run StepsTable -update -->\n", "<!-- steps end -->\n"
	var b strings.Builder
	counts := []int{2, 4, 8, 16}
	b.WriteString("| operation | size |")
	for _, n := range counts {
		fmt.Fprintf(&b, " %d ranks |", n)
	}
	b.WriteString(" OpenMPI's |\n|---|---|" + strings.Repeat("---|", len(counts)+1) + "\n")
	for _, row := range collectiveRows {
		fmt.Fprintf(&b, "| %s | %s |", row.name, row.size)
		for _, n := range counts {
			e := measure(t, row.kind, n, row.bytes)
			fmt.Fprintf(&b, " %d (%d) |", e.steps, e.messages)
		}
		fmt.Fprintf(&b, " %s |\n", row.peer)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	was, after, found := strings.Cut(rest, end)
	if !ok || !found {
		t.Fatalf("%s has no %q", file, begin)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+b.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if was != b.String() {
		t.Errorf("%s is not what the code does; run go test ./internal/native -run StepsTable -update\n%s", file, b.String())
	}
}

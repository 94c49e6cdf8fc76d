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

// The model in which steps are counted: in one step a rank sends at most one message and receives at most one, of up to
// stepBytes; a longer message takes several steps. What a rank computes takes no time.
const stepBytes = 64 << 10

// event is what a rank does: it posts a send, or waits for a message that it has sent or that it receives.
type event struct {
	kind  eventKind
	way   way
	index int // of the message among those of its way
	bytes int
}

type eventKind uint8

const (
	posts eventKind = iota
	awaitsSent
	awaitsReceived
)

type way struct {
	from, to int
	slot     uint64
}

type message struct {
	way   way
	index int
}

// recordingMesh writes down what a rank does. What it does depends on nothing but the request.
type recordingMesh struct {
	link.Mesh
	events *[]event
	counts map[way]int // messages posted, of each way
	ops    map[*link.Op]event
}

func record(m link.Mesh, events *[]event) recordingMesh {
	return recordingMesh{m, events, map[way]int{}, map[*link.Op]event{}}
}

func (m recordingMesh) Send(op *link.Op) {
	w := way{m.Rank(), op.Peer, op.Slot}
	*m.events = append(*m.events, event{posts, w, m.counts[w], len(op.Buf)})
	m.ops[op] = event{kind: awaitsSent, way: w, index: m.counts[w]}
	m.counts[w]++
	m.Mesh.Send(op)
}

func (m recordingMesh) Recv(op *link.Op) {
	w := way{op.Peer, m.Rank(), op.Slot}
	m.ops[op] = event{kind: awaitsReceived, way: w, index: m.counts[w]}
	m.counts[w]++
	m.Mesh.Recv(op)
}

func (m recordingMesh) Wait(ctx context.Context, op *link.Op) error {
	*m.events = append(*m.events, m.ops[op])
	return m.Mesh.Wait(ctx, op)
}

// replay takes the ranks through what they did, step by step, and counts steps and messages.
func replay(t *testing.T, ranks [][]event) effort {
	t.Helper()
	type transfer struct {
		event
		left int // steps
	}
	var e effort
	queues := make([][]*transfer, len(ranks)) // by sender, in order
	arrived := map[message]bool{}
	for {
		for r := range ranks {
			for len(ranks[r]) > 0 {
				next := ranks[r][0]
				if next.kind == posts {
					queues[r] = append(queues[r], &transfer{next, units(next.bytes)})
					e.messages++
				} else if !arrived[message{next.way, next.index}] {
					break
				}
				ranks[r] = ranks[r][1:]
			}
		}
		// Each sender goes on with what it has begun, or begins the first message whose receiver is free.
		busy := make([]bool, len(ranks))
		var moving []*transfer
		begun := func(q []*transfer) bool { return len(q) > 0 && q[0].left < units(q[0].bytes) }
		for _, q := range queues {
			if begun(q) {
				busy[q[0].way.to] = true
				moving = append(moving, q[0])
			}
		}
		for r, q := range queues {
			if begun(q) {
				continue
			}
			for i, m := range q {
				if !busy[m.way.to] {
					busy[m.way.to] = true
					moving = append(moving, m)
					copy(queues[r][1:i+1], q[:i])
					queues[r][0] = m
					break
				}
			}
		}
		if len(moving) == 0 {
			break
		}
		e.steps++
		for _, m := range moving {
			if m.left--; m.left == 0 {
				arrived[message{m.way, m.index}] = true
				queues[m.way.from] = queues[m.way.from][1:]
			}
		}
	}
	for r := range ranks {
		if len(ranks[r]) > 0 {
			t.Fatalf("rank %d waits for ever: %+v", r, ranks[r][0])
		}
	}
	return e
}

// effort is what a collective takes.
type effort struct{ steps, messages int }

// measure runs a collective in a world in memory. bytes is the tensor of a broadcast, reduce or all-reduce, else a rank's block.
func measure(t *testing.T, kind coll.Kind, ranks, bytes int) effort {
	t.Helper()
	events := make([][]event, ranks)
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
			case coll.AllToAll:
				q.In, q.Out = make([]byte, bytes*ranks), make([]byte, bytes*ranks)
			default:
			}
			errs[r] = native.NewEngine(record(m, &events[r]), native.Tuning{}).Run(t.Context(), q)
		})
	}
	all.Wait()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("%v of %d bytes, rank %d of %d: %v", kind, bytes, r, ranks, err)
		}
	}
	return replay(t, events)
}

// OpenMPI's algorithms, by their steps and messages: what coll/tuned of 4.1 chooses (coll_tuned_decision_fixed.c), where it has several
// for nearby sizes or numbers of ranks the best one: no tree takes fewer steps than a binomial one.

func log2up(n int) int { return bits.Len(uint(n - 1)) }

// units is how many steps a message takes.
func units(bytes int) int { return max(1, (bytes+stepBytes-1)/stepBytes) }

func binomial(n, bytes int) effort  { return effort{log2up(n) * units(bytes), n - 1} }
func dissemination(n, _ int) effort { return effort{log2up(n), n * log2up(n)} }
func linear(n, bytes int) effort    { return effort{(n - 1) * units(bytes), n - 1} }
func ring(n, bytes int) effort      { return effort{(n - 1) * units(bytes), n * (n - 1)} }

// pipeline is a chain, in four segments. OpenMPI has it without segments, which takes fewer messages and more steps.
func pipeline(n, bytes int) effort {
	return effort{(n - 1 + 3) * units(bytes/4), 4 * (n - 1)}
}

// binomialBlocks is a gather or scatter along a binomial tree: messages are twice as long at every level.
func binomialBlocks(n, bytes int) effort {
	e := effort{0, n - 1}
	for have := 1; have < n; have *= 2 {
		e.steps += units(min(have, n-have) * bytes)
	}
	return e
}

// ringInSegments is a ring, in segments of a quarter of 1 MiB. OpenMPI has it without.
func ringInSegments(n, bytes int) effort {
	segments := max((4+n-1)/n, 1)
	return effort{2 * (n - 1) * segments * units((bytes+n*segments-1)/(n*segments)), 2 * n * (n - 1) * segments}
}

func recursiveDoubling(n, bytes int) effort {
	power := 1 << (bits.Len(uint(n)) - 1)
	e := effort{log2up(power) * units(bytes), power * log2up(power)}
	if rest := n - power; rest > 0 { // the others join before and hear the result afterwards
		e.steps, e.messages = e.steps+2*units(bytes), e.messages+2*rest
	}
	return e
}

// rabenseifner is recursive halving and doubling; from 4 to 63 ranks OpenMPI uses it from 8 KiB on, with fewer and more from 256 KiB on. Where one of a pair stays out,
// ranks that had no pair run ahead, and at every distance such a rank can be served before the one that is waited for.
func rabenseifner(n, bytes int) effort {
	power := 1 << (bits.Len(uint(n)) - 1)
	halves := 0
	for part := 2; part <= power; part *= 2 {
		halves += units(bytes / part)
	}
	e := effort{2 * halves, 2 * power * log2up(power)}
	if rest := n - power; rest > 0 {
		e.steps, e.messages = e.steps+2*units(bytes)+halves, e.messages+2*rest
	}
	return e
}

// scattering is the reduce-scatter of a small input for a power of two of ranks; other numbers of ranks are compared with a ring, because
// OpenMPI's ranks that stay out get their block in two more messages that are as long as everything.
func scattering(n, bytes int) effort {
	if n < 4 || n&(n-1) != 0 {
		return ring(n, bytes)
	}
	e := effort{0, n * log2up(n)}
	for part := 2; part <= n; part *= 2 {
		e.steps += units(n * bytes / part)
	}
	return e
}

// fewOrMany is the all-reduce of a middle size: a ring with 2 and 3 ranks. At 1 MiB OpenMPI's 2 and 3 ranks take as many steps with
// rabenseifner, in fewer messages, as it does not overlap sending and reducing.
func fewOrMany(n, bytes int) effort {
	if n < 4 {
		return ringInSegments(n, bytes)
	}
	return rabenseifner(n, bytes)
}

// gathering is the all-gather of a small result: recursive doubling for a power of two of ranks, else Bruck's algorithm.
func gathering(n, bytes int) effort {
	return effort{binomialBlocks(n, bytes).steps, n * log2up(n)}
}

type collectiveRow struct {
	name  string
	kind  coll.Kind
	bytes int
	size  string
	peer  string
	most  func(n, bytes int) effort
}

var collectiveRows = []collectiveRow{
	// OpenMPI's takes fewer messages with 4 to 7 ranks, and where they are no power of two, but never fewer steps.
	{"barrier", coll.Barrier, 0, "", "recursive doubling, or with 4 to 7 ranks linear", dissemination},
	{"broadcast", coll.Broadcast, 4, "4 B", "binary tree, or from 8 ranks on k-nomial or binomial", binomial},
	{"broadcast", coll.Broadcast, 64 << 10, "64 KiB", "linear with 4 to 15 ranks, else a tree", binomial},
	// With 16 to 31 ranks OpenMPI takes fewer steps and more messages.
	{"broadcast", coll.Broadcast, 1 << 20, "1 MiB", "chain with 4 to 7 ranks, linear with 8 to 15, then scatter and all-gather", pipeline},
	{"reduce", coll.Reduce, 4, "4 B", "binary tree, or from 32 ranks on binomial", binomial},
	{"reduce", coll.Reduce, 64 << 10, "64 KiB", "binomial tree, or with 2 and 3 ranks linear", binomial},
	{"reduce", coll.Reduce, 1 << 20, "1 MiB", "linear, or from 8 ranks on a binomial tree", binomial},
	{"gather", coll.Gather, 4, "4 B", "binomial tree", binomialBlocks},
	{"gather", coll.Gather, 64 << 10, "64 KiB", "binomial tree, or with 4 to 7 ranks linear", binomialBlocks},
	{"scatter", coll.Scatter, 4, "4 B", "binomial tree, or with 2 and 3 ranks linear", binomialBlocks},
	{"scatter", coll.Scatter, 64 << 10, "64 KiB", "linear", linear},
	{"all-gather", coll.AllGather, 4, "4 B", "recursive doubling or Bruck", gathering},
	// With a number of ranks that is no power of two OpenMPI takes Bruck's algorithm, which has to copy everything once more. Sending
	// each block to everybody takes the messages of a ring.
	{"all-gather", coll.AllGather, 64 << 10, "64 KiB", "recursive doubling or Bruck, or from 32 ranks on a ring", ring},
	{"all-gather", coll.AllGather, 1 << 20, "1 MiB", "recursive doubling or Bruck, or from 32 ranks on a ring", ring},
	{"reduce-scatter", coll.ReduceScatter, 4, "4 B", "recursive halving, or with 2 and 3 ranks a ring", scattering},
	{"reduce-scatter", coll.ReduceScatter, 64 << 10, "64 KiB", "ring", ring},
	// From 16 ranks on OpenMPI takes Bruck's algorithm from 4 to 511 B. Ranks pass on the blocks of others there, which they can only if all or
	// none give splits; PyTorch lets each rank choose.
	{"all-to-all", coll.AllToAll, 4, "4 B", "linear, or from 16 ranks on Bruck", ring},
	{"all-to-all", coll.AllToAll, 64 << 10, "64 KiB", "linear", ring},
	{"all-to-all", coll.AllToAll, 1 << 20, "1 MiB", "linear", ring},
	{"all-reduce", coll.AllReduce, 4, "4 B", "recursive doubling", recursiveDoubling},
	{"all-reduce", coll.AllReduce, 64 << 10, "64 KiB", "recursive halving, or with 2 and 3 ranks a ring", fewOrMany},
	{"all-reduce", coll.AllReduce, 1 << 20, "1 MiB", "recursive halving", fewOrMany},
}

// No collective takes more steps or messages than OpenMPI's algorithm for the same case.
func TestStepsAndMessages(t *testing.T) {
	for _, row := range collectiveRows {
		for _, n := range []int{2, 3, 4, 5, 7, 8, 12, 16, 33, 64} {
			if row.bytes > 64<<10 && n > 16 {
				continue // memory
			}
			got, most := measure(t, row.kind, n, row.bytes), row.most(n, row.bytes)
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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/native"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

var update = flag.Bool("update", false, "write the table of steps in docs/internals/collectives.md anew")

// The model in which steps are counted: in one step a rank sends at most one message and receives at most one, of up to
// stepBytes; a longer message takes several steps. What a rank computes takes no time.
const stepBytes = 64 << 10

// segment is the smallest piece into which cohort cuts a message. OpenMPI sends it whole; each piece of this size is counted as a
// message where the two are compared.
const segment = 256 << 10

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

// recordingMesh writes down what a rank does, which depends on nothing but the request: no message has to move, and
// what a rank waits for is there.
type recordingMesh struct {
	transport.Mesh // none: nothing else is called
	rank, size     int
	events         []event
	counts         map[way]int // messages posted, of each way
	ops            map[*transport.Op]event
}

func (m *recordingMesh) Rank() int { return m.rank }
func (m *recordingMesh) Size() int { return m.size }

func (m *recordingMesh) Send(op *transport.Op) {
	w := way{m.rank, op.Peer, op.Slot}
	m.events = append(m.events, event{posts, w, m.counts[w], len(op.Buf)})
	m.ops[op] = event{kind: awaitsSent, way: w, index: m.counts[w]}
	m.counts[w]++
}

func (m *recordingMesh) Recv(op *transport.Op) {
	w := way{op.Peer, m.rank, op.Slot}
	op.N = len(op.Buf)
	m.ops[op] = event{kind: awaitsReceived, way: w, index: m.counts[w], bytes: len(op.Buf)}
	m.counts[w]++
}

func (m *recordingMesh) Wait(_ context.Context, op *transport.Op) error {
	m.events = append(m.events, m.ops[op])
	return nil
}

// units is how many steps a message takes.
func units(bytes int) int { return max(1, (bytes+stepBytes-1)/stepBytes) }

// effort is what a collective takes.
type effort struct {
	steps, messages int
	pieces          int // messages, a long one once for each segment
	wakes           int // how often a rank had to wait for a message that it receives, at most
}

func (e effort) String() string { return fmt.Sprintf("%d (%d)", e.steps, e.messages) }

// replay takes the ranks through what they did, step by step, and counts steps and messages.
func replay(tb testing.TB, ranks [][]event) effort {
	tb.Helper()
	type transfer struct {
		event
		left  int // steps
		begun bool
	}
	var e effort
	var waiting []*transfer // in the order in which they were posted
	asleep, wakes := make([]bool, len(ranks)), make([]int, len(ranks))
	arrived := map[message]int{}
	for {
		for r := range ranks {
			for len(ranks[r]) > 0 {
				next := ranks[r][0]
				if next.kind == posts {
					waiting = append(waiting, &transfer{event: next, left: units(next.bytes)})
					e.messages++
					e.pieces += max(1, (next.bytes+segment-1)/segment)
				} else if bytes, ok := arrived[message{next.way, next.index}]; !ok {
					asleep[r] = asleep[r] || next.kind == awaitsReceived
					break
				} else if next.bytes != 0 && next.bytes != bytes {
					tb.Fatalf("rank %d expects %d bytes and gets %d: %+v", r, next.bytes, bytes, next)
				}
				if asleep[r] {
					asleep[r] = false
					wakes[r]++
					e.wakes = max(e.wakes, wakes[r])
				}
				ranks[r] = ranks[r][1:]
			}
		}
		// Each sender goes on with what it has begun. Of the others the message that was posted first goes first, if
		// both its ranks are free.
		sends, receives := make([]bool, len(ranks)), make([]bool, len(ranks))
		var moving []*transfer
		for _, begun := range []bool{true, false} {
			for _, m := range waiting {
				if from, to := m.way.from, m.way.to; m.begun == begun && !sends[from] && !receives[to] {
					sends[from], receives[to] = true, true
					moving = append(moving, m)
				}
			}
		}
		if len(moving) == 0 {
			break
		}
		// Nothing changes before the next message has arrived.
		least := moving[0].left
		for _, m := range moving {
			least = min(least, m.left)
		}
		e.steps += least
		for _, m := range moving {
			m.begun = true
			if m.left -= least; m.left == 0 {
				arrived[message{m.way, m.index}] = m.bytes
			}
		}
		waiting = slices.DeleteFunc(waiting, func(m *transfer) bool { return m.left == 0 })
	}
	for r := range ranks {
		if len(ranks[r]) > 0 {
			tb.Fatalf("rank %d waits for ever: %+v", r, ranks[r][0])
		}
	}
	return e
}

// requestOf is a rank's part in a collective. block is the tensor of a broadcast, reduce or all-reduce, else a rank's
// block; all has one for each rank. Ranks that run one after another can use the same memory.
func requestOf(kind collective.Kind, rank, n int, block, all []byte) *collective.Request {
	q := &collective.Request{Kind: kind, DType: tensor.Float32, Op: reduce.Sum, Root: n / 3}
	switch kind {
	case collective.Broadcast, collective.Reduce, collective.AllReduce:
		q.Out = block
	case collective.AllGather:
		q.In, q.Out = block, all
	case collective.Gather:
		q.In = block
		if rank == q.Root {
			q.Out = all
		}
	case collective.Scatter:
		q.Out = block
		if rank == q.Root {
			q.In = all
		}
	case collective.ReduceScatter:
		q.In, q.Out = all, block
	case collective.AllToAll:
		q.In, q.Out = all, all
	default:
	}
	return q
}

// record runs a collective and writes down what each rank does.
func record(tb testing.TB, kind collective.Kind, n, bytes int) (meshes []*recordingMesh, engines []*native.Engine) {
	tb.Helper()
	block, all := make([]byte, bytes), make([]byte, bytes*n)
	for r := range n {
		m := &recordingMesh{rank: r, size: n, counts: map[way]int{}, ops: map[*transport.Op]event{}}
		e := native.NewEngine(m, native.Tuning{})
		if err := e.Run(tb.Context(), requestOf(kind, r, n, block, all)); err != nil {
			tb.Fatalf("%v of %d bytes, rank %d of %d: %v", kind, bytes, r, n, err)
		}
		meshes, engines = append(meshes, m), append(engines, e)
	}
	return meshes, engines
}

// measure runs a collective and counts.
func measure(tb testing.TB, kind collective.Kind, n, bytes int) effort {
	tb.Helper()
	meshes, _ := record(tb, kind, n, bytes)
	ranks := make([][]event, n)
	for r, m := range meshes {
		ranks[r] = m.events
	}
	return replay(tb, ranks)
}

// openMPITakes is what OpenMPI's algorithm for the same case takes.
func openMPITakes(tb testing.TB, kind collective.Kind, n, bytes int) (string, effort) {
	tb.Helper()
	name := openMPIs(tb, kind, n, bytes)
	s := newScript(n)
	s.run(tb, kind, name, bytes)
	return name, replay(tb, s.ranks)
}

var collectives = []struct {
	name  string
	kind  collective.Kind
	sizes []int // of the table in docs/internals/collectives.md
	// more tells where it may take more messages, and then it must take fewer steps.
	more exception
	// asMany tells where it may take more messages in as many steps.
	asMany exception
	// rounded tells where it may take more messages, and more steps, but fewer than there are ranks: each block travels
	// by itself, and its last step is not full. In bytes a rank receives no more.
	rounded exception
}{
	{name: "barrier", kind: collective.Barrier, sizes: []int{0}, more: exception{
		"all ranks tell each other in as few steps as possible",
		func(n, _ int) bool { return !power(n) && (n == 3 || n > 8) },
	}},
	{name: "broadcast", kind: collective.Broadcast, sizes: []int{4, 64 << 10, 1 << 20}, more: exception{
		"blocks are dealt out and collected",
		func(n, bytes int) bool { return n >= 16 && bytes > 256<<10 },
	}, rounded: exception{
		"blocks are dealt out and collected",
		func(n, bytes int) bool { return n >= 16 && bytes >= 1<<20 && (!power(bytes) || 24 < n && n < 29) },
	}},
	{name: "reduce", kind: collective.Reduce, sizes: []int{4, 64 << 10, 1 << 20}, more: exception{
		"each rank reduces a block",
		func(n, bytes int) bool { return n > 2 && bytes > 1<<20 },
	}},
	{name: "gather", kind: collective.Gather, sizes: []int{4, 64 << 10}, rounded: exception{
		"blocks go straight to the root",
		func(n, bytes int) bool { return n >= 8 && bytes >= 48<<10 && !power(bytes) },
	}},
	{name: "scatter", kind: collective.Scatter, sizes: []int{4, 64 << 10}},
	{name: "all-gather", kind: collective.AllGather, sizes: []int{4, 64 << 10, 1 << 20}, asMany: exception{
		"each block goes to everybody, as Bruck's algorithm would copy it once more",
		func(n, bytes int) bool { return !power(n) && n < 32 && 64<<10 <= bytes && bytes < 256<<10 },
	}, rounded: exception{
		"each block goes to everybody",
		func(n, bytes int) bool { return !power(n) && n < 32 && 64<<10 < bytes && !power(bytes) },
	}},
	{name: "reduce-scatter", kind: collective.ReduceScatter, sizes: []int{4, 64 << 10}, more: exception{
		"blocks go straight to their owners, or are small and are not reduced at one rank",
		func(n, bytes int) bool { return !power(n) && (n == 3 || bytes > 16<<10) || n >= 16 && bytes < 32 },
	}, rounded: exception{
		"blocks go straight to their owners",
		func(_, bytes int) bool { return bytes > 256<<10 && !power(bytes) },
	}},
	{name: "all-to-all", kind: collective.AllToAll, sizes: []int{4, 64 << 10, 1 << 20}},
	{name: "all-reduce", kind: collective.AllReduce, sizes: []int{4, 64 << 10, 1 << 20}, more: exception{
		"blocks go straight to their owners or around a ring",
		func(n, bytes int) bool { return !power(n) && (bytes > 1<<20 || n == 3 && bytes > 64<<10) },
	}, rounded: exception{
		"blocks go straight to their owners or around a ring",
		func(_, bytes int) bool { return bytes > 1<<20 && !power(bytes) },
	}},
}

// exception is why a collective may take more than OpenMPI's, and with which numbers of ranks and bytes.
type exception struct {
	why   string
	where func(n, bytes int) bool // nil: nowhere
}

func (e exception) holds(n, bytes int) bool { return e.where != nil && e.where(n, bytes) }

// power reports whether n is a power of two.
func power(n int) bool { return n&(n-1) == 0 }

// No collective takes more steps than OpenMPI's algorithm for the same case, in the cases compared here. It takes no more messages either.
// Where it does, the table above says why.
//
// Not compared are all-to-alls where OpenMPI takes Bruck's algorithm. Ranks pass on the blocks of others there, which they can only if
// all or none give splits; PyTorch lets each rank choose.
func TestStepsAndMessages(t *testing.T) {
	for _, c := range collectives {
		t.Run(c.name, func(t *testing.T) {
			used, ranks := map[string]bool{}, 64
			if raceEnabled {
				ranks = 12 // one goroutine does all: there is nothing to find
			}
			for n := 2; n <= ranks; n++ {
				for _, bytes := range comparedSizes(c.kind, n) {
					name, most := openMPITakes(t, c.kind, n, bytes)
					if c.kind == collective.AllToAll && name == "Bruck" {
						continue
					}
					got := measure(t, c.kind, n, bytes)
					switch more := got.messages > most.pieces; {
					case got.steps <= most.steps && !more:
					case got.steps < most.steps && c.more.holds(n, bytes):
						used["more"] = true
					case got.steps == most.steps && c.asMany.holds(n, bytes):
						used["asMany"] = true
					case got.steps < most.steps+n && c.rounded.holds(n, bytes):
						used["rounded"] = true
					default:
						t.Errorf("%d bytes with %d ranks: %v; OpenMPI's %s takes %v, with messages of up to 256 KiB %d", bytes, n,
							got, name, most, most.pieces)
					}
				}
			}
			for which, e := range map[string]exception{"more": c.more, "asMany": c.asMany, "rounded": c.rounded} {
				if e.where != nil && !used[which] && !raceEnabled {
					t.Errorf("nothing needs the exception %s (%s); remove it", which, e.why)
				}
			}
		})
	}
}

// In a small collective a rank is woken at most once in each step, and in a broadcast or scatter once in all.
func TestSmallWakes(t *testing.T) {
	for _, c := range collectives {
		for n := 2; n <= 64; n++ {
			got := measure(t, c.kind, n, min(c.sizes[0], 4))
			most := got.steps
			if c.kind == collective.Broadcast || c.kind == collective.Scatter {
				most = 1
			}
			if got.wakes > most {
				t.Errorf("%s with %d ranks wakes a rank %d times in %d steps", c.name, n, got.wakes, got.steps)
			}
		}
	}
}

// comparedSizes are two for every number of ranks, and for some numbers more, as far as the test has memory and time.
func comparedSizes(kind collective.Kind, n int) []int {
	if kind == collective.Barrier {
		return []int{0}
	}
	if !slices.Contains([]int{2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 64}, n) {
		sizes := []int{4, 32 << 10}
		if kind == collective.Broadcast && n < 32 { // where OpenMPI deals blocks out, it depends on each number of ranks
			sizes = append(sizes, 1<<20, 2<<20, 4<<20)
		}
		return sizes
	}
	sizes := []int{4, 512, 8 << 10, 32 << 10}
	touched := n // what all ranks touch, in blocks
	if kind != collective.Broadcast && kind != collective.Reduce && kind != collective.AllReduce {
		touched *= n
	}
	for bytes := 64 << 10; bytes*touched <= 24<<20; bytes *= 2 {
		sizes = append(sizes, bytes)
	}
	sizes = append(sizes, 48<<10)
	for _, bytes := range []int{65 << 10, 96 << 10, 160 << 10, 288 << 10, 1280 << 10} {
		if bytes*touched <= 24<<20 {
			sizes = append(sizes, bytes)
		}
	}
	return sizes
}

// sizeName writes a size as the documents do.
func sizeName(bytes int) string {
	switch {
	case bytes == 0:
		return ""
	case bytes >= 1<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes >= 1<<10:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d B", bytes)
}

// The table in docs/internals/collectives.md is what the code does.
func TestStepsTable(t *testing.T) {
	const file, begin, end = "../../../docs/internals/collectives.md", "<!-- steps: go test ./internal/group/native -run StepsTable " +
		"-update -->\n", "<!-- steps end -->\n"
	var b strings.Builder
	counts := []int{2, 4, 8, 16, 64}
	b.WriteString("| operation | size |")
	for _, n := range counts {
		fmt.Fprintf(&b, " %d ranks |", n)
	}
	b.WriteString(" OpenMPI's |\n|---|---|" + strings.Repeat("---|", len(counts)+1) + "\n")
	for _, c := range collectives {
		for _, bytes := range c.sizes {
			fmt.Fprintf(&b, "| %s | %s |", c.name, sizeName(bytes))
			var names []string
			last := ""
			for _, n := range counts {
				name, theirs := openMPITakes(t, c.kind, n, bytes)
				fmt.Fprintf(&b, " %v, %v |", measure(t, c.kind, n, bytes), theirs)
				if name != last {
					names = append(names, fmt.Sprintf("%d: %s", n, name))
				}
				last = name
			}
			fmt.Fprintf(&b, " %s |\n", strings.Join(names, "; "))
		}
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
		t.Errorf("%s is not what the code does; run go test ./internal/group/native -run StepsTable -update\n%s", file, b.String())
	}
}

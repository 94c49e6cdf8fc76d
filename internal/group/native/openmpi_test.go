// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"math/bits"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/collective"
)

// What OpenMPI 4.1 does, with up to 127 ranks: its fixed decisions (coll_tuned_decision_fixed.c), and its algorithms as messages in
// the model of steps_test.go. Its segments have no limit there, so it sends everything whole. No rank waits until a message that
// it sent has arrived, which only helps OpenMPI.
//
// A line holds for fewer ranks than it begins with; an algorithm for fewer bytes than stand behind it, the last one for
// all others. Bytes are those of the tensor in a broadcast, reduce or all-reduce, else of one rank's block. Algorithms
// of other names are counted as these: a pipeline is a chain; segmented rings are rings, and where there are fewer
// elements than ranks they are doubling; two_proc is doubling or linear; linear_sync, linear_nb and pairwise are
// linear; butterfly and the recursive doubling of a reduce-scatter are halving, which takes no more; a reduce of one
// element by Rabenseifner's algorithm is linear.
var openMPI = map[collective.Kind]string{
	collective.Barrier: `
4: doubling
8: linear
64: doubling
128: dissemination`,
	collective.Broadcast: `
4: chain<32 binary<256 chain<512 k-nomial<1024 linear<32768 binary<131072 chain<262144 linear<524288 binomial<1048576 binary
8: binary<64 binomial<128 binary<2048 binomial<8192 linear<1048576 chain
16: k-nomial<8 binary<64 k-nomial<4096 binary<16384 binomial<32768 linear
32: k-nomial<4096 binomial<1048576 scatter+all-gather
64: binomial<2048 k-nomial
128: k-nomial`,
	collective.Reduce: `
4: linear<8 binary<16 chain<32 linear<262144 chain
8: binary<4096 chain<65536 binomial<262144 linear<524288 binomial<1048576 linear
16: binary<8192 binomial
32: binary<4096 binomial
128: binomial`,
	collective.Gather: `
4: linear<4 binomial<32768 linear<65536 binomial<131072 linear
8: binomial<1024 linear<8192 binomial<32768 linear
128: binomial`,
	collective.Scatter: `
4: linear
8: binomial<2048 linear<4096 binomial<8192 linear
32: binomial<16384 linear
64: binomial<512 linear<8192 binomial<16384 linear
128: binomial<512 linear`,
	collective.AllGather: `
32: doubling
64: doubling<1024 neighbours<65536 ring
128: doubling<512 neighbours<65536 ring`,
	collective.ReduceScatter: `
4: halving<131072 reduce+scatter
8: halving<1048576 reduce+scatter
16: reduce+scatter<4 halving<524288 reduce+scatter<4194304 halving
32: reduce+scatter<32 halving<524288 reduce+scatter<2097152 halving
128: halving<4 reduce+scatter<16 halving<65536 reduce+scatter<262144 halving`,
	collective.AllToAll: `
16: linear
32: linear<4 Bruck<512 linear
64: Bruck<512 linear
128: Bruck<1024 linear`,
	collective.AllReduce: `
4: doubling<4096 ring<8192 doubling<16384 ring<262144 halving
8: doubling<8192 halving
16: doubling<8192 halving
32: doubling<4096 halving
64: doubling<128 halving
128: doubling<262144 halving`,
}

// openMPIs returns the name of OpenMPI's algorithm for a case.
func openMPIs(tb testing.TB, kind collective.Kind, n, bytes int) string {
	tb.Helper()
	for line := range strings.SplitSeq(strings.TrimSpace(openMPI[kind]), "\n") {
		ranks, choices, _ := strings.Cut(line, ": ")
		if number(tb, ranks) <= n {
			continue
		}
		for choice := range strings.FieldsSeq(choices) {
			name, below, limited := strings.Cut(choice, "<")
			if !limited || bytes < number(tb, below) {
				return name
			}
		}
	}
	tb.Fatalf("no algorithm of OpenMPI for %v of %d bytes with %d ranks", kind, bytes, n)
	return ""
}

func number(tb testing.TB, text string) int {
	tb.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// script is what the ranks of a collective do. The root is rank 0.
type script struct {
	ranks       [][]event
	sent, taken map[way]int
}

func newScript(n int) *script {
	return &script{make([][]event, n), map[way]int{}, map[way]int{}}
}

func (s *script) send(from, to, bytes int) {
	w := way{from: from, to: to}
	s.ranks[from] = append(s.ranks[from], event{posts, w, s.sent[w], bytes})
	s.sent[w]++
}

func (s *script) recv(to, from int) {
	w := way{from: from, to: to}
	s.ranks[to] = append(s.ranks[to], event{kind: awaitsReceived, way: w, index: s.taken[w]})
	s.taken[w]++
}

// move sends a message from one rank to another, which waits for it.
func (s *script) move(from, to, bytes int) {
	s.send(from, to, bytes)
	s.recv(to, from)
}

// swap exchanges two messages.
func (s *script) swap(a, b, fromA, fromB int) {
	s.send(a, b, fromA)
	s.send(b, a, fromB)
	s.recv(a, b)
	s.recv(b, a)
}

// shift has every rank send to the one at a distance and wait for the one before.
func (s *script) shift(distance, bytes int) {
	n := len(s.ranks)
	for r := range n {
		s.send(r, (r+distance)%n, bytes)
		s.recv(r, (r-distance+n)%n)
	}
}

// run adds an algorithm.
func (s *script) run(tb testing.TB, kind collective.Kind, name string, bytes int) {
	tb.Helper()
	n := len(s.ranks)
	switch name {
	case "linear":
		s.linear(kind, bytes)
	case "chain":
		for r := 1; r < n; r++ {
			if kind == collective.Broadcast {
				s.move(r-1, r, bytes)
			} else {
				s.move(n-r, n-r-1, bytes)
			}
		}
	case "binary":
		for r := 1; r < n; r++ {
			if kind == collective.Broadcast {
				s.move((r-1)/2, r, bytes)
			} else {
				s.move(n-r, (n-r-1)/2, bytes)
			}
		}
	case "binomial":
		s.tree(kind, 2, bytes)
	case "k-nomial":
		s.tree(kind, 4, bytes)
	case "scatter+all-gather":
		s.scatterAllGather(bytes)
	case "reduce+scatter":
		s.run(tb, collective.Reduce, openMPIs(tb, collective.Reduce, n, n*bytes), n*bytes)
		s.run(tb, collective.Scatter, openMPIs(tb, collective.Scatter, n, bytes), bytes)
	case "doubling":
		if kind == collective.AllGather {
			s.gatherDoubling(bytes)
		} else {
			s.pairs(bytes, s.doubling)
		}
	case "halving":
		if kind == collective.ReduceScatter {
			s.scatterHalving(bytes)
		} else {
			s.rabenseifner(bytes)
		}
	case "dissemination":
		for distance := 1; distance < n; distance *= 2 {
			s.shift(distance, bytes)
		}
	case "ring":
		for range n - 1 {
			if kind == collective.AllReduce {
				s.shift(1, (bytes+n-1)/n)
				s.shift(1, (bytes+n-1)/n)
			} else {
				s.shift(1, bytes)
			}
		}
	case "neighbours":
		s.neighbours(bytes)
	case "Bruck":
		for distance := 1; distance < n; distance *= 2 {
			count := 0
			for i := range n {
				if i&distance != 0 {
					count++
				}
			}
			s.shift(distance, count*bytes)
		}
	default:
		tb.Fatalf("no algorithm %q", name)
	}
}

func (s *script) linear(kind collective.Kind, bytes int) {
	n := len(s.ranks)
	switch kind {
	case collective.Broadcast, collective.Scatter:
		for r := 1; r < n; r++ {
			s.move(0, r, bytes)
		}
	case collective.Barrier:
		s.linear(collective.Gather, 0)
		s.linear(collective.Broadcast, 0)
	case collective.AllToAll:
		for distance := 1; distance < n; distance++ {
			for r := range n {
				s.send(r, (r+distance)%n, bytes)
			}
		}
		for distance := 1; distance < n; distance++ {
			for r := range n {
				s.recv(r, (r-distance+n)%n)
			}
		}
	default:
		for r := 1; r < n; r++ {
			s.move(r, 0, bytes)
		}
	}
}

// edges calls edge for every edge of a binomial tree, or of one in which a rank has radix-1 children at each distance.
func (s *script) edges(radix int, down bool, edge func(parent, child, distance int)) {
	n := len(s.ranks)
	widest := 1
	for widest*radix < n {
		widest *= radix
	}
	for near, far := 1, widest; near <= widest; near, far = near*radix, far/radix {
		distance := near
		if down {
			distance = far
		}
		for parent := 0; parent < n; parent += radix * distance {
			for child := parent + distance; child < min(parent+radix*distance, n); child += distance {
				edge(parent, child, distance)
			}
		}
	}
}

// tree sends along a tree. The messages of a gather or scatter have the blocks of all ranks below.
func (s *script) tree(kind collective.Kind, radix, bytes int) {
	n := len(s.ranks)
	down := kind == collective.Broadcast || kind == collective.Scatter
	s.edges(radix, down, func(parent, child, distance int) {
		length := bytes
		if kind == collective.Gather || kind == collective.Scatter {
			length = min(distance, n-child) * bytes
		}
		if down {
			s.move(parent, child, length)
		} else {
			s.move(child, parent, length)
		}
	})
}

// scatterAllGather is a broadcast: blocks go down a binomial tree, then pairs exchange what they have. A rank whose partner would be behind
// the last one gets the same from one that had a partner, along a tree of halves.
func (s *script) scatterAllGather(bytes int) {
	n := len(s.ranks)
	block := (bytes + n - 1) / n
	length := func(first, count int) int { return min((first+count)*block, bytes) - min(first*block, bytes) }
	s.edges(2, true, func(parent, child, distance int) { s.move(parent, child, length(child, distance)) })
	for distance := 1; distance < n; distance *= 2 {
		for r := range n {
			if other := r ^ distance; r < other && other < n {
				s.swap(r, other, length(r&^(distance-1), distance), length(other&^(distance-1), distance))
			}
		}
		last := (n - 1) &^ (2*distance - 1) // where the ranks begin of which some have no partner
		have := n - last - distance         // of them
		for half := distance / 2; half > 0 && have > 0; half /= 2 {
			for r := last; r < last+distance; r++ {
				if other := r | half; r < other && r < r&^(2*half-1)+have && other >= r&^(2*half-1)+have {
					s.move(r, other, length(last+distance, distance))
				}
			}
		}
	}
}

// pairs runs an exchange among a power of two of ranks. The first ranks form pairs as far as needed, of which the even ones stay out.
func (s *script) pairs(bytes int, exchange func(bytes int, ranks []int)) {
	for r := range s.rest() {
		s.move(2*r, 2*r+1, bytes)
	}
	exchange(bytes, s.odd())
	for r := range s.rest() {
		s.move(2*r+1, 2*r, bytes)
	}
}

// rest is how many ranks there are above a power of two.
func (s *script) rest() int { return len(s.ranks) &^ (1 << (bits.Len(uint(len(s.ranks))) - 1)) }

// odd is the ranks that do not stay out.
func (s *script) odd() []int {
	var ranks []int
	for r := range s.ranks {
		if r >= 2*s.rest() || r%2 == 1 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// opposite calls f for each pair of positions at a distance.
func opposite(n, distance int, f func(a, b int)) {
	for a := range n {
		if a&distance == 0 {
			f(a, a|distance)
		}
	}
}

func (s *script) doubling(bytes int, ranks []int) {
	for distance := 1; distance < len(ranks); distance *= 2 {
		opposite(len(ranks), distance, func(a, b int) { s.swap(ranks[a], ranks[b], bytes, bytes) })
	}
}

// rabenseifner is an all-reduce by halves. Of a pair both reduce a half, and then one stays out.
func (s *script) rabenseifner(bytes int) {
	for r := range s.rest() {
		s.swap(2*r, 2*r+1, bytes/2, bytes/2)
		s.move(2*r, 2*r+1, bytes/2)
	}
	ranks := s.odd()
	for part := 2; part <= len(ranks); part *= 2 {
		opposite(len(ranks), part/2, func(a, b int) { s.swap(ranks[a], ranks[b], bytes/part, bytes/part) })
	}
	for part := len(ranks); part >= 2; part /= 2 {
		opposite(len(ranks), part/2, func(a, b int) { s.swap(ranks[a], ranks[b], bytes/part, bytes/part) })
	}
	for r := range s.rest() {
		s.move(2*r+1, 2*r, bytes)
	}
}

// scatterHalving is a reduce-scatter by halves. A rank that stays out hands over everything and gets its block at the end.
func (s *script) scatterHalving(bytes int) {
	n, rest, ranks := len(s.ranks), s.rest(), s.odd()
	for r := range rest {
		s.move(2*r, 2*r+1, n*bytes)
	}
	// The blocks of the ranks at positions from first on; a pair has two.
	blocks := func(first, count int) int { return (count + min(first+count, rest) - min(first, rest)) * bytes }
	for distance := len(ranks) / 2; distance > 0; distance /= 2 {
		opposite(len(ranks), distance, func(a, b int) {
			s.swap(ranks[a], ranks[b], blocks(b&^(distance-1), distance), blocks(a&^(distance-1), distance))
		})
	}
	for r := range rest {
		s.move(2*r+1, 2*r, bytes)
	}
}

// gatherDoubling is an all-gather: recursive doubling, or Bruck's algorithm where the number of ranks is not a power of two.
func (s *script) gatherDoubling(bytes int) {
	n := len(s.ranks)
	for distance := 1; distance < n; distance *= 2 {
		if s.rest() == 0 {
			opposite(n, distance, func(a, b int) { s.swap(a, b, distance*bytes, distance*bytes) })
		} else {
			s.shift(n-distance, min(distance, n-distance)*bytes)
		}
	}
}

// neighbours is an all-gather: ranks exchange their block with one neighbour, and then two blocks at a time with both in turn. With an
// odd number of ranks it is a ring.
func (s *script) neighbours(bytes int) {
	n := len(s.ranks)
	for i := range n / 2 {
		for r := 0; r < n && n%2 == 0; r += 2 {
			length := bytes * min(i+1, 2)
			if i%2 == 0 {
				s.swap(r, r+1, length, length)
			} else {
				s.swap(r, (r+n-1)%n, length, length)
			}
		}
	}
	for range n - 1 {
		if n%2 == 1 {
			s.shift(1, bytes)
		}
	}
}

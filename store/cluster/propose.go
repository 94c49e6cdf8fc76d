// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"slices"
	"strconv"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

func formatID(id uint64) string { return strconv.FormatUint(id, 16) }

// gathered is what was asked for and the loop has not taken yet. While a batch is on its way to the disks, the next one gathers.
type gathered struct {
	mu        sync.Mutex
	proposals []Proposal
	bytes     int
	refused   []Proposal // too much had gathered
	reads     []func(error)
	flying    int // batches under way
	wakeup    chan struct{}
}

const (
	// maxFlying is how many batches may be under way: one is written here, one by the others, one is applied.
	maxFlying = 4
	// maxBatch is about how many bytes of commands become one entry, so that entries fit into messages.
	maxBatch = 1 << 20
	// maxGathered bounds what waits.
	maxGathered = 512 << 20
)

// Propose asks for commands to be applied by all members, in their order. It does not wait, and calls nothing: they come back through the
// state machine's Apply, or Aborted, each once, as long as the member is not closed.
func (m *Member) Propose(all []Proposal) {
	size := 0
	for _, p := range all {
		size += len(p.Data)
	}
	g := &m.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bytes > 0 && g.bytes+size > maxGathered {
		g.refused = append(g.refused, all...)
	} else {
		g.proposals = append(g.proposals, all...)
		g.bytes += size
	}
	g.notify()
}

// Read calls done when the state is at least as new as now: the members have confirmed that this one leads, and everything acknowledged
// before has been applied. Like Propose it does not wait; done is called by the goroutine of the state machine.
func (m *Member) Read(done func(error)) {
	g := &m.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reads = append(g.reads, done)
	g.notify()
}

func (g *gathered) notify() {
	select {
	case g.wakeup <- struct{}{}:
	default:
	}
}

// batch returns the next batch, nil if there is none or enough are under way.
func (g *gathered) batch() (batch []Proposal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.flying >= maxFlying || len(g.proposals) == 0 {
		return nil
	}
	size, n := 0, 0
	for n < len(g.proposals) && (n == 0 || size+len(g.proposals[n].Data) <= maxBatch) {
		size += len(g.proposals[n].Data)
		n++
	}
	batch = g.proposals[:n:n]
	if g.proposals = g.proposals[n:]; len(g.proposals) == 0 {
		g.proposals = nil
	}
	g.bytes -= size
	g.flying++
	return batch
}

// others reports whether something was refused, and returns the reads.
func (g *gathered) others() (refused bool, reads []func(error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	reads, g.reads = g.reads, nil
	return len(g.refused) > 0, reads
}

// landed says that a batch is not under way any more.
func (g *gathered) landed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying--
	g.notify()
}

// drain returns the proposals that have gathered.
func (g *gathered) drain() []Proposal {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.Concat(g.refused, g.proposals)
	g.refused, g.proposals, g.bytes = nil, nil, 0
	return all
}

// encodeBatch writes commands as one payload: for each its length and its bytes.
func encodeBatch(batch []Proposal) []byte {
	size := 0
	for _, p := range batch {
		size += binary.MaxVarintLen64 + len(p.Data)
	}
	b := make([]byte, 0, size)
	for _, p := range batch {
		b = append(binary.AppendUvarint(b, uint64(len(p.Data))), p.Data...)
	}
	return b
}

// decodeBatch appends the commands of a payload to entries.
func decodeBatch(entries []Entry, index uint64, payload []byte, locals []any) ([]Entry, error) {
	for i := 0; len(payload) > 0; i++ {
		size, n := binary.Uvarint(payload)
		if n <= 0 || uint64(len(payload)-n) < size { //nolint:gosec // not negative
			return nil, cohort.Newf("cluster: apply", cohort.Protocol, "entry %d cannot be read: was it written by a newer version?", index)
		}
		e := Entry{Index: index, Data: payload[n : n+int(size) : n+int(size)]} //nolint:gosec // checked
		if i < len(locals) {
			e.Local = locals[i]
		}
		entries, payload = append(entries, e), payload[n+int(size):] //nolint:gosec // checked
	}
	return entries, nil
}

// reasonOf is the error for a refusal.
func reasonOf(r membercore.Refusal) error {
	switch r.Reason {
	case membercore.NotLeader:
		return ErrNotLeader
	case membercore.Deposed:
		return ErrDeposed
	case membercore.Busy:
		return ErrBusy
	case membercore.DiskFull:
		return ErrDiskFull
	default:
		return cohort.New("cluster: change members", cohort.InvalidArgument, r.Detail)
	}
}

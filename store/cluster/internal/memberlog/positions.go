// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlog

import (
	"sort"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

// positions remember where in the log the entries stand that no snapshot covers, so that a snapshot does not drop those behind it.
type positions struct {
	mu   sync.Mutex
	all  []position // by index; an entry that was replaced is cut off with all after it
	hard *raftpb.HardState

	through storelog.LSN // what the newest snapshot covers
	newest  uint64       // the index of the newest snapshot
}

type position struct {
	index uint64
	at    storelog.LSN
}

// take continues after what was recovered.
func (p *positions) take(from *positions, s membercore.State) {
	p.all, p.hard = from.all, s.Hard
	p.through, p.newest = from.through, s.Snapshot.GetMetadata().GetIndex()
}

// add notes an entry; those with its index or a later one are replaced by it.
func (p *positions) add(index uint64, at storelog.LSN) {
	p.all = append(p.all[:p.find(index)], position{index, at})
}

func (p *positions) find(index uint64) int {
	return sort.Search(len(p.all), func(i int) bool { return p.all[i].index >= index })
}

// written notes a batch whose last record has a number.
func (p *positions) written(indexes []uint64, last storelog.LSN, hard *raftpb.HardState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, index := range indexes {
		if index != 0 {
			p.add(index, last-storelog.LSN(len(indexes)-1-i)) //nolint:gosec // a length
		}
	}
	if hard != nil {
		p.hard = hard
	}
}

// covered returns the last record that is not needed beside a snapshot up to an index, and the hard state. It reports false if there is a
// newer snapshot already.
func (p *positions) covered(index uint64) (through storelog.LSN, hard *raftpb.HardState, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	through = p.through
	if i := p.find(index + 1); i < len(p.all) {
		through = p.all[i].at - 1
	} else if i = p.find(index); i < len(p.all) {
		through = p.all[i].at // the next entry is perhaps being written now
	}
	return max(through, p.through), p.hard, index > p.newest
}

// taken notes a snapshot, and forgets the entries that it covers.
func (p *positions) taken(index uint64, through storelog.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append([]position(nil), p.all[p.find(index+1):]...)
	p.through, p.newest = through, index
}

// reset notes a snapshot in the place of everything.
func (p *positions) reset(index uint64, through storelog.LSN, hard *raftpb.HardState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all, p.hard, p.through, p.newest = nil, hard, through, index
}

func (p *positions) state() *raftpb.HardState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hard
}

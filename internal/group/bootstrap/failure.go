// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/assemble"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store"
)

// A death reaches the ranks of a group on many ways, and some of them mislead: a rank that has failed closes its
// connections, and the first rank that sees that declares it dead. So the first rank that finds a reason writes it into
// the store, with a compare-and-set, before it does anything that others can notice; the others find it there and report
// the same rank. If the store cannot be reached in time, each rank reports what it saw itself.

// judgeLimit bounds how long a failure waits for the store. A death must be reported within a second.
const judgeLimit = 500 * time.Millisecond

// ending is why a group ended, as it stands in the store.
type ending struct {
	Code   uint8  `json:"code"` // a cohort.Code, by its number
	Rank   int    `json:"rank"`
	By     int    `json:"by"`
	Peer   string `json:"peer,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// to is the error of a rank, reader. The one that is lost by another names itself, as all others do, and says that it lives.
func (e *ending) to(op string, reader int) *cohort.Error {
	err := &cohort.Error{Op: op, Code: cohort.Code(e.Code), Rank: cohort.Rank(e.Rank), Peer: e.Peer, Detail: e.Detail}
	if err.Code == cohort.PeerLost && e.Rank == reader {
		err.Detail = "another rank has lost its connection to this rank, which is alive: " + e.Detail
	}
	return err
}

// maxEndingText bounds the words in the store.
const maxEndingText = 1 << 10

// Failure is the reason that was recorded first by any rank of the group.
type Failure struct {
	store store.Store
	place *assemble.Place
	rank  int

	forming atomic.Bool         // the ranks have not all connected yet
	died    chan error          // what is to be reported of the first rank that died, for who waits while the group forms
	ended   chan transport.Loss // PyTorch ranks whose connections ended, for the same
	lossy   atomic.Bool         // a rank of the group is gone
	once    sync.Once
	first   *ending // nil if the store did not report in time
}

func newFailure(p *Plan, place *assemble.Place, forming bool) *Failure {
	v := &Failure{store: p.Store, place: place, rank: p.Rank, died: make(chan error, 1), ended: make(chan transport.Loss, p.size())}
	v.forming.Store(forming)
	return v
}

// Judge records why this rank's group fails, if no rank has recorded a reason before, and returns what to report: the first
// reason if err only says that a rank is gone, else err itself. It implements [transport.Judge].
func (v *Failure) Judge(err error) error {
	own, _ := errors.AsType[*cohort.Error](err)
	if own != nil && own.Code == cohort.PeerLost {
		v.lossy.Store(true)
	}
	if own == nil || v.place == nil || own.Code == cohort.Closed {
		return err
	}
	v.once.Do(func() { v.first = v.record(own) })
	first := v.first
	if first == nil || own.Code != cohort.PeerLost {
		return err
	}
	code := cohort.Code(first.Code)
	if code == cohort.PeerLost && first.Rank == int(own.Rank) {
		return err
	}
	if first.By != v.rank {
		return first.toOthers(own.Op, v.rank)
	}
	return first.to(own.Op, v.rank)
}

// record writes a reason unless there is one, and returns the one that counts.
func (v *Failure) record(own *cohort.Error) *ending {
	failpoint.At("group.verdict.record")
	reason := ending{Code: uint8(own.Code), Rank: int(own.Rank), By: v.rank, Peer: own.Peer, Detail: own.Detail}
	if reason.Detail == "" && own.Err != nil {
		reason.Detail = own.Err.Error()
	}
	reason.Detail = reason.Detail[:min(len(reason.Detail), maxEndingText)]
	words, err := json.Marshal(reason)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), judgeLimit)
	defer cancel()
	if v.forming.Load() && (!absent(own.Code) || own.Rank == cohort.NoRank || v.place.Closed(ctx)) {
		return nil // the attempt ends for another reason, which is this rank's own or no reason at all: the ranks try again
	}
	got, err := v.store.CompareAndSet(ctx, v.place.EndKey(), nil, words)
	first := new(ending)
	if err != nil || printable.Unmarshal(got, first) != nil {
		return nil
	}
	return first
}

// Lost is told by the engine of every rank that is gone. A death is recorded at once, whether or not an operation runs;
// a rank that left or whose connection ended is of interest only to operations that need it.
func (v *Failure) Lost(loss transport.Loss) {
	failpoint.At("group.lost")
	v.lossy.Store(true)
	switch loss.How {
	case transport.Died:
		err := v.Judge(loss.Err)
		failpoint.At("bootstrap.died")
		select {
		case v.died <- err:
		default:
		}
	case transport.Ended:
		failpoint.At("bootstrap.ended")
		select {
		case v.ended <- loss:
		default:
		}
	case transport.Left:
	}
}

// giveUp is given the reason why this rank cannot connect.
func (v *Failure) giveUp(err error) { _ = v.Judge(err) }

// absent reports whether a code says that a rank is not there.
func absent(code cohort.Code) bool { return code == cohort.PeerLost || code == cohort.Unavailable }

// late records one of the ranks for which this one waited in an attempt that has ended, unless a rank is recorded, and returns them with
// the recorded one first.
func (v *Failure) late(ctx context.Context, ranks []int) []int {
	failpoint.At("group.verdict.late")
	first := ending{Code: uint8(cohort.DeadlineExceeded), Rank: ranks[0], By: v.rank}
	words, err := json.Marshal(first)
	if err != nil {
		return ranks
	}
	got, err := v.store.CompareAndSet(ctx, v.place.EndKey(), nil, words)
	if err != nil || printable.Unmarshal(got, &first) != nil || first.Rank < 0 || first.Rank == v.rank {
		return ranks // the dead one is unknown: each names the loss that it saw
	}
	return append([]int{first.Rank}, slices.DeleteFunc(slices.Clone(ranks), func(r int) bool { return r == first.Rank })...)
}

// reason returns the reason that was recorded for the end of an attempt, or nil.
func (v *Failure) reason(ctx context.Context) error {
	first := readEnding(ctx, v.store, v.place)
	if first == nil || !absent(cohort.Code(first.Code)) && !useless(cohort.Code(first.Code)) {
		return nil
	}
	return first.to("group: new", v.rank)
}

// Lossy reports whether a rank of the group is gone.
func (v *Failure) Lossy() bool { return v.lossy.Load() }

// StopRecording keeps this rank from recording a reason from now on: it has left the group, or its process is dead to a
// test. A record that is being written is complete when StopRecording returns.
func (v *Failure) StopRecording() { v.once.Do(func() {}) }

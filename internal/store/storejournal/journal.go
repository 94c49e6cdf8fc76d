// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storejournal

import (
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Journal logs the commands of a server in a folder. It is a storeserve.Journal.
type Journal struct {
	log      *storelog.Log
	sink     storeserve.Sink
	recovery Recovery
	joined   sync.WaitGroup
	wake     chan struct{} // there are commands
	keep     chan struct{} // the keeper has something to do
	stop     chan struct{}

	mu struct {
		sync.Mutex

		gathered []*storecore.Command
		ended    bool
		stats    counters
	}
}

// counters is what the journal counts.
type counters struct {
	batches, commands, refused uint64
	snapshotError              error
}

const (
	// batchBytes is about how much is written at once: more makes the first of it wait.
	batchBytes = 4 << 20
	// retryPause is how long the log is left alone after a failure if nothing but the process itself has something to log.
	retryPause = time.Second
	// keepPause is how often the keeper looks whether it is time for a snapshot.
	keepPause = 10 * time.Second
)

func newJournal() *Journal {
	return &Journal{wake: make(chan struct{}, 1), keep: make(chan struct{}, 1), stop: make(chan struct{})}
}

// Recovery returns what Open found.
func (j *Journal) Recovery() Recovery { return j.recovery }

// Begin starts the goroutines.
func (j *Journal) Begin(sink storeserve.Sink) {
	j.sink = sink
	j.joined.Add(2)
	go j.write()
	go j.keeper()
}

// Propose takes commands that are logged with the next batch.
func (j *Journal) Propose(commands []*storecore.Command) {
	j.mu.Lock()
	j.mu.gathered = append(j.mu.gathered, commands...)
	j.mu.Unlock()
	signal(j.wake)
}

// Read does nothing: no other process changes the store, so the machine does not ask.
func (j *Journal) Read(uint64) {}

// End stops the goroutines and closes the folder. What was not logged is given up.
func (j *Journal) End() {
	j.mu.Lock()
	ended := j.mu.ended
	j.mu.ended = true
	j.mu.Unlock()
	if ended {
		return
	}
	close(j.stop)
	j.joined.Wait()
	_ = j.log.Close() // what was acknowledged is on the disk
}

// write is the goroutine that logs.
func (j *Journal) write() {
	defer j.joined.Done()
	for {
		select {
		case <-j.wake:
		case <-j.stop:
			return
		}
		for batch := j.take(); len(batch) > 0; {
			n := part(batch)
			if err := j.writeBatch(batch[:n]); err != nil {
				j.refuse(batch, err)
				j.pause()
				break
			}
			batch = batch[n:]
		}
	}
}

// take returns the commands that have gathered.
func (j *Journal) take() []*storecore.Command {
	j.mu.Lock()
	defer j.mu.Unlock()
	batch := j.mu.gathered
	j.mu.gathered = nil
	return batch
}

// part returns how many of the first commands are written at once.
func part(batch []*storecore.Command) int {
	size := 0
	for i, k := range batch {
		if size += len(k.Data); size > batchBytes {
			return max(i, 1)
		}
	}
	return len(batch)
}

// refuse gives commands back that were not logged, and all that were proposed since.
func (j *Journal) refuse(batch []*storecore.Command, reason error) {
	j.sink.Aborted(func() []*storecore.Command {
		all := append(batch, j.take()...) //nolint:gocritic // the batch is not used any more
		j.count(len(all), reason)
		return all
	}, reason)
}

// writeBatch logs commands and gives them back.
func (j *Journal) writeBatch(batch []*storecore.Command) error {
	records := make([]storelog.Record, len(batch))
	for i, k := range batch {
		records[i] = storelog.Record{Kind: commandRecord, Data: k.Data}
		if k.Vital() {
			records[i].Kind = vitalRecord
		}
	}
	failpoint.At("storejournal.write")
	last, err := j.log.Write(records)
	if err != nil {
		return err
	}
	j.count(len(batch), nil)
	first := uint64(last) - uint64(len(batch)) + 1
	entries := make([]storecore.Entry, len(batch))
	for i, k := range batch {
		entries[i] = storecore.Entry{Index: first + uint64(i), Data: k.Data, Local: k}
	}
	j.sink.Committed(entries)
	if j.log.WantsReserve() || j.log.ShouldSnapshot() {
		signal(j.keep)
	}
	return nil
}

func (j *Journal) count(n int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.mu.stats.refused += uint64(n) //nolint:gosec // not negative
		return
	}
	j.mu.stats.batches++
	j.mu.stats.commands += uint64(n) //nolint:gosec // not negative
}

// pause leaves a log alone that has refused a batch, until a client has something to log: what the process itself has comes again and
// again until it is logged.
func (j *Journal) pause() {
	timer := time.NewTimer(retryPause)
	defer timer.Stop()
	defer signal(j.wake)
	for {
		j.mu.Lock()
		asked := slices.ContainsFunc(j.mu.gathered, func(k *storecore.Command) bool { return !k.Internal() })
		j.mu.Unlock()
		if asked {
			return
		}
		select {
		case <-j.wake:
		case <-timer.C:
			return
		case <-j.stop:
			return
		}
	}
}

// keeper is the goroutine that makes snapshots and the files that the log goes on in.
func (j *Journal) keeper() {
	defer j.joined.Done()
	tick := time.NewTicker(keepPause)
	defer tick.Stop()
	for {
		select {
		case <-j.keep:
		case <-tick.C:
		case <-j.stop:
			return
		}
		if j.log.WantsReserve() {
			_ = j.log.Prepare() // else Write makes it when it needs it, and says why it cannot
		}
		if j.log.ShouldSnapshot() {
			j.note(j.snapshot())
		}
	}
}

// note keeps why the last snapshot failed, for Stats. There is another attempt with the next tick.
func (j *Journal) note(err error) {
	j.mu.Lock()
	j.mu.stats.snapshotError = err
	j.mu.Unlock()
}

// signal says that there is something to do.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

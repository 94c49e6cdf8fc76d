// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
)

// LSN is the number of a record: 1, 2, 3 and so on, without a gap. 0 is before the first.
type LSN uint64

// ID is an identity: of a store, or of a cluster of them.
type ID [16]byte

// Record is what the log keeps. Its meaning is the caller's.
type Record struct {
	LSN  LSN // set by the log when it replays; Write numbers records itself
	Kind byte
	Data []byte
}

// Replay receives what a folder holds, in order, while Open runs. An error of either function ends Open with that error.
type Replay struct {
	// Snapshot gets the newest snapshot, if there is one: the state after the record through. It must read r to its end:
	// a damage is reported by r, and only the end proves that all of it is right.
	Snapshot func(through LSN, r io.Reader) error
	// Record gets a record. Its Data is valid until the function returns.
	Record func(r Record) error
}

// Options of a log. The zero value is usable.
type Options struct {
	Identity ID // of a new folder; zero: random. An existing folder keeps its own: see Log.Identity
	Cluster  ID // of a new folder; if not zero, that of an existing one has to be the same

	Holder string // who opens the folder, for the error of those who try it meanwhile; "process PID" follows
	Vital  []byte // kinds of small records that are accepted when the disk is full, until the room that is kept for them is used up
	Tail   bool   // replay also the records that the snapshot covers and Compact has left

	SegmentSize  int64         // 0: 16 MiB
	SnapshotSize int64         // ShouldSnapshot: least bytes of records after a snapshot; 0: 64 MiB
	SnapshotAge  time.Duration // ShouldSnapshot: greatest age of a snapshot that does not cover all; 0: one hour

	Disk Disk             // nil: the disks of this machine
	Now  func() time.Time // nil: time.Now
	Rand io.Reader        // nil: crypto/rand
}

// Stats describes a log, for metrics.
type Stats struct {
	First, Last   LSN       // of the records that the segments hold
	Segments      int       // files, without the reserve
	Bytes         int64     // of the segments on the disk, without the reserve
	Since         int64     // bytes of records after the snapshot
	Snapshot      LSN       // what the snapshot covers
	SnapshotBytes int64     // its size; 0: there is none
	SnapshotTime  time.Time // when it was made; if there is none, when the folder was made
	Full          bool      // the reserve is missing and could not be made: only little room is left
	Cut           int64     // bytes of an unfinished batch that Open removed
	Failed        error     // why all writes fail, or nil
}

// Log is an open folder. Write must not be called by two goroutines at once; all other methods are safe at any time.
type Log struct {
	options           Options
	folder            folder
	identity, cluster ID
	lock              io.Closer

	// writing is held by Write; preparing by those who make or take the reserve; saving by those who change snapshots and
	// remove segments. Their order: saving or writing, preparing, mu.
	writing, preparing, saving sync.Mutex

	head   segment // where Write appends
	buffer []byte  // of one batch

	mu       sync.Mutex
	segments []span // the oldest first; the last is head
	last     LSN
	written  int64 // bytes of all records since Open
	covered  int64 // what written was when the snapshot was begun
	snapshot snapshot
	made     time.Time // when the folder was made
	reserve  bool      // there is one
	full     bool      // none could be made
	cut      int64
	failed   error
	closed   bool
}

// span is what is known of a segment without reading it.
type span struct {
	first LSN
	size  int64
}

// withDefaults fills in what the caller has left out.
func (o Options) withDefaults() Options {
	o.SegmentSize = orElse(o.SegmentSize, 16<<20)
	o.SnapshotSize = orElse(o.SnapshotSize, 64<<20)
	o.SnapshotAge = orElse(o.SnapshotAge, time.Hour)
	if o.Disk == nil {
		o.Disk = osDisk{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Holder == "" {
		o.Holder = "cohort"
	}
	o.Holder = fmt.Sprintf("%s, process %d", o.Holder, os.Getpid())
	return o
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Identity is that of the store, which was drawn when the folder was made.
func (l *Log) Identity() ID { return l.identity }

// Cluster is that of the cluster that the store is part of.
func (l *Log) Cluster() ID { return l.cluster }

// Last is the number of the last record; 0 in a new folder.
func (l *Log) Last() LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Write appends records as one batch and returns the number of the last when they are on the disk. It takes no context,
// because a sync cannot be cancelled: run it on a goroutine that nothing urgent waits for.
func (l *Log) Write(batch []Record) (LSN, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	need, err := l.admit(batch)
	if err != nil {
		return 0, err
	}
	if err := l.place(need, l.vital(batch)); err != nil {
		return 0, err
	}
	first := l.Last() + 1
	if err := l.append(first, batch); err != nil {
		return 0, err
	}
	last := first + LSN(len(batch)) - 1
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = last
	l.written += need
	return last, nil
}

// admit checks a batch, and that the log can be written.
func (l *Log) admit(batch []Record) (need int64, err error) {
	if err := l.usable(opWrite); err != nil {
		return 0, err
	}
	if len(batch) == 0 {
		return 0, cohort.New(opWrite, cohort.InvalidArgument, "a batch without a record")
	}
	if need = batchSize(batch); need > maxBatch {
		return 0, cohort.Newf(opWrite, cohort.TooLarge, "a batch of %d bytes; the limit is %d", need, maxBatch)
	}
	return need, nil
}

// usable returns why nothing can be written, or nil.
func (l *Log) usable(op string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return cohort.New(op, cohort.Closed, "the log was closed")
	}
	return l.failed
}

func (l *Log) vital(batch []Record) bool {
	return !slices.ContainsFunc(batch, func(r Record) bool { return !slices.Contains(l.options.Vital, r.Kind) })
}

// append writes a batch for which there is room, and makes it durable.
func (l *Log) append(first LSN, batch []Record) error {
	h := &l.head
	b, at := l.buffer[:0], h.end+frameSize
	if !h.marked {
		b, at = appendFrame(b, h.seed, frame{kind: markFrame, offset: h.end, lsn: first}), h.end
	}
	b = appendBatch(b, h.seed, h.end+frameSize, first, batch)
	if l.buffer = b; cap(b) > keepBuffer {
		l.buffer = nil
	}
	if _, err := h.file.WriteAt(b, at); err != nil {
		return l.unwritten(at, int64(len(b)), err)
	}
	if err := h.file.Sync(); err != nil {
		return l.fail(err)
	}
	h.end, h.marked = at+int64(len(b)), false
	l.mark(first + LSN(len(batch)))
	return nil
}

// keepBuffer is how much memory stays for the next batch.
const keepBuffer = 4 << 20

// mark notes behind the last batch that a sync has covered it. It becomes durable with the next sync; until then it
// protects against what happens while the machine runs.
func (l *Log) mark(next LSN) {
	h := &l.head
	_, err := h.file.WriteAt(appendFrame(nil, h.seed, frame{kind: markFrame, offset: h.end, lsn: next}), h.end)
	switch {
	case err == nil:
		h.marked = true
	case !noRoom(err):
		_ = l.fail(err) // the batch is durable; the next one will not be
	}
}

// unwritten undoes a batch that was not written as a whole.
func (l *Log) unwritten(at, size int64, err error) error {
	if !noRoom(err) {
		return l.fail(err)
	}
	l.head.undo = at + size
	if undone := l.undo(); undone != nil {
		return undone
	}
	return full(opWrite, err)
}

// undo removes what is left of a batch that was refused. What the disk has no room for is removed before the next batch.
func (l *Log) undo() error {
	h := &l.head
	at := h.end
	if h.marked {
		at += frameSize
	}
	if err := writeZeros(h.file, at, h.undo); err != nil && !noRoom(err) {
		return l.fail(err)
	} else if err != nil {
		return full(opWrite, err)
	}
	h.undo = 0
	return nil
}

func writeZeros(f File, at, to int64) error {
	for at < to {
		n, err := f.WriteAt(zeros[:min(to-at, int64(len(zeros)))], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}

// fail ends the log: the kernel may have dropped what it could not write, so that a later sync proves nothing.
func (l *Log) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		err = fmt.Errorf("%w, and refuses all writes until the folder is opened again: %w", ErrFailed, err)
		l.failed = &cohort.Error{Op: opWrite, Code: cohort.Unavailable, Rank: cohort.NoRank, Err: err}
	}
	return l.failed
}

func full(op string, err error) error {
	return &cohort.Error{
		Op: op, Code: cohort.Exhausted, Rank: cohort.NoRank, Err: err,
		Detail: "the disk of the data folder has no room; make room, and writes work again: " + err.Error(),
	}
}

// Close ends the log and unlocks the folder. What was acknowledged is on the disk already.
func (l *Log) Close() error {
	l.saving.Lock()
	defer l.saving.Unlock()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.preparing.Lock()
	defer l.preparing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var err error
	if l.failed == nil {
		err = l.head.file.Sync() // the last mark
	}
	if l.head.file != nil {
		err = errors.Join(err, l.head.file.Close())
	}
	return errors.Join(err, l.lock.Close())
}

// Stats returns the present numbers.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{
		First: l.segments[0].first, Last: l.last, Segments: len(l.segments), Since: l.written - l.covered,
		Snapshot: l.snapshot.through, SnapshotBytes: l.snapshot.bytes, SnapshotTime: l.snapshotTime(),
		Full: l.full, Cut: l.cut, Failed: l.failed,
	}
	for _, e := range l.segments {
		s.Bytes += e.size
	}
	return s
}

const (
	opOpen     = "storelog: open"
	opWrite    = "storelog: write"
	opSnapshot = "storelog: snapshot"
	opCompact  = "storelog: compact"
	opCheck    = "storelog: check"
	opSalvage  = "storelog: salvage"
)

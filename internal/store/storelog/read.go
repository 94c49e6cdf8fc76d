// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

// reading is a way through all that a folder holds. Open ends it at the first problem, Check goes on behind it.
type reading struct {
	folder  folder
	tail    bool // also what the snapshot covers
	replay  Replay
	problem func(*CorruptError) error // an error ends the reading
	segment func(s span, w *walk)     // called after each segment; nil: not

	header    header // of the file identity
	segments  []LSN
	snapshots []LSN
	snapshot  snapshot

	spans  []span // of the segments
	next   LSN    // the record that has to come
	bytes  int64  // of the records after the snapshot, as they are in the file
	last   walk   // through the newest segment
	buffer []byte
}

// run reads everything.
func (r *reading) run() error {
	for _, step := range []func() error{r.list, r.readIdentity, r.readSnapshot, r.readSegments} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// report passes damage on; any other error ends the reading.
func (r *reading) report(err error) error {
	if damage, ok := errors.AsType[*CorruptError](err); ok {
		return r.problem(damage)
	}
	return err
}

func (r *reading) damaged(name string, at int64, lsn LSN, format string, args ...any) error {
	return r.problem(&CorruptError{File: name, Offset: at, LSN: lsn, Reason: fmt.Sprintf(format, args...)})
}

// readIdentity reads what all other files have to agree with.
func (r *reading) readIdentity() error {
	b, err := r.folder.read(identityName, nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var why error
	if r.header, why = decodeHeader(b, identityFile); why == nil && len(b) != headerSize {
		why = fmt.Errorf("it has %d bytes; it was written with %d", len(b), headerSize)
	}
	if why == nil {
		return nil
	}
	if err := r.report(unreadable(identityName, why)); err != nil {
		return err
	}
	return r.guessIdentity()
}

// guessIdentity takes the identity from a segment, for those who go on in spite of damage.
func (r *reading) guessIdentity() error {
	for _, first := range r.segments {
		b, err := r.folder.read(segmentName(first), r.buffer)
		if err != nil {
			return err
		}
		var why error
		if r.header, why = decodeHeader(b, segmentFile); why == nil {
			return nil
		}
	}
	return nil
}

func (r *reading) list() error {
	names, err := r.folder.list()
	r.segments, r.snapshots = numbered(names, segmentSuffix), numbered(names, snapshotSuffix)
	return err
}

// readSnapshot passes the newest snapshot on. It was complete before the records that it covers were removed: an older one
// cannot take its place.
func (r *reading) readSnapshot() error {
	r.next = 1
	if len(r.snapshots) == 0 {
		return nil
	}
	through := r.snapshots[len(r.snapshots)-1]
	r.snapshot.through, r.next = through, through+1
	s, h, err := r.folder.openSnapshot(through, r.header)
	if err != nil {
		return r.report(err)
	}
	defer s.Close()
	r.snapshot = snapshot{true, through, h.size, time.Unix(0, h.made)}
	if r.replay.Snapshot != nil {
		if err := r.replay.Snapshot(through, s); err != nil {
			return r.report(err)
		}
	}
	if _, err := io.Copy(io.Discard, s); err != nil {
		return r.report(err)
	}
	return nil
}

// readSegments reads those that are needed, and checks that none is missing.
func (r *reading) readSegments() error {
	if len(r.segments) == 0 {
		return r.damaged(segmentName(r.next), 0, r.next, "the folder has no segment: its files were removed")
	}
	if first := r.segments[0]; first > r.next {
		if err := r.damaged(segmentName(first), 0, r.next, "it is the oldest, and the records %d to %d before it are missing",
			r.next, first-1); err != nil {
			return err
		}
	}
	begin := r.begin()
	for i := range r.segments {
		var err error
		if i < begin {
			err = r.skip(i)
		} else {
			err = r.readSegment(i)
		}
		if err != nil {
			return err
		}
	}
	if r.last.next <= r.snapshot.through && r.last.b != nil {
		return r.damaged(segmentName(r.segments[len(r.segments)-1]), r.last.end, r.last.next,
			"the snapshot covers record %d, and the log ends before it", r.snapshot.through)
	}
	return nil
}

// begin returns the index of the first segment that is read.
func (r *reading) begin() int {
	if r.tail {
		return 0
	}
	n, found := slices.BinarySearch(r.segments, r.next)
	if found {
		return n
	}
	return max(n-1, 0)
}

// skip notes a segment of which all records are covered. Whatever is in it is not needed.
func (r *reading) skip(i int) error {
	f, err := r.folder.open(segmentName(r.segments[i]))
	if err != nil {
		return err
	}
	size, err := f.Size()
	r.spans = append(r.spans, span{r.segments[i], size})
	return errors.Join(err, f.Close())
}

func (r *reading) readSegment(i int) error {
	name := segmentName(r.segments[i])
	var err error
	if r.buffer, err = r.folder.read(name, r.buffer); err != nil {
		return err
	}
	r.spans = append(r.spans, span{r.segments[i], int64(len(r.buffer))})
	h, why := decodeHeader(r.buffer, segmentFile)
	if why == nil {
		why = h.belongs(r.header, r.segments[i])
	}
	if why == nil && h.size != int64(len(r.buffer)) {
		why = fmt.Errorf("it has %d bytes; it was made with %d", len(r.buffer), h.size)
	}
	if why != nil {
		return r.report(unreadable(name, why))
	}
	w := newWalk(r.buffer, h)
	err = r.walk(&w, i)
	r.last = w
	if err == nil && r.segment != nil {
		r.segment(r.spans[i], &w)
	}
	return err
}

// walk visits the records of a segment; if the reading goes on in spite of damage, also those behind it.
func (r *reading) walk(w *walk, i int) error {
	for {
		if err := w.run(r.visit); err != nil {
			return err
		}
		at, lsn, why := r.judge(w, i)
		if why == "" {
			return nil
		}
		if err := r.damaged(segmentName(r.segments[i]), at, lsn, "%s", why); err != nil {
			return err
		}
		if !w.resume() {
			return nil
		}
	}
}

// judge says whether the end of a walk is where the records of the segment end.
func (r *reading) judge(w *walk, i int) (at int64, lsn LSN, why string) {
	newest := i == len(r.segments)-1
	switch {
	case !newest && w.next == r.segments[i+1]:
		return 0, 0, "" // what follows in the file, if anything, is not a record
	case newest && w.sealed:
		return w.end + frameSize, w.next, fmt.Sprintf("the records go on in %s, which is missing", segmentName(w.next))
	case w.bad == nil && newest:
		return 0, 0, ""
	case w.bad == nil:
		return w.end, w.next, fmt.Sprintf("the records up to %d, the next file, are missing", r.segments[i+1])
	case newest:
		if lost := w.lost(); lost != "" {
			return w.bad.from, w.bad.lsn, w.bad.why + ": " + lost
		}
		return 0, 0, ""
	default:
		return w.bad.from, w.bad.lsn, w.bad.why
	}
}

func (r *reading) visit(record Record) error {
	if record.LSN > r.snapshot.through {
		r.bytes += recordSize + int64(len(record.Data))
	} else if !r.tail {
		return nil
	}
	if r.replay.Record == nil {
		return nil
	}
	return r.replay.Record(record)
}

// resume goes on at the next mark behind damage; false if there is none.
func (w *walk) resume() bool {
	if w.bad == nil {
		return false
	}
	at := w.laterMark(w.bad.from + 1)
	if at < 0 {
		return false
	}
	f, _ := frameAt(w.b, at, w.seed)
	w.end, w.next, w.bad = at, f.lsn, nil
	return f.kind == markFrame
}

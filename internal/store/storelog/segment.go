// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"io"
	"time"

	"github.com/cohort-dist/cohort"
)

// segment is the file that batches are appended to. Its size is fixed, and it was full of zeros.
type segment struct {
	file   File
	seed   uint32
	first  LSN
	size   int64
	end    int64 // of the last batch: where the mark stands, or belongs
	marked bool  // it stands there
	undo   int64 // if not 0: what follows, up to here, is left of a batch that was refused
}

// vitalRoom is what is kept for vital records when the disk is full.
func (l *Log) vitalRoom() int64 { return min(1<<20, l.options.SegmentSize/4) }

// fits reports whether a batch fits behind the mark, with a mark behind it and the frame that ends the segment.
func (s *segment) fits(need int64) bool { return s.end+frameSize+need+2*frameSize <= s.size }

// place makes the head a segment that has room for a batch.
func (l *Log) place(need int64, vital bool) error {
	if l.head.undo != 0 {
		if err := l.undo(); err != nil {
			return err
		}
	}
	if !l.head.fits(need) {
		if err := l.roll(need); err != nil {
			return err
		}
	}
	if vital || l.hasReserve() || l.head.fits(need+l.vitalRoom()) {
		return nil
	}
	return l.Prepare()
}

func (l *Log) hasReserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserve
}

// WantsReserve reports whether Prepare has something to do.
func (l *Log) WantsReserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.reserve && l.failed == nil && !l.closed
}

// Prepare makes the reserve: the file that the log goes on in when the present one is full. Write makes it itself if it
// has to, which takes some ten milliseconds; Prepare does it beside.
func (l *Log) Prepare() error {
	l.preparing.Lock()
	defer l.preparing.Unlock()
	return l.prepare()
}

// prepare is Prepare for those who hold preparing.
func (l *Log) prepare() error {
	if err := l.usable(opWrite); err != nil || l.hasReserve() {
		return err
	}
	err := l.folder.create(reserveName, l.options.SegmentSize)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve, l.full = err == nil, err != nil && noRoom(err)
	return unmade(err)
}

// unmade is the error of a file that could not be made: nothing has changed, and it may be tried again.
func unmade(err error) error {
	switch {
	case err == nil:
		return nil
	case noRoom(err):
		return full(opWrite, err)
	default:
		return &cohort.Error{Op: opWrite, Code: cohort.Unavailable, Rank: cohort.NoRank, Err: err}
	}
}

// roll goes on in another segment: in the reserve, or in a file of its own for a batch that is larger.
func (l *Log) roll(need int64) error {
	l.preparing.Lock()
	defer l.preparing.Unlock()
	from, size := reserveName, l.options.SegmentSize
	if large := headerSize + frameSize + need + 2*frameSize; large > size {
		from, size = largeName, (large+sector-1)/sector*sector
		if err := l.folder.create(from, size); err != nil {
			return unmade(err)
		}
	} else if err := l.prepare(); err != nil {
		return err
	}
	next, err := l.begin(from, size, l.Last()+1)
	if err != nil {
		return err
	}
	return l.follow(next)
}

// begin turns a file of zeros into the segment whose first record is given.
func (l *Log) begin(from string, size int64, first LSN) (s segment, err error) {
	h := header{role: segmentFile, identity: l.identity, cluster: l.cluster, lsn: first, size: size, made: l.now().UnixNano()}
	if h.salt, err = l.salt(); err != nil {
		return s, err
	}
	b := h.encode()
	b = appendFrame(b, h.seed, frame{kind: markFrame, offset: headerSize, lsn: first})
	if err = l.folder.write(from, b, 0); err != nil {
		if noRoom(err) && !errors.Is(err, errSync) {
			return s, full(opWrite, err)
		}
		return s, l.fail(err)
	}
	s = segment{seed: h.seed, first: first, size: size, end: headerSize, marked: true}
	if s.file, err = l.enter(from, first); err != nil {
		return s, l.fail(err)
	}
	l.note(from, span{first, size})
	return s, nil
}

// enter gives a segment its name and opens it. An older one without records has the same name and is replaced.
func (l *Log) enter(from string, first LSN) (File, error) {
	if l.head.file != nil && l.head.first == first {
		_ = l.head.file.Close()
		l.head.file = nil
	}
	if err := l.folder.rename(from, segmentName(first)); err != nil {
		return nil, err
	}
	if err := l.folder.sync(); err != nil {
		return nil, err
	}
	return l.folder.open(segmentName(first))
}

// note adds a segment to the list.
func (l *Log) note(from string, s span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from == reserveName {
		l.reserve = false
	}
	if n := len(l.segments); n > 0 && l.segments[n-1].first == s.first {
		l.segments = l.segments[:n-1]
	}
	l.segments = append(l.segments, s)
}

// follow ends the head with a frame that says so, by which the loss of the next file would be noticed, and goes on in next.
func (l *Log) follow(next segment) error {
	old := l.head
	l.head = next
	if old.file == nil {
		return nil
	}
	defer old.file.Close()
	var b []byte
	at := old.end + frameSize
	if !old.marked {
		at = old.end
		b = appendFrame(b, old.seed, frame{kind: markFrame, offset: at, lsn: next.first})
	}
	b = appendFrame(b, old.seed, frame{kind: endFrame, offset: old.end + frameSize, lsn: next.first})
	if _, err := old.file.WriteAt(b, at); err != nil && !noRoom(err) {
		return l.fail(err)
	}
	if err := old.file.Sync(); err != nil {
		return l.fail(err)
	}
	return nil
}

// salt and now ask the caller's functions, one goroutine at a time.
func (l *Log) salt() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b [8]byte
	if _, err := io.ReadFull(l.options.Rand, b[:]); err != nil {
		return 0, cohort.Wrap(opWrite, cohort.Internal, err)
	}
	return little.Uint64(b[:]), nil
}

func (l *Log) now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.options.Now()
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
)

// Open locks the folder, makes it if it does not exist, and replays what it holds. The caller closes the log.
func Open(dir string, options Options, replay Replay) (*Log, error) {
	options = options.withDefaults()
	l := &Log{options: options, folder: folder{options.Disk, dir}}
	if err := l.open(replay); err != nil {
		err = errors.Join(err, l.abandon())
		if noRoom(err) {
			return nil, full(opOpen, err)
		}
		return nil, describe(dir, err)
	}
	return l, nil
}

// describe names the folder, and what to do about damage.
func describe(dir string, err error) error {
	if _, ok := errors.AsType[*CorruptError](err); ok {
		return &cohort.Error{
			Op: opOpen, Code: cohort.Unavailable, Rank: cohort.NoRank, Key: dir, Err: err,
			Detail: err.Error() + "; nothing was changed: see `cohort store check`, restore a backup, or salvage what is left",
		}
	}
	wrapped := cohort.Wrap(opOpen, cohort.Unavailable, err)
	wrapped.Key = dir
	return wrapped
}

// abandon closes what a failed Open has opened.
func (l *Log) abandon() (err error) {
	if l.head.file != nil {
		err = l.head.file.Close()
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	return err
}

func (l *Log) open(replay Replay) error {
	if err := l.folder.disk.MakeDir(l.folder.dir); err != nil {
		return err
	}
	if err := l.acquire(); err != nil {
		return err
	}
	names, err := l.clean()
	if err != nil {
		return err
	}
	if !slices.Contains(names, identityName) {
		if err := l.create(names); err != nil {
			return err
		}
	}
	r := reading{
		folder: l.folder, tail: l.options.Tail, replay: replay,
		problem: func(e *CorruptError) error { return e },
	}
	if err := r.run(); err != nil {
		return err
	}
	if c := l.options.Cluster; c != (ID{}) && c != r.header.cluster {
		return cohort.Newf(opOpen, cohort.Mismatch, "the folder is of the cluster %x, not %x", r.header.cluster, c)
	}
	return l.resume(&r)
}

// acquire locks the folder.
func (l *Log) acquire() error {
	lock, holder, err := l.folder.disk.Lock(l.folder.dir, l.options.Holder)
	if errors.Is(err, ErrLocked) {
		return cohort.Newf(opOpen, cohort.AlreadyExists, "%w: by %s", err, orElse(holder, "another process"))
	}
	l.lock = lock
	return err
}

// clean removes what was being made when the last process ended, and returns the other names.
func (l *Log) clean() ([]string, error) {
	names, err := l.folder.list()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if l.folder.temporary(name) {
			if err := l.folder.remove(name); err != nil {
				return nil, err
			}
		}
	}
	return slices.DeleteFunc(names, l.folder.temporary), nil
}

// create makes a log without records. The file identity comes last: a folder without it has never been used.
func (l *Log) create(names []string) error {
	if err := l.unused(names); err != nil {
		return err
	}
	if l.identity, l.cluster = l.options.Identity, l.options.Cluster; l.identity == (ID{}) {
		if _, err := io.ReadFull(l.options.Rand, l.identity[:]); err != nil {
			return err
		}
	}
	if err := l.folder.create(reserveName, l.options.SegmentSize); err != nil {
		return err
	}
	first, err := l.begin(reserveName, l.options.SegmentSize, 1)
	if err != nil {
		return err
	}
	if err := first.file.Close(); err != nil {
		return err
	}
	l.segments = nil
	return l.writeIdentity()
}

// unused checks that a folder without identity holds no records: at most a first segment, of a process that was ended while
// it made the folder.
func (l *Log) unused(names []string) error {
	segments := numbered(names, segmentSuffix)
	if len(segments) == 0 && len(numbered(names, snapshotSuffix)) == 0 {
		return nil
	}
	damage := &CorruptError{File: identityName, Reason: "the file is missing, and there are files of a store"}
	if len(segments) != 1 || segments[0] != 1 || len(numbered(names, snapshotSuffix)) != 0 {
		return damage
	}
	b, err := l.folder.read(segmentName(1), nil)
	if err != nil {
		return err
	}
	if len(b) < headerSize+frameSize || !allZero(b[headerSize+frameSize:]) {
		return damage
	}
	return nil
}

func (l *Log) writeIdentity() error {
	h := header{role: identityFile, identity: l.identity, cluster: l.cluster, made: l.now().UnixNano()}
	f, err := l.folder.disk.Create(l.folder.path(newName), headerSize)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := l.folder.write(newName, h.encode(), 0); err != nil {
		return err
	}
	if err := l.folder.rename(newName, identityName); err != nil {
		return err
	}
	return l.folder.sync()
}

// resume makes the log ready to be written after everything was read.
func (l *Log) resume(r *reading) error {
	l.identity, l.cluster, l.made = r.header.identity, r.header.cluster, time.Unix(0, r.header.made)
	l.snapshot, l.segments, l.written, l.last = r.snapshot, r.spans, r.bytes, r.last.next-1
	for _, older := range r.snapshots[:max(len(r.snapshots)-1, 0)] {
		if err := l.folder.remove(snapshotName(older)); err != nil {
			return err
		}
	}
	if err := l.resumeHead(&r.last); err != nil {
		return err
	}
	if err := l.keepReserve(r.buffer); err != nil {
		return err
	}
	if err := l.Prepare(); err != nil && !errors.Is(err, cohort.Exhausted) {
		return err
	}
	return nil
}

// resumeHead removes the rest of an unfinished batch from the newest segment, and makes durable what was read from it: the
// process before may have been killed between its write and its sync.
func (l *Log) resumeHead(w *walk) error {
	newest := l.segments[len(l.segments)-1]
	f, err := l.folder.open(segmentName(newest.first))
	if err != nil {
		return err
	}
	l.head = segment{file: f, seed: w.seed, first: newest.first, size: newest.size, end: w.end, marked: w.marked}
	from := w.end
	if w.marked {
		from += frameSize
	}
	if to := lastByte(w.b); to > from {
		l.cut = to - from
		if err := writeZeros(f, from, to); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if !w.marked {
		l.mark(w.next)
	}
	return l.failed
}

// lastByte returns the offset behind the last byte that is not zero.
func lastByte(b []byte) int64 {
	n := len(b)
	for n > len(zeros) && allZero(b[n-len(zeros):n]) {
		n -= len(zeros)
	}
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return int64(n)
}

// keepReserve takes over a reserve of the right size.
func (l *Log) keepReserve(buffer []byte) error {
	b, err := l.folder.read(reserveName, buffer)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if l.reserve = int64(len(b)) == l.options.SegmentSize && allZero(b); l.reserve {
		return nil
	}
	return l.folder.remove(reserveName)
}

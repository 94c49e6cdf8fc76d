// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/cohort-dist/cohort"
)

// chunkSize is how much of a snapshot has one checksum.
const chunkSize = 64 << 10

// snapshot is what is known of the newest snapshot without reading it.
type snapshot struct {
	found   bool
	through LSN
	bytes   int64 // of the file
	made    time.Time
}

// Snapshot stores the caller's state after the record through, and forgets the snapshot before it. Records may be written
// meanwhile. A failed snapshot changes nothing.
func (l *Log) Snapshot(through LSN, write func(w io.Writer) error) error {
	l.saving.Lock()
	defer l.saving.Unlock()
	begun, err := l.admitSnapshot(through)
	if err != nil {
		return err
	}
	made := l.now()
	size, err := l.save(header{role: snapshotFile, lsn: through, made: made.UnixNano()}, write)
	if err != nil {
		_ = l.folder.remove(savingName)
		return unsaved(err)
	}
	if err := l.folder.rename(savingName, snapshotName(through)); err != nil {
		return unsaved(err)
	}
	if err := l.folder.sync(); err != nil {
		return unsaved(err)
	}
	l.mu.Lock()
	before := l.snapshot
	l.snapshot, l.covered = snapshot{true, through, size, made}, begun
	l.mu.Unlock()
	if before.found && before.through != through {
		_ = l.folder.remove(snapshotName(before.through)) // else Open will
	}
	return nil
}

// admitSnapshot checks its number, and returns how much has been written until now.
func (l *Log) admitSnapshot(through LSN) (written int64, err error) {
	if err := l.usable(opSnapshot); err != nil && !errors.Is(err, ErrFailed) {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if through > l.last || through < l.snapshot.through {
		return 0, cohort.Newf(opSnapshot, cohort.InvalidArgument,
			"a snapshot of record %d: the newest covers %d, and the last record is %d", through, l.snapshot.through, l.last)
	}
	return l.written, nil
}

func unsaved(err error) error {
	if noRoom(err) {
		return full(opSnapshot, err)
	}
	return cohort.Wrap(opSnapshot, cohort.Unavailable, err)
}

// save writes a snapshot under its temporary name, and returns the size of the file.
func (l *Log) save(h header, write func(w io.Writer) error) (size int64, err error) {
	h.identity, h.cluster = l.identity, l.cluster
	if h.salt, err = l.salt(); err != nil {
		return 0, err
	}
	_ = l.folder.remove(savingName)
	f, err := l.folder.disk.Create(l.folder.path(savingName), 0)
	if err != nil {
		return 0, err
	}
	w, err := newSnapshotWriter(f, &h)
	for _, step := range []func() error{func() error { return write(w) }, w.finish, f.Sync} {
		if err == nil {
			err = step()
		}
	}
	return w.at, errors.Join(err, f.Close())
}

// snapshotWriter cuts a state into chunks. Each checksum starts from the one before, so that their order is part of them.
type snapshotWriter struct {
	f     File
	at    int64
	chunk []byte // what has not been written: eight bytes for its head, then data
	sum   uint32 // of the chunk before
}

func newSnapshotWriter(f File, h *header) (*snapshotWriter, error) {
	b := h.encode()
	w := &snapshotWriter{f: f, chunk: make([]byte, chunkHead, chunkHead+chunkSize), sum: h.seed}
	return w, w.put(b)
}

const chunkHead = 8

// Write implements io.Writer.
func (w *snapshotWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		part := b[:min(len(b), cap(w.chunk)-len(w.chunk))]
		w.chunk = append(w.chunk, part...)
		b, n = b[len(part):], n+len(part)
		if len(w.chunk) == cap(w.chunk) {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *snapshotWriter) put(b []byte) error {
	_, err := w.f.WriteAt(b, w.at)
	w.at += int64(len(b))
	return err
}

// flush writes a chunk: its length, its checksum, its data.
func (w *snapshotWriter) flush() error {
	b := w.chunk
	little.PutUint32(b, uint32(len(b)-chunkHead)) //nolint:gosec // at most chunkSize
	w.sum = chunkSum(w.sum, b)
	little.PutUint32(b[4:], w.sum)
	w.chunk = b[:chunkHead]
	return w.put(b)
}

func chunkSum(before uint32, b []byte) uint32 {
	return crc32.Update(crc32.Update(before, castagnoli, b[:4]), castagnoli, b[chunkHead:])
}

// finish writes what is left, and the chunk without data that is the last.
func (w *snapshotWriter) finish() error {
	if len(w.chunk) > chunkHead {
		if err := w.flush(); err != nil {
			return err
		}
	}
	return w.flush()
}

// snapshotReader is the state in a snapshot. It reports damage when it comes to it.
type snapshotReader struct {
	file  File
	r     *bufio.Reader
	name  string
	at    int64
	sum   uint32
	chunk []byte
	rest  []byte // of chunk
	err   error
}

// openSnapshot opens a snapshot and checks its header against that of the folder.
func (f folder) openSnapshot(through LSN, folderHeader header) (*snapshotReader, header, error) {
	name := snapshotName(through)
	file, err := f.open(name)
	if err != nil {
		return nil, header{}, err
	}
	size, err := file.Size()
	if err != nil {
		return nil, header{}, errors.Join(err, file.Close())
	}
	most := int(min(size, chunkSize)) + headerSize
	r := &snapshotReader{file: file, name: name, chunk: make([]byte, chunkHead+most)}
	r.r = bufio.NewReaderSize(io.NewSectionReader(file, 0, size), 2*most)
	h, err := r.header(through, folderHeader)
	if err != nil {
		return nil, h, errors.Join(err, file.Close())
	}
	h.size = size
	return r, h, nil
}

func (r *snapshotReader) header(through LSN, of header) (header, error) {
	b := r.chunk[:headerSize]
	n, err := io.ReadFull(r.r, b)
	if err != nil && !cutOff(err) {
		return header{}, err
	}
	h, why := decodeHeader(b[:n], snapshotFile)
	if why == nil {
		why = h.belongs(of, through)
	}
	if why != nil {
		return h, unreadable(r.name, why)
	}
	r.at, r.sum = headerSize, h.seed
	return h, nil
}

func cutOff(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// Read implements io.Reader.
func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		r.rest, r.err = r.next()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// next reads a chunk; io.EOF after the last one.
func (r *snapshotReader) next() ([]byte, error) {
	head := r.chunk[:chunkHead]
	if _, err := io.ReadFull(r.r, head); err != nil {
		return nil, r.broken(err)
	}
	n := little.Uint32(head)
	if int64(n) > int64(len(r.chunk)-chunkHead) {
		return nil, r.damage("the length of a part is not what was written")
	}
	b := r.chunk[:chunkHead+n]
	if _, err := io.ReadFull(r.r, b[chunkHead:]); err != nil {
		return nil, r.broken(err)
	}
	if r.sum = chunkSum(r.sum, b); r.sum != little.Uint32(b[4:]) {
		return nil, r.damage("a part is not what was written")
	}
	r.at += int64(len(b))
	if n == 0 {
		return nil, r.finished()
	}
	return b[chunkHead:], nil
}

func (r *snapshotReader) finished() error {
	if _, err := r.r.ReadByte(); err == nil {
		return r.damage("it goes on after its end")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return io.EOF
}

func (r *snapshotReader) broken(err error) error {
	if cutOff(err) {
		return r.damage("the file was cut off")
	}
	return err
}

func (r *snapshotReader) damage(why string) error {
	return &CorruptError{File: r.name, Offset: r.at, Reason: "snapshot: " + why}
}

// Close implements io.Closer.
func (r *snapshotReader) Close() error { return r.file.Close() }

// OpenSnapshot returns the newest snapshot, to send it elsewhere; cohort.NotFound if there is none.
func (l *Log) OpenSnapshot() (through LSN, r io.ReadCloser, err error) {
	l.saving.Lock() // it would be removed
	defer l.saving.Unlock()
	l.mu.Lock()
	s := l.snapshot
	l.mu.Unlock()
	if !s.found {
		return 0, nil, cohort.New(opSnapshot, cohort.NotFound, "the log has no snapshot yet")
	}
	found, _, err := l.folder.openSnapshot(s.through, header{identity: l.identity, cluster: l.cluster})
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", opSnapshot, err)
	}
	return s.through, found, nil
}

// Compact removes the segments that hold only records up to through. They have to be covered by the snapshot.
func (l *Log) Compact(through LSN) error {
	l.saving.Lock()
	defer l.saving.Unlock()
	if err := l.usable(opCompact); err != nil && !errors.Is(err, ErrFailed) {
		return err
	}
	if s := l.Stats().Snapshot; through > s {
		return cohort.Newf(opCompact, cohort.InvalidArgument, "up to record %d, and the snapshot covers %d", through, s)
	}
	for {
		first, ok := l.superfluous(through)
		if !ok {
			return nil
		}
		// One after the other, each made durable: what is left never has a gap.
		if err := l.drop(first); err != nil {
			return cohort.Wrap(opCompact, cohort.Unavailable, err)
		}
	}
}

// superfluous returns the oldest segment if it holds no record after through.
func (l *Log) superfluous(through LSN) (first LSN, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) < 2 || l.segments[1].first > through+1 {
		return 0, false
	}
	return l.segments[0].first, true
}

func (l *Log) drop(first LSN) error {
	if err := l.folder.remove(segmentName(first)); err != nil {
		return err
	}
	l.mu.Lock()
	l.segments = l.segments[1:]
	l.mu.Unlock()
	return l.folder.sync()
}

// ShouldSnapshot reports whether the records after the snapshot are so many, or the snapshot so old, that it is time for a
// new one: more bytes than SnapshotSize and than twice the snapshot, or older than SnapshotAge.
func (l *Log) ShouldSnapshot() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.written - l.covered
	return since > max(l.options.SnapshotSize, 2*l.snapshot.bytes) ||
		since > 0 && l.options.Now().Sub(l.snapshotTime()) > l.options.SnapshotAge
}

// snapshotTime is when the newest snapshot was made, or the folder.
func (l *Log) snapshotTime() time.Time {
	if l.snapshot.found {
		return l.snapshot.made
	}
	return l.made
}

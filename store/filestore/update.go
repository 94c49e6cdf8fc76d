// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/internal/store/storeop"
)

// change is what an update adds to the file.
type change struct {
	store   *Store
	op      string
	records []byte
	pending []pendingRecord
	remove  bool
}

type pendingRecord struct {
	key   string
	value []byte
}

// value returns what key will have when the change is written.
func (c *change) value(key string) ([]byte, bool) {
	for _, r := range slices.Backward(c.pending) {
		if r.key == key {
			return r.value, true
		}
	}
	value, found := c.store.table.values[key]
	return value, found
}

// put adds a record. The value is copied.
func (c *change) put(key string, value []byte) {
	c.records = appendRecord(c.records, key, value)
	kept := append(make([]byte, 0, len(value)), value...)
	c.pending = append(c.pending, pendingRecord{key, kept})
}

// add counts key up. An empty value counts as 0, as in PyTorch's FileStore.
func (c *change) add(key string, delta int64) (int64, error) {
	old, _ := c.value(key)
	sum, err := storeop.AddCounterEmptyIsZero(old, delta)
	if err != nil {
		return 0, storeop.CounterError("filestore: "+c.op, strings.TrimPrefix(key, userPrefix), old, err)
	}
	c.put(key, storeop.FormatCounter(sum))
	return sum, nil
}

// update runs decide on the current state under the exclusive lock and writes what it puts, all or nothing.
func (s *Store) update(ctx context.Context, op string, keys []string, decide func(*change) error) (err error) {
	defer s.observe(ctx, op, keys)(&err)
	w := s.waiting(ctx)
	defer w.end()
	if err = s.takeTurn(w); err != nil {
		return s.problem(op, w, keys, err)
	}
	defer s.endTurn()
	if err = s.updateLocked(w, op, decide); err != nil {
		return s.problem(op, w, keys, err)
	}
	return nil
}

func (s *Store) updateLocked(w *waiting, op string, decide func(*change) error) error {
	size, err := s.lockCurrent(w)
	if err != nil {
		return err
	}
	defer s.unlock()
	if size, err = s.replayOrCut(size); err != nil {
		return err
	}
	c := &change{store: s, op: op}
	if !s.registered && op != "close" {
		if _, err = c.add(refCountKey, 1); err != nil {
			return err
		}
	}
	if err = decide(c); err != nil {
		return err
	}
	if len(c.records) == 0 {
		return nil
	}
	err = s.appendAll(size, c.records)
	if c.remove { // the records will not be read, so a full disk does not keep the last one from making room
		if removed := os.Remove(s.path); removed != nil { //nolint:gosec // the path is the user's
			return errors.Join(err, removed)
		}
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range c.pending {
		s.table.apply(r.key, r.value)
	}
	s.table.pos = size + int64(len(c.records))
	s.table.end = lastBytes(append(s.table.end, c.records...))
	s.registered = true
	return nil
}

// lockCurrent takes the exclusive lock of the file that the path leads to and returns its size: between the opening and
// the lock the last user may have removed it, and what is written then would be lost.
func (s *Store) lockCurrent(w *waiting) (int64, error) {
	for {
		if s.replaced {
			return 0, s.goneError()
		}
		if s.file == nil {
			if err := s.attach(true); err != nil {
				return 0, err
			}
		}
		if err := s.lock(w, exclusive); err != nil {
			return 0, err
		}
		size, current := s.current()
		if current {
			return size, nil
		}
		if err := s.lost(); err != nil {
			return 0, err
		}
		if err := s.pause(w, firstLockPause); err != nil {
			return 0, err
		}
	}
}

// replayOrCut is replay under the exclusive lock. An unfinished record behind what this handle has read before is the
// work of a writer that died, because a living one would hold the lock: it is cut off. It returns the file's size.
func (s *Store) replayOrCut(size int64) (int64, error) {
	known := s.table.pos
	err := s.replay(size)
	if err != nil && known == 0 {
		s.forget() // so that what was read of a bad file does not count as known next time
		return size, err
	}
	if !errors.Is(err, errTorn) || size < s.table.pos {
		return size, err
	}
	s.logger.Warn("a writer died in the middle of a record: cutting it off",
		slog.String("path", s.path), slog.Int64("offset", s.table.pos), slog.Int64("bytes", size-s.table.pos))
	return s.table.pos, s.file.Truncate(s.table.pos)
}

// replay brings the table up to date from the locked file, which has the given size.
func (s *Store) replay(size int64) error {
	if size < s.table.pos {
		return fmt.Errorf("%w: it has %d bytes and had %d", errTorn, size, s.table.pos)
	}
	if end, err := s.readEnd(); err != nil {
		return err
	} else if !bytes.Equal(end, s.table.end) {
		return cmp.Or(s.lost(), s.goneError())
	}
	if size == s.table.pos {
		return nil
	}
	if err := s.table.replay(io.NewSectionReader(s.file, s.table.pos, size-s.table.pos), size, s.limit); err != nil {
		return errors.Join(fmt.Errorf("%w (offset %d)", err, s.table.pos), s.remember())
	}
	return s.remember()
}

// endBytes is how much of the end of what was read is compared before more is read. A file that was emptied and written anew, which has
// the same identity and may be longer, is recognised by it.
const endBytes = 256

func lastBytes(b []byte) []byte { return slices.Clone(b[max(0, len(b)-endBytes):]) }

// readEnd returns the last bytes before those that were not read yet.
func (s *Store) readEnd() ([]byte, error) {
	end := make([]byte, min(s.table.pos, endBytes))
	_, err := s.file.ReadAt(end, s.table.pos-int64(len(end)))
	return end, err
}

func (s *Store) remember() (err error) {
	s.table.end, err = s.readEnd()
	return err
}

// refresh brings the table up to date for a reader, without the lock when nothing has changed: what this handle has read
// ends where the file ends, so no process has written or is writing.
func (s *Store) refresh(w *waiting) error {
	for {
		if s.replaced {
			return s.goneError()
		}
		if s.file == nil {
			if err := s.attach(false); err != nil {
				return err
			}
		}
		size, current := s.current()
		if !current {
			if err := s.lost(); err != nil {
				return err
			}
			continue
		}
		if size == s.table.pos && size > 0 {
			return nil
		}
		break
	}
	known := s.table.pos
	err := s.lockAndReplay(w, shared, func(size int64) error { return s.replay(size) })
	if err != nil && known == 0 {
		s.forget()
		return err
	}
	if !errors.Is(err, errTorn) {
		return err
	}
	return s.lockAndReplay(w, exclusive, func(size int64) error {
		_, err := s.replayOrCut(size)
		return err
	})
}

// lockAndReplay runs replay with the size that the open file has under the lock.
func (s *Store) lockAndReplay(w *waiting, how lockMode, replay func(size int64) error) error {
	if err := s.lock(w, how); err != nil {
		return err
	}
	defer s.unlock()
	size, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	return replay(size)
}

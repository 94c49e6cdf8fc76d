// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/waitctx"
)

const (
	firstLockPause   = 50 * time.Microsecond
	longestLockPause = 5 * time.Millisecond
)

// fileID tells files apart. An open descriptor keeps its inode number from being given to another file.
type fileID struct{ device, inode uint64 }

// attach opens the file that the path leads to and checks that it is one that can be locked and appended to.
func (s *Store) attach(create bool) error {
	if !supported {
		return &cohort.Error{
			Op: "filestore: open", Code: cohort.NotSupported, Rank: cohort.NoRank,
			Detail: "a file store needs flock, which this system (" + runtime.GOOS + ") does not have; use a tcp:// store",
		}
	}
	flags := os.O_RDWR | nonblocking // a FIFO must not hold us up
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(s.path, flags, 0o600) //nolint:gosec // the path is the user's
	if err != nil {
		return err
	}
	id, regular, err := identify(f)
	if err == nil && !regular {
		err = errors.New("not a regular file")
	}
	if err == nil {
		err = checkOwner(f, s.path, peeruid.Default(nil, nil).Allows)
	}
	if err != nil {
		_ = f.Close()
		return &fs.PathError{Op: "open", Path: s.path, Err: err}
	}
	s.file, s.id = f, id
	return nil
}

// current reports whether the path still leads to the open file, and its size.
func (s *Store) current() (size int64, ok bool) {
	if s.file == nil {
		return 0, false
	}
	id, size, err := look(s.path)
	return size, err == nil && id == s.id
}

// forget lets go of the file, and with it of the lock.
func (s *Store) forget() {
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.id, s.table, s.registered = nil, fileID{}, newTable(), false
}

// lost is forget for a file that was removed while this handle used it. A file that is there now is another store: from now on
// the handle says so, instead of using an empty one.
func (s *Store) lost() error {
	s.replaced = s.replaced || s.registered
	s.forget()
	if !s.replaced {
		return nil // it was never ours: another process removed it between our opening and our lock
	}
	s.logger.Warn("the store's file was removed or replaced", slog.String("path", s.path))
	return s.goneError()
}

// goneError says that this handle's store does not exist any more.
func (s *Store) goneError() error {
	return cohort.Newf("filestore", cohort.Replaced,
		"the file %s was removed or replaced while it was used, and what was stored in it is gone: start all processes again, or "+
			"open a new store",
		s.path)
}

// lock takes the whole-file lock that PyTorch uses. It polls, because a wait of flock itself cannot be ended.
func (s *Store) lock(w *waiting, how lockMode) error {
	for pause := firstLockPause; ; pause = min(2*pause, longestLockPause) {
		locked, err := tryLock(s.file, how)
		if err != nil {
			return &fs.PathError{Op: "flock", Path: s.path, Err: err}
		}
		if locked {
			return nil
		}
		if err := s.pause(w, pause); err != nil {
			return &heldError{err, s.id}
		}
	}
}

func (s *Store) unlock() {
	if s.file != nil {
		unlock(s.file)
	}
}

// appendAll writes records at the end of the locked file, whose size is given, and takes a part of it back if it cannot
// write all: half a record would stop every reader.
func (s *Store) appendAll(size int64, records []byte) error {
	_, err := s.writeAt(s.file, records, size)
	if err == nil {
		return nil
	}
	if cut := s.file.Truncate(size); cut != nil {
		return errors.Join(err, cut)
	}
	return err
}

// waiting bounds one operation. The timer of the store's timeout is only made when the operation has to wait.
type waiting struct {
	ctx    context.Context //nolint:containedctx // lives as long as the operation
	limit  time.Duration
	cancel context.CancelFunc
}

func (s *Store) waiting(ctx context.Context) *waiting { return &waiting{ctx: ctx, limit: s.Timeout()} }

// bounded returns the context that ends the wait.
func (w *waiting) bounded() context.Context {
	if w.cancel == nil {
		w.ctx, w.cancel = waitctx.WithTimeout(w.ctx, w.limit)
	}
	return w.ctx
}

func (w *waiting) end() {
	if w.cancel != nil {
		w.cancel()
	}
}

// pause waits a little. It ends early, with an error, when the operation's time is up or the handle is closed.
func (s *Store) pause(w *waiting, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.bounded().Done():
		return w.ctx.Err()
	case <-s.closed:
		return cohort.Closed
	}
}

// takeTurn waits until no other goroutine uses the handle.
func (s *Store) takeTurn(w *waiting) error {
	select {
	case <-s.closed:
		return cohort.Closed
	default:
	}
	if err := w.ctx.Err(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-w.bounded().Done():
		return w.ctx.Err()
	case <-s.closed:
		return cohort.Closed
	}
}

func (s *Store) endTurn() { <-s.turn }

// heldError is the end of a wait for the lock: another process had it all the time.
type heldError struct {
	error
	id fileID
}

func (e *heldError) Unwrap() error { return e.error }

// who names the process that holds the lock, as far as the system knows.
func (e *heldError) who() string {
	locks, _ := os.ReadFile("/proc/locks") // none on other systems
	pid := holderOf(string(locks), e.id)
	if pid <= 0 { // or a process that cannot be seen from here
		return "another process holds the lock of the file"
	}
	text := fmt.Sprintf("process %d holds the lock of the file", pid)
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // "7 (python3) T 1 ..."
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open || len(stat) < end+3 {
		return text
	}
	text = fmt.Sprintf("process %d %s holds the lock of the file", pid, stat[open:end+1])
	if state := stat[end+2]; state == 'T' || state == 't' {
		text += " and is stopped"
	}
	return text
}

// holderOf finds the process that holds a lock on a file in the text of /proc/locks, 0 for none:
//
//	1: FLOCK  ADVISORY  WRITE 7 08:01:4711 0 EOF
func holderOf(locks string, id fileID) int {
	for line := range strings.Lines(locks) {
		var number, kind, strength, access string
		var pid int
		var major, minor uint32
		var inode uint64
		_, err := fmt.Sscanf(line, "%s %s %s %s %d %x:%x:%d", &number, &kind, &strength, &access, &pid, &major, &minor, &inode)
		if err == nil && kind == "FLOCK" && inode == id.inode && device(major, minor) == id.device { // one that waits has "->" for its kind
			return pid
		}
	}
	return 0
}

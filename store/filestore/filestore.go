// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/storenum"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

const (
	defaultMaxKey   = 1 << 20
	defaultMaxValue = 1 << 30
	// defaultCloseTime bounds Close, which has no context, when somebody sits on the file's lock.
	defaultCloseTime = 10 * time.Second

	pollPause = 10 * time.Millisecond // PyTorch's
)

// Store is a handle on a file store. Make it with [Open].
type Store struct {
	path      string
	worldSize int
	limit     limits
	timeout   atomic.Int64
	closeTime time.Duration
	logger    *slog.Logger
	hook      observe.Hook
	writeAt   func(f *os.File, p []byte, offset int64) (int, error) // for tests of full disks

	closing  sync.Once
	closed   chan struct{}
	closeErr error

	// turn is held by the one who uses the fields below. It is a channel so that waiting for it can be given up.
	turn  chan struct{}
	file  *os.File // nil before the first use and after the file was lost
	info  fs.FileInfo
	table table
	// registered tells that this handle is counted in the file's refcount/.
	registered bool
}

var (
	_ store.Store       = (*Store)(nil)
	_ store.Appender    = (*Store)(nil)
	_ store.MultiGetter = (*Store)(nil)
	_ store.MultiSetter = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
)

// Open opens the file at path, creating it if it does not exist, and counts itself in. It corresponds to
// torch.distributed.FileStore(path, world_size).
func Open(ctx context.Context, path string, opts ...Option) (*Store, error) {
	s := newStore(path)
	for _, o := range opts {
		o.apply(s)
	}
	err := s.update(ctx, "open", nil, func(*change) error { return nil })
	if err != nil {
		s.forget()
		return nil, err
	}
	return s, nil
}

func newStore(path string) *Store {
	s := &Store{
		path: path, worldSize: -1, limit: limits{key: defaultMaxKey, value: defaultMaxValue},
		closed: make(chan struct{}), turn: make(chan struct{}, 1), table: newTable(),
		closeTime: defaultCloseTime, logger: slog.New(slog.DiscardHandler), writeAt: (*os.File).WriteAt,
	}
	s.SetTimeout(store.DefaultTimeout)
	return s
}

// Path returns the path that was given to [Open].
func (s *Store) Path() string { return s.path }

// Timeout implements [store.Store].
func (s *Store) Timeout() time.Duration { return time.Duration(s.timeout.Load()) }

// SetTimeout implements [store.Store].
func (s *Store) SetTimeout(d time.Duration) { s.timeout.Store(int64(d)) }

// Close counts this handle out and removes the file if it was the last; see the package's manual. A file that is gone,
// or that another has taken the place of, is left alone.
func (s *Store) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	close(s.closed)
	// The closed channel ends every other wait; the handle that closes needs waits of its own.
	last := &Store{
		path: s.path, worldSize: s.worldSize, limit: s.limit, logger: s.logger, hook: s.hook, writeAt: s.writeAt,
		closed: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.closeTime)
	defer cancel()
	select {
	case s.turn <- struct{}{}: // kept: nobody uses this handle again
	case <-ctx.Done():
		return last.problem("close", ctx, nil, ctx.Err())
	}
	last.file, last.info, last.table, last.registered = s.file, s.info, s.table, s.registered
	s.file, s.table = nil, newTable()
	defer last.forget()
	if !last.registered || !last.current() {
		return nil
	}
	return last.update(ctx, "close", nil, func(c *change) error {
		if !last.registered { // lost in this very moment
			return nil
		}
		cleanup, err := c.add(cleanupKey, 1)
		if err != nil {
			return err
		}
		count, err := c.add(refCountKey, -1)
		if err != nil {
			return err
		}
		c.remove = count == 0 && last.worldSize >= 0 && cleanup >= int64(last.worldSize)
		return nil
	})
}

// Repair cuts off the unfinished record that a killed writer left at the end of the file at path, and returns its
// length: 0 if there is none. Only use it when the file is known to be a store; what precedes must be valid records.
func Repair(ctx context.Context, path string) (int64, error) {
	s := newStore(path)
	defer s.forget()
	fail := func(err error) (int64, error) { return 0, s.problem("repair", ctx, nil, err) }
	f, err := openFile(path, false)
	if err != nil {
		return fail(err)
	}
	s.file = f
	ctx, cancel := store.WaitContext(ctx, s.Timeout())
	defer cancel()
	if err = s.lock(ctx, f, unix.LOCK_EX); err != nil {
		return fail(err)
	}
	size, err := s.replay()
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, errTorn) || s.table.pos == 0 { // without one whole record nothing says that it is a store
		return fail(err)
	}
	if err := f.Truncate(s.table.pos); err != nil {
		return fail(err)
	}
	return size - s.table.pos, nil
}

// current reports whether the path still leads to the open file.
func (s *Store) current() bool {
	if s.file == nil {
		return false
	}
	now, err := os.Stat(s.path) //nolint:gosec // the path is the user's
	return err == nil && os.SameFile(now, s.info)
}

// forget lets go of the file.
func (s *Store) forget() {
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.info, s.table, s.registered = nil, nil, newTable(), false
}

// attach makes the file that the path leads to the open one. The open descriptor keeps its inode number from being
// given to another file, so current cannot be deceived.
func (s *Store) attach(create bool) error {
	if s.current() {
		return nil
	}
	if s.file != nil {
		s.logger.Warn("the store's file was removed or replaced", slog.String("path", s.path))
	}
	s.forget()
	f, err := openFile(s.path, create)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return err
	}
	s.file, s.info = f, info
	return nil
}

// replay brings the table up to date from the locked file and returns its size.
func (s *Store) replay() (int64, error) {
	info, err := s.file.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if size < s.table.pos {
		return size, fmt.Errorf("%w: it has %d bytes and had %d", errTorn, size, s.table.pos)
	}
	if size == s.table.pos {
		return size, nil
	}
	if err := s.table.replay(io.NewSectionReader(s.file, s.table.pos, size-s.table.pos), size, s.limit); err != nil {
		return size, fmt.Errorf("%w (offset %d)", err, s.table.pos)
	}
	return size, nil
}

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
	sum, err := storenum.AddEmptyIsZero(old, delta)
	if err != nil {
		return 0, storenum.Error("filestore: "+c.op, strings.TrimPrefix(key, userPrefix), old, err)
	}
	c.put(key, storenum.Format(sum))
	return sum, nil
}

// update runs decide on the current state under the exclusive lock and writes what it puts, all or nothing.
func (s *Store) update(ctx context.Context, op string, keys []string, decide func(*change) error) (err error) {
	defer s.observe(op, keys)(&err)
	ctx, cancel := store.WaitContext(ctx, s.Timeout())
	defer cancel()
	if err = s.takeTurn(ctx); err != nil {
		return s.problem(op, ctx, keys, err)
	}
	defer s.endTurn()
	if err = s.updateLocked(ctx, op, decide); err != nil {
		return s.problem(op, ctx, keys, err)
	}
	return nil
}

func (s *Store) updateLocked(ctx context.Context, op string, decide func(*change) error) error {
	if err := s.lockCurrent(ctx); err != nil {
		return err
	}
	defer func() {
		if s.file != nil {
			unlock(s.file)
		}
	}()
	size, err := s.replayOrCut()
	if err != nil {
		return err
	}
	c := &change{store: s, op: op}
	if !s.registered && op != "close" {
		if _, err := c.add(refCountKey, 1); err != nil {
			return err
		}
	}
	if err := decide(c); err != nil {
		return err
	}
	if len(c.records) == 0 {
		return nil
	}
	if err := s.appendAll(s.file, size, c.records); err != nil {
		return err
	}
	for _, r := range c.pending {
		s.table.apply(r.key, r.value)
	}
	s.table.pos = size + int64(len(c.records))
	s.registered = true
	if c.remove {
		return os.Remove(s.path)
	}
	return nil
}

// lockCurrent takes the exclusive lock of the file that the path leads to: between the opening and the lock the last
// user may have removed it, and what is written then would be lost.
func (s *Store) lockCurrent(ctx context.Context) error {
	for {
		if err := s.attach(true); err != nil {
			return err
		}
		if err := s.lock(ctx, s.file, unix.LOCK_EX); err != nil {
			return err
		}
		if s.current() {
			return nil
		}
		unlock(s.file)
		if err := s.pause(ctx, firstLockPause); err != nil {
			return err
		}
	}
}

// replayOrCut is replay under the exclusive lock. An unfinished record behind what this handle has read before is the
// work of a writer that died, because a living one would hold the lock: it is cut off.
func (s *Store) replayOrCut() (int64, error) {
	known := s.table.pos
	size, err := s.replay()
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

// refresh brings the table up to date for a reader, without the lock when nothing has changed.
func (s *Store) refresh(ctx context.Context) error {
	if s.file != nil {
		now, err := os.Stat(s.path)
		if err == nil && os.SameFile(now, s.info) && now.Size() == s.table.pos {
			return nil
		}
	}
	if err := s.attach(false); err != nil {
		return err
	}
	if err := s.lock(ctx, s.file, unix.LOCK_SH); err != nil {
		return err
	}
	known := s.table.pos
	_, err := s.replay()
	unlock(s.file)
	if err != nil && known == 0 {
		s.forget()
		return err
	}
	if !errors.Is(err, errTorn) {
		return err
	}
	if err = s.lock(ctx, s.file, unix.LOCK_EX); err != nil {
		return err
	}
	defer unlock(s.file)
	_, err = s.replayOrCut()
	return err
}

func (s *Store) takeTurn(ctx context.Context) error {
	select {
	case <-s.closed:
		return dist.Closed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return dist.Closed
	}
}

// observe tells the hook that an operation begins and returns what tells it that it ends.
func (s *Store) observe(op string, keys []string) func(err *error) {
	if s.hook == nil {
		return func(*error) {}
	}
	e := observe.Event{
		Time: time.Now(), Kind: observe.Kind("store." + op), Phase: observe.Begin, Rank: dist.NoRank, Key: strings.Join(keys, ", "),
	}
	s.hook.Emit(e)
	return func(err *error) {
		e.Dur, e.Phase, e.Err = time.Since(e.Time), observe.End, *err
		e.Time = time.Time{}
		s.hook.Emit(e)
	}
}

func (s *Store) endTurn() { <-s.turn }

// problem gives an error its operation, key, file and, where there is one, advice.
func (s *Store) problem(op string, ctx context.Context, keys []string, err error) error { //nolint:revive // the operation reads first
	op = "filestore: " + op
	var done *dist.Error
	if errors.As(err, &done) {
		return done
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		waited := store.WaitError(op, ctx, keys...)
		if errors.As(waited, &done) {
			done.Detail = fmt.Sprintf("%v (file %s)", done.Err, s.path)
			return done
		}
	}
	e := dist.Wrap(op, dist.Unavailable, err)
	e.Key = strings.Join(keys, ", ")
	switch {
	case errors.Is(err, dist.Closed):
	case errors.Is(err, errTorn):
		e.Code = dist.Protocol
		e.Detail = fmt.Sprintf("file %s: %v; remove it and start again, or cut the end off with filestore.Repair", s.path, err)
	case errors.Is(err, errForeign):
		e.Code = dist.Protocol
		e.Detail = fmt.Sprintf("file %s: %v; it was not changed, give another path", s.path, err)
	case errors.Is(err, fs.ErrNotExist):
		e.Code = dist.NotFound
	}
	return e
}

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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

const (
	defaultMaxKey   = 1 << 20
	defaultMaxValue = 1 << 30
	// defaultCloseTime bounds Close, which has no context, while another process holds the file's lock.
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
	id    fileID
	table table
	// registered says that this handle is counted in the file's refcount/.
	registered bool
	// replaced says that the file this handle was counted in does not exist any more.
	replaced bool
}

var (
	_ store.Store       = (*Store)(nil)
	_ store.Appender    = (*Store)(nil)
	_ store.MultiGetter = (*Store)(nil)
	_ store.MultiSetter = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
	_ store.Cloner      = (*Store)(nil)
)

// Open opens the file at path, creating it if it does not exist, and adds itself to the handles that the file counts. It
// corresponds to torch.distributed.FileStore(path, world_size).
func Open(ctx context.Context, path string, opts ...Option) (*Store, error) {
	s := newStore(path)
	for _, o := range opts {
		if o != nil {
			o.apply(s)
		}
	}
	s.hook = safecall.Hook(s.logger, s.hook)
	return begin(ctx, s)
}

// begin creates or opens the file and counts the handle in.
func begin(ctx context.Context, s *Store) (*Store, error) {
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

// String names the file.
func (s *Store) String() string { return "file store " + s.path }

// Clone implements [store.Cloner]: it opens the same file with the same options, as one more handle that is counted.
func (s *Store) Clone(ctx context.Context) (store.Store, error) {
	clone := newStore(s.path)
	clone.worldSize, clone.limit, clone.closeTime = s.worldSize, s.limit, s.closeTime
	clone.logger, clone.hook, clone.writeAt = s.logger, s.hook, s.writeAt
	clone.SetTimeout(s.Timeout())
	opened, err := begin(ctx, clone)
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// Timeout implements [store.Store].
func (s *Store) Timeout() time.Duration { return time.Duration(s.timeout.Load()) }

// SetTimeout implements [store.Store].
func (s *Store) SetTimeout(d time.Duration) { s.timeout.Store(int64(d)) }

// Close removes this handle from those that the file counts, and removes the file if this was the last; see the package's manual.
// A file that is gone, or that was replaced by another, is left alone.
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
	case s.turn <- struct{}{}: // kept: this handle is not used again
	case <-ctx.Done():
		return last.problem("close", &waiting{ctx: ctx}, nil, ctx.Err())
	}
	last.file, last.id, last.table, last.registered = s.file, s.id, s.table, s.registered
	s.file, s.table = nil, newTable()
	defer last.forget()
	if _, current := last.current(); !last.registered || !current {
		return nil
	}
	err := last.update(ctx, "close", nil, func(c *change) error {
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
	return last.stillCounted(err)
}

// stillCounted says what follows from a failed Close. The file only grows, and others may have read all of it, so nothing but a new
// record can take a handle out of the count.
func (s *Store) stillCounted(err error) error {
	problem, is := errors.AsType[*cohort.Error](err)
	if !is || s.worldSize < 0 || problem.Code != cohort.Unavailable {
		return err
	}
	problem.Detail = fmt.Sprintf("%v; the file still counts this handle, so no other one will remove it: remove %s yourself",
		problem.Err, s.path)
	return err
}

// Repair cuts off the unfinished record that a killed writer left at the end of the file at path, and returns its length: 0 if
// there is none. Use it only on a file that is known to be a store; everything before that record must be valid.
func Repair(ctx context.Context, path string) (int64, error) {
	s := newStore(path)
	defer s.forget()
	w := s.waiting(ctx)
	defer w.end()
	fail := func(err error) (int64, error) { return 0, s.problem("repair", w, nil, err) }
	if err := s.attach(false); err != nil {
		return fail(err)
	}
	if err := s.lock(w, exclusive); err != nil {
		return fail(err)
	}
	size, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return fail(err)
	}
	if err = s.replay(size); err == nil {
		return 0, nil
	}
	if !errors.Is(err, errTorn) || s.table.pos == 0 { // without one whole record nothing says that it is a store
		return fail(err)
	}
	if err = s.file.Truncate(s.table.pos); err != nil {
		return fail(err)
	}
	return size - s.table.pos, nil
}

// observe emits the event that an operation begins and returns what emits the one that it ends.
func (s *Store) observe(ctx context.Context, op string, keys []string) func(err *error) {
	if s.hook == nil {
		return func(*error) {}
	}
	e := observe.Event{
		Time: time.Now(), Kind: observe.Kind("store." + op), Phase: observe.Begin, Rank: cohort.NoRank, Key: strings.Join(keys, ", "),
	}
	e.SetTrace(observe.Trace(ctx))
	s.hook.Emit(e)
	return func(err *error) {
		e.Dur, e.Phase, e.Err = time.Since(e.Time), observe.End, *err
		e.Time = time.Time{}
		s.hook.Emit(e)
	}
}

// problem gives an error its operation, key, file and, where there is one, advice.
func (s *Store) problem(op string, w *waiting, keys []string, err error) error {
	op = "filestore: " + op
	var done *cohort.Error
	if errors.As(err, &done) {
		if done.Code == cohort.Replaced {
			done.Op, done.Key = op, strings.Join(keys, ", ")
		}
		return done
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		waited := storeop.WaitError(op, w.ctx, keys...)
		if errors.As(waited, &done) {
			done.Detail = fmt.Sprintf("%v (file %s)", done.Err, s.path)
			if held, is := errors.AsType[*heldError](err); is {
				done.Detail += "; " + held.who()
			}
			return done
		}
	}
	e := cohort.Wrap(op, cohort.Unavailable, err)
	e.Key = strings.Join(keys, ", ")
	switch {
	case errors.Is(err, cohort.Closed):
	case errors.Is(err, errTorn):
		e.Code = cohort.Protocol
		e.Detail = fmt.Sprintf("file %s: %v; remove it and start again, or cut the end off with filestore.Repair", s.path, err)
	case errors.Is(err, errForeign):
		e.Code = cohort.Protocol
		e.Detail = fmt.Sprintf("file %s: %v; it was not changed, give another path", s.path, err)
	case errors.Is(err, fs.ErrNotExist):
		e.Code = cohort.NotFound
	}
	return e
}

// Option changes how [Open] opens a file.
type Option interface{ apply(*Store) }

type optionFunc func(*Store)

func (f optionFunc) apply(s *Store) { f(s) }

// WithWorldSize sets after how many closed handles the file is removed; see the package's manual. Negative, the
// default, means never.
func WithWorldSize(n int) Option { return optionFunc(func(s *Store) { s.worldSize = n }) }

// WithTimeout sets the store's timeout; the default is [store.DefaultTimeout].
func WithTimeout(d time.Duration) Option { return optionFunc(func(s *Store) { s.SetTimeout(d) }) }

// WithMaxValue sets the largest value in bytes that is read or written. The default is 1 GiB; the format ends at 4 GiB.
func WithMaxValue(n int64) Option {
	return optionFunc(func(s *Store) { s.limit.value = min(max(n, 0), 1<<32-1) })
}

// WithLogger sets the logger for warnings: an unfinished record was cut off, the file was replaced by another. Without
// it, or with nil, nothing is logged.
func WithLogger(logger *slog.Logger) Option {
	return optionFunc(func(s *Store) {
		if logger != nil {
			s.logger = safecall.Logger(logger)
		}
	})
}

// WithHook sets the hook that receives events: the begin and end of every operation, its Kind "store." and the operation's
// name.
func WithHook(hook observe.Hook) Option {
	return optionFunc(func(s *Store) { s.hook = hook })
}

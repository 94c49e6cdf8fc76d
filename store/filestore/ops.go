// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
)

// Set implements [store.Store].
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	return s.write(ctx, "set", key, value, func(c *change) error {
		c.put(userPrefix+key, value)
		return nil
	})
}

// Get implements [store.Store].
func (s *Store) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.await(ctx, "get", []string{key}, func() { value = cloneValue(s.table.values[userPrefix+key]) })
	return value, err
}

// Add implements [store.Store]. An empty value counts as 0, as in FileStore.
func (s *Store) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	err = s.write(ctx, "add", key, nil, func(c *change) (err error) {
		sum, err = c.add(userPrefix+key, delta)
		return err
	})
	return sum, err
}

// CompareAndSet implements [store.Store].
func (s *Store) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = s.write(ctx, "compare-and-set", key, desired, func(c *change) error {
		old, found := c.value(userPrefix + key)
		switch {
		case found && !bytes.Equal(old, expected):
			value = cloneValue(old)
		case !found && len(expected) > 0:
			value = cloneValue(expected)
		default:
			c.put(userPrefix+key, desired)
			value = cloneValue(desired)
		}
		return nil
	})
	return value, err
}

// Check implements [store.Store].
func (s *Store) Check(ctx context.Context, keys ...string) (all bool, err error) {
	err = s.read(ctx, "check", keys, func() { all = s.missing(keys) < 0 })
	return all, err
}

// Wait implements [store.Store].
func (s *Store) Wait(ctx context.Context, keys ...string) error {
	return s.await(ctx, "wait", keys, func() {})
}

// Delete implements [store.Store]. Like PyTorch's FileStore it always says true, since it need not read to delete.
func (s *Store) Delete(ctx context.Context, key string) (bool, error) {
	err := s.write(ctx, "delete", key, nil, func(c *change) error {
		c.put(deletePrefix+userPrefix+key, nil)
		return nil
	})
	return err == nil, err
}

// NumKeys implements [store.Store]. It counts "refcount/" and, once a handle has been closed, "cleanup/".
func (s *Store) NumKeys(ctx context.Context) (n int, err error) {
	err = s.read(ctx, "number of keys", nil, func() { n = len(s.table.values) })
	return n, err
}

// Append implements [store.Appender]. The file grows by the whole new value.
func (s *Store) Append(ctx context.Context, key string, value []byte) error {
	return s.write(ctx, "append", key, value, func(c *change) error {
		old, _ := c.value(userPrefix + key)
		if total := int64(len(old)) + int64(len(value)); total > s.limit.value {
			return s.tooLarge("append", key, "value", total, s.limit.value)
		}
		c.put(userPrefix+key, append(cloneValue(old), value...))
		return nil
	})
}

// MultiGet implements [store.MultiGetter]: all values are of one moment.
func (s *Store) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	values := make([][]byte, len(keys))
	err := s.await(ctx, "multi-get", keys, func() {
		for i, key := range keys {
			values[i] = cloneValue(s.table.values[userPrefix+key])
		}
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// MultiSet implements [store.MultiSetter]: readers, PyTorch's too, see all of it or nothing.
func (s *Store) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	const op = "multi-set"
	if err := storeop.CheckMultiSet("filestore: "+op, keys, values); err != nil {
		return err
	}
	for i, key := range keys {
		if err := s.checkSizes(op, key, values[i]); err != nil {
			return err
		}
	}
	return s.update(ctx, op, keys, func(c *change) error {
		for i, key := range keys {
			c.put(userPrefix+key, values[i])
		}
		return nil
	})
}

// ListKeys implements [store.Lister].
func (s *Store) ListKeys(ctx context.Context) (keys []string, err error) {
	err = s.read(ctx, "list keys", nil, func() {
		for key := range s.table.values {
			if user, ok := strings.CutPrefix(key, userPrefix); ok {
				keys = append(keys, user)
			}
		}
	})
	return keys, err
}

// write is an update of one key whose sizes are checked first.
func (s *Store) write(ctx context.Context, op, key string, value []byte, decide func(*change) error) error {
	if err := s.checkSizes(op, key, value); err != nil {
		return err
	}
	return s.update(ctx, op, []string{key}, decide)
}

func (s *Store) checkSizes(op, key string, value []byte) error {
	const prefixes = int64(len(deletePrefix + userPrefix))
	if n := int64(len(key)); n+prefixes > s.limit.key {
		return s.tooLarge(op, key[:64]+"...", "key", n, s.limit.key-prefixes)
	}
	if n := int64(len(value)); n > s.limit.value {
		return s.tooLarge(op, key, "value", n, s.limit.value)
	}
	return nil
}

func (s *Store) tooLarge(op, key, what string, n, limit int64) error {
	e := cohort.Newf("filestore: "+op, cohort.TooLarge, "the %s has %d bytes, the limit is %d", what, n, limit)
	e.Key = key
	return e
}

// read runs look on the current state.
func (s *Store) read(ctx context.Context, op string, keys []string, look func()) (err error) {
	defer s.observe(ctx, op, keys)(&err)
	w := s.waiting(ctx)
	defer w.end()
	if err = s.takeTurn(w); err != nil {
		return s.problem(op, w, keys, err)
	}
	defer s.endTurn()
	if err = s.refresh(w); err != nil {
		return s.problem(op, w, keys, err)
	}
	look()
	return nil
}

// await runs look as soon as all keys exist. A file that was removed has no keys until it is written anew.
func (s *Store) await(ctx context.Context, op string, keys []string, look func()) (err error) {
	defer s.observe(ctx, op, keys)(&err)
	w := s.waiting(ctx)
	defer w.end()
	for pause := time.Millisecond; ; pause = min(2*pause, pollPause) {
		err = s.takeTurn(w)
		missing := 0
		if err == nil {
			err = s.refresh(w)
			if err == nil {
				if missing = s.missing(keys); missing < 0 {
					look()
				}
			}
			s.endTurn()
		}
		switch {
		case err == nil && missing < 0:
			return nil
		case err == nil, errors.Is(err, fs.ErrNotExist):
			if err = s.pause(w, pause); err == nil {
				continue
			}
		}
		if missing > 0 {
			keys = keys[missing:]
		}
		return s.problem(op, w, keys, err)
	}
}

// missing returns the index of the first key that does not exist, or -1.
func (s *Store) missing(keys []string) int {
	for i, key := range keys {
		if _, found := s.table.values[userPrefix+key]; !found {
			return i
		}
	}
	return -1
}

// cloneValue copies a value for the caller; an empty one is not nil, so that it reads as present.
func cloneValue(value []byte) []byte { return append(make([]byte, 0, len(value)), value...) }

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	"github.com/cohort-dist/cohort/internal/util/waitctx"
)

// Memory is a store inside one process, for ranks that are goroutines and for tests. It corresponds to
// torch.distributed.HashStore; unlike HashStore, it also wakes waiters on add, append and multi-set. It has every
// optional operation, each atomic. The zero value is an empty store.
type Memory struct {
	begun   sync.Once
	data    *memoryData
	timeout atomic.Int64
	closing sync.Once
	closed  chan struct{}
}

type memoryData struct {
	mu      sync.Mutex
	values  map[string][]byte
	queues  map[string][][]byte
	waiters map[string]*waiters
}

// waiters is those that wait for one key; changed is closed when the key appears.
type waiters struct {
	changed chan struct{}
	count   int
}

var (
	_ Appender    = (*Memory)(nil)
	_ MultiGetter = (*Memory)(nil)
	_ MultiSetter = (*Memory)(nil)
	_ Queuer      = (*Memory)(nil)
	_ Lister      = (*Memory)(nil)
)

// NewMemory returns an empty store.
func NewMemory() *Memory { return new(Memory) }

// table returns the data, which the first use makes.
func (m *Memory) table() *memoryData {
	m.begun.Do(func() {
		if m.data == nil {
			m.data = &memoryData{values: map[string][]byte{}, queues: map[string][][]byte{}, waiters: map[string]*waiters{}}
		}
		m.closed = make(chan struct{})
		m.timeout.Store(int64(DefaultTimeout))
	})
	return m.data
}

// Clone implements [Cloner]: another handle on the same data, with its own timeout and its own Close.
func (m *Memory) Clone(context.Context) (Store, error) {
	c := &Memory{data: m.table()}
	c.SetTimeout(m.Timeout())
	return c, nil
}

// Set implements [Store].
func (m *Memory) Set(ctx context.Context, key string, value []byte) error {
	return m.do("store: set", ctx, key, func() error {
		m.table().putLocked(key, bytes.Clone(value))
		return nil
	})
}

// Get implements [Store].
func (m *Memory) Get(ctx context.Context, key string) (value []byte, err error) {
	err = m.await("store: get", ctx, []string{key}, m.table().hasValueLocked, func() { value = cloneValue(m.table().values[key]) })
	return value, err
}

// Add implements [Store]. An empty value counts as 0, as in HashStore.
func (m *Memory) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	const op = "store: add"
	err = m.do(op, ctx, key, func() error {
		old := m.table().values[key]
		n, bad := storeop.AddCounterEmptyIsZero(old, delta)
		if bad != nil {
			return storeop.CounterError(op, key, old, bad)
		}
		m.table().putLocked(key, storeop.FormatCounter(n))
		sum = n
		return nil
	})
	return sum, err
}

// CompareAndSet implements [Store].
func (m *Memory) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = m.do("store: compare-and-set", ctx, key, func() error {
		old, found := m.table().values[key]
		switch {
		case found && !bytes.Equal(old, expected):
			value = cloneValue(old)
		case !found && len(expected) > 0:
			value = cloneValue(expected)
		default:
			m.table().putLocked(key, bytes.Clone(desired))
			value = cloneValue(desired)
		}
		return nil
	})
	return value, err
}

// Check implements [Store]. A queue with items counts as an existing key, as in PyTorch.
func (m *Memory) Check(ctx context.Context, keys ...string) (all bool, err error) {
	err = m.do("store: check", ctx, "", func() error {
		all = m.table().missingLocked(keys, m.table().presentLocked) < 0
		return nil
	})
	return all, err
}

// Wait implements [Store]. A queue with items counts as an existing key, as in PyTorch.
func (m *Memory) Wait(ctx context.Context, keys ...string) error {
	return m.await("store: wait", ctx, keys, m.table().presentLocked, func() {})
}

// Delete implements [Store].
func (m *Memory) Delete(ctx context.Context, key string) (found bool, err error) {
	err = m.do("store: delete", ctx, key, func() error {
		_, found = m.table().values[key]
		delete(m.table().values, key)
		return nil
	})
	return found, err
}

// NumKeys implements [Store]. Queues are not counted.
func (m *Memory) NumKeys(ctx context.Context) (n int, err error) {
	err = m.do("store: number of keys", ctx, "", func() error {
		n = len(m.table().values)
		return nil
	})
	return n, err
}

// Append implements [Appender].
func (m *Memory) Append(ctx context.Context, key string, value []byte) error {
	return m.do("store: append", ctx, key, func() error {
		// Values never leave the store without a copy, so growing one in place is safe.
		m.table().putLocked(key, append(m.table().values[key], value...))
		return nil
	})
}

// MultiGet implements [MultiGetter].
func (m *Memory) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	values := make([][]byte, len(keys))
	err := m.await("store: multi-get", ctx, keys, m.table().hasValueLocked, func() {
		for i, key := range keys {
			values[i] = cloneValue(m.table().values[key])
		}
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// MultiSet implements [MultiSetter]. If a key occurs twice, the last value is kept.
func (m *Memory) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	const op = "store: multi-set"
	if err := storeop.CheckMultiSet(op, keys, values); err != nil {
		return err
	}
	return m.do(op, ctx, "", func() error {
		for i, key := range keys {
			m.table().putLocked(key, bytes.Clone(values[i]))
		}
		return nil
	})
}

// QueuePush implements [Queuer].
func (m *Memory) QueuePush(ctx context.Context, key string, value []byte) error {
	return m.do("store: queue push", ctx, key, func() error {
		m.table().queues[key] = append(m.table().queues[key], cloneValue(value))
		m.table().wakeLocked(key)
		return nil
	})
}

// QueuePop implements [Queuer].
func (m *Memory) QueuePop(ctx context.Context, key string, wait bool) (item []byte, err error) {
	const op = "store: queue pop"
	pop := func() {
		queue := m.table().queues[key]
		item = queue[0]
		queue[0] = nil // the array may live on for the items behind
		if m.table().queues[key] = queue[1:]; len(queue) == 1 {
			delete(m.table().queues, key)
		}
	}
	if wait {
		err = m.await(op, ctx, []string{key}, m.table().hasItemLocked, pop)
		return item, err
	}
	err = m.do(op, ctx, key, func() error {
		if !m.table().hasItemLocked(key) {
			return storeop.QueueEmpty(op, key)
		}
		pop()
		return nil
	})
	return item, err
}

// QueueLen implements [Queuer].
func (m *Memory) QueueLen(ctx context.Context, key string) (n int, err error) {
	err = m.do("store: queue length", ctx, key, func() error {
		n = len(m.table().queues[key])
		return nil
	})
	return n, err
}

// ListKeys implements [Lister]. Queues are not listed.
func (m *Memory) ListKeys(ctx context.Context) (keys []string, err error) {
	err = m.do("store: list keys", ctx, "", func() error {
		keys = make([]string, 0, len(m.table().values))
		for key := range m.table().values {
			keys = append(keys, key)
		}
		return nil
	})
	return keys, err
}

// Timeout implements [Store].
func (m *Memory) Timeout() time.Duration {
	m.table()
	return time.Duration(m.timeout.Load())
}

// SetTimeout implements [Store].
func (m *Memory) SetTimeout(d time.Duration) {
	m.table()
	m.timeout.Store(int64(d))
}

// Close implements [Store]. The data lives on while another handle is open.
func (m *Memory) Close() error {
	m.table()
	m.closing.Do(func() { close(m.closed) })
	return nil
}

// do runs a step that does not wait.
func (m *Memory) do(op string, ctx context.Context, key string, step func() error) error { //nolint:revive // the operation reads first
	if err := m.usable(op, ctx, key); err != nil {
		return err
	}
	d := m.table()
	d.mu.Lock()
	defer d.mu.Unlock()
	return step()
}

func (m *Memory) usable(op string, ctx context.Context, keys ...string) error { //nolint:revive // the operation reads first
	m.table()
	select {
	case <-m.closed:
		return &cohort.Error{Op: op, Code: cohort.Closed, Rank: cohort.NoRank, Key: strings.Join(keys, ", ")}
	default:
	}
	return storeop.WaitError(op, ctx, keys...)
}

// await runs a step under the lock as soon as ready holds for all keys.
//
//nolint:revive // the operation reads first
func (m *Memory) await(op string, ctx context.Context, keys []string, ready func(string) bool, step func()) error {
	d := m.table()
	bounded := false
	for {
		if err := m.usable(op, ctx, keys...); err != nil {
			return err
		}
		d.mu.Lock()
		missing := d.missingLocked(keys, ready)
		if missing < 0 {
			step()
			d.mu.Unlock()
			return nil
		}
		if !bounded { // most calls need not wait and so need no timer
			bounded = true
			var cancel context.CancelFunc
			ctx, cancel = waitctx.WithTimeout(ctx, m.Timeout()) //nolint:fatcontext // once
			defer cancel()
		}
		key := keys[missing]
		w := d.waiters[key]
		if w == nil {
			w = &waiters{changed: make(chan struct{})}
			d.waiters[key] = w
		}
		w.count++
		d.mu.Unlock()

		var err error
		select {
		case <-w.changed:
			continue // woken: w is not in the map any more
		case <-m.closed:
			err = &cohort.Error{Op: op, Code: cohort.Closed, Rank: cohort.NoRank, Key: key}
		case <-ctx.Done():
			err = storeop.WaitError(op, ctx, keys[missing:]...)
		}
		d.mu.Lock()
		if w.count--; w.count == 0 && d.waiters[key] == w {
			delete(d.waiters, key)
		}
		d.mu.Unlock()
		return err
	}
}

func (d *memoryData) putLocked(key string, value []byte) {
	d.values[key] = value
	d.wakeLocked(key)
}

func (d *memoryData) wakeLocked(key string) {
	if w := d.waiters[key]; w != nil {
		close(w.changed)
		delete(d.waiters, key)
	}
}

func (d *memoryData) missingLocked(keys []string, ready func(string) bool) int {
	for i, key := range keys {
		if !ready(key) {
			return i
		}
	}
	return -1
}

func (d *memoryData) hasValueLocked(key string) bool {
	_, found := d.values[key]
	return found
}

func (d *memoryData) hasItemLocked(key string) bool { return len(d.queues[key]) > 0 }

func (d *memoryData) presentLocked(key string) bool {
	return d.hasValueLocked(key) || d.hasItemLocked(key)
}

// cloneValue copies a value for the caller; an empty one is not nil, so that it reads as present.
func cloneValue(value []byte) []byte { return append(make([]byte, 0, len(value)), value...) }

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
)

// DefaultTimeout bounds a waiting operation whose context has no deadline. It is PyTorch's default.
const DefaultTimeout = 300 * time.Second

// Errors for errors.Is. Each is a [cohort.Code], so errors.Is holds for every *cohort.Error that carries it.
const (
	// ErrTimeout ends a wait whose deadline passed. Such an error also matches context.DeadlineExceeded.
	ErrTimeout = cohort.DeadlineExceeded
	// ErrClosed is returned by every operation after Close.
	ErrClosed = cohort.Closed
	// ErrNotFound is returned where a key must exist and does not.
	ErrNotFound = cohort.NotFound
	// ErrNotSupported is returned by an operation that the store cannot do, not even by a fallback.
	ErrNotSupported = cohort.NotSupported
	// ErrNotANumber is returned by Add on a key whose value is not a decimal number.
	ErrNotANumber = cohort.NotANumber
	// ErrTooLarge is returned for a key or value over the store's limit.
	ErrTooLarge = cohort.TooLarge
	// ErrQueueEmpty is returned by a pop that does not wait, on an empty queue.
	ErrQueueEmpty = cohort.Empty
)

// Store is what every store can do: the core operations of torch.distributed.Store. All methods are safe for concurrent
// use. Returned bytes belong to the caller; the arguments are not kept.
//
// A ctx deadline wins over the store's timeout; without one a waiting operation ends after Timeout. Either way the
// error matches [ErrTimeout] and context.DeadlineExceeded.
type Store interface {
	// Set stores value under key and wakes all that wait for it.
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key exists and returns its value.
	Get(ctx context.Context, key string) ([]byte, error)
	// Add adds delta to the decimal number under key (a missing key counts as 0) and returns the sum.
	Add(ctx context.Context, key string, delta int64) (int64, error)
	// CompareAndSet replaces the value if it equals expected and returns the value that key has afterwards. A missing
	// key is created when expected is empty; otherwise it stays missing and expected is returned, as in PyTorch.
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
	// Check reports whether all keys exist, without waiting.
	Check(ctx context.Context, keys ...string) (bool, error)
	// Wait returns when all keys exist.
	Wait(ctx context.Context, keys ...string) error
	// Delete removes key and reports whether the store had it. (FileStore always says true, as PyTorch's does.)
	Delete(ctx context.Context, key string) (bool, error)
	// NumKeys returns the number of keys, the store's own bookkeeping keys included, as PyTorch counts them.
	NumKeys(ctx context.Context) (int, error)
	// Timeout bounds a waiting operation whose context has no deadline. Zero or less means no bound.
	Timeout() time.Duration
	// SetTimeout changes that bound for operations that start later.
	SetTimeout(d time.Duration)
	// Close releases the handle. Operations that wait end with ErrClosed. It is idempotent.
	Close() error
}

// Appender is a store with its own append.
type Appender interface {
	Append(ctx context.Context, key string, value []byte) error
}

// MultiGetter is a store that reads several keys at once.
type MultiGetter interface {
	MultiGet(ctx context.Context, keys ...string) ([][]byte, error)
}

// MultiSetter is a store that writes several keys at once.
type MultiSetter interface {
	MultiSet(ctx context.Context, keys []string, values [][]byte) error
}

// Queuer is a store with first-in first-out queues beside its keys.
type Queuer interface {
	QueuePush(ctx context.Context, key string, value []byte) error
	// QueuePop takes the oldest item. If wait is false an empty queue is ErrQueueEmpty, else the call waits.
	QueuePop(ctx context.Context, key string, wait bool) ([]byte, error)
	QueueLen(ctx context.Context, key string) (int, error)
}

// Lister is a store that can list its keys.
type Lister interface {
	ListKeys(ctx context.Context) ([]string, error)
}

// AddNumber is the arithmetic of Add, for custom stores. It reads value as PyTorch does, with C++'s std::stoll, and
// returns its sum with delta and the text to store. Leading white space and a sign are allowed, anything after the digits
// is ignored, and the sum wraps around at 64 bits. A value without a number, including an empty one, gives
// [ErrNotANumber]; for a key that does not exist, pass "0".
func AddNumber(key string, value []byte, delta int64) (sum int64, text []byte, err error) {
	sum, err = storeop.AddCounter(value, delta)
	if err != nil {
		return 0, nil, storeop.CounterError("store: add", key, value, err)
	}
	return sum, storeop.FormatCounter(sum), nil
}

// Cloner is a store that can return another handle on the same keys.
type Cloner interface {
	Clone(ctx context.Context) (Store, error)
}

// Clone returns another handle on the same keys, with its own connection and timeout, which must be closed separately. It
// corresponds to Store.clone. It is [ErrNotSupported] on a store without it.
func Clone(ctx context.Context, s Store) (Store, error) {
	if s == nil {
		return nil, noStore{}.err("clone")
	}
	if c, ok := s.(Cloner); ok {
		return c.Clone(ctx)
	}
	return nil, cohort.New("store: clone", cohort.NotSupported, fmt.Sprintf("%T does not support Clone", s))
}

// Clone implements [Cloner]: the same prefix of a further handle on the store below.
func (p *PrefixStore) Clone(ctx context.Context) (Store, error) {
	below, err := Clone(ctx, p.below())
	if err != nil {
		return nil, err
	}
	return &PrefixStore{store: below, prefix: p.prefix}, nil
}

// String names the prefix and the store below.
func (p *PrefixStore) String() string { return fmt.Sprintf("%v under %q", p.below(), p.prefix) }

// String says what it is.
func (m *Memory) String() string { return "memory store" }

// String says what it is.
func (noStore) String() string { return "no store" }

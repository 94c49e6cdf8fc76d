// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
)

// PrefixStore is the view of a store that [Prefix] makes.
type PrefixStore struct {
	prefix string // with its slash
	store  Store
}

var (
	_ Appender        = (*PrefixStore)(nil)
	_ MultiGetter     = (*PrefixStore)(nil)
	_ MultiSetter     = (*PrefixStore)(nil)
	_ Queuer          = (*PrefixStore)(nil)
	_ Lister          = (*PrefixStore)(nil)
	_ FeatureReporter = (*PrefixStore)(nil)
)

// Prefix returns a view of s in which every key k is the key prefix + "/" + k of s. Views nest. It corresponds to
// torch.distributed.PrefixStore.
//
// Everything is forwarded: the timeout is that of s, NumKeys counts all of s as PyTorch does, and Close closes s, so do
// not call Close on a view of a store that you do not own. Optional operations, and the answers of [Supports], are those
// of s. If s is nil every operation fails.
func Prefix(prefix string, s Store) *PrefixStore { return &PrefixStore{prefix: prefix + "/", store: s} }

// below returns the store that the view is of, or one that cannot do anything.
func (p *PrefixStore) below() Store { return orNone(p.store) }

// orNone returns s, or for nil a store whose operations say so.
func orNone(s Store) Store {
	if s == nil {
		return noStore{}
	}
	return s
}

// Underlying returns the store that was given to [Prefix], or nil if that was nil. It corresponds to
// PrefixStore.underlying_store.
func (p *PrefixStore) Underlying() Store { return p.store }

// UnderlyingNonPrefix returns s without all its prefixes. It corresponds to PrefixStore._underlying_non_prefix_store.
func UnderlyingNonPrefix(s Store) Store {
	for {
		p, ok := s.(*PrefixStore)
		if !ok {
			return s
		}
		s = p.Underlying()
	}
}

// Key returns what key is called in the underlying store.
func (p *PrefixStore) Key(key string) string { return p.prefix + key }

func (p *PrefixStore) keys(keys []string) []string {
	long := make([]string, len(keys))
	for i, key := range keys {
		long[i] = p.prefix + key
	}
	return long
}

// Set implements [Store].
func (p *PrefixStore) Set(ctx context.Context, key string, value []byte) error {
	return p.below().Set(ctx, p.prefix+key, value)
}

// Get implements [Store].
func (p *PrefixStore) Get(ctx context.Context, key string) ([]byte, error) {
	return p.below().Get(ctx, p.prefix+key)
}

// Add implements [Store].
func (p *PrefixStore) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return p.below().Add(ctx, p.prefix+key, delta)
}

// CompareAndSet implements [Store].
func (p *PrefixStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return p.below().CompareAndSet(ctx, p.prefix+key, expected, desired)
}

// Check implements [Store].
func (p *PrefixStore) Check(ctx context.Context, keys ...string) (bool, error) {
	return p.below().Check(ctx, p.keys(keys)...)
}

// Wait implements [Store].
func (p *PrefixStore) Wait(ctx context.Context, keys ...string) error {
	return p.below().Wait(ctx, p.keys(keys)...)
}

// Delete implements [Store].
func (p *PrefixStore) Delete(ctx context.Context, key string) (bool, error) {
	return p.below().Delete(ctx, p.prefix+key)
}

// NumKeys implements [Store]: the number of keys of the whole store below.
func (p *PrefixStore) NumKeys(ctx context.Context) (int, error) { return p.below().NumKeys(ctx) }

// Timeout implements [Store].
func (p *PrefixStore) Timeout() time.Duration { return p.below().Timeout() }

// SetTimeout implements [Store]: it changes the store below.
func (p *PrefixStore) SetTimeout(d time.Duration) { p.below().SetTimeout(d) }

// Close implements [Store]: it closes the store below.
func (p *PrefixStore) Close() error { return p.below().Close() }

// Supports implements [FeatureReporter].
func (p *PrefixStore) Supports(f Feature) bool { return Supports(p.below(), f) }

// AskSupport implements [FeatureAsker].
func (p *PrefixStore) AskSupport(ctx context.Context, f Feature) (bool, error) {
	return AskSupport(ctx, p.below(), f)
}

// Append implements [Appender], by a fallback where the store below has none.
func (p *PrefixStore) Append(ctx context.Context, key string, value []byte) error {
	return Append(ctx, p.below(), p.prefix+key, value)
}

// MultiGet implements [MultiGetter], by a fallback where the store below has none.
func (p *PrefixStore) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	return MultiGet(ctx, p.below(), p.keys(keys)...)
}

// MultiSet implements [MultiSetter], by a fallback where the store below has none.
func (p *PrefixStore) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return MultiSet(ctx, p.below(), p.keys(keys), values)
}

// QueuePush implements [Queuer], by a fallback where the store below has none.
func (p *PrefixStore) QueuePush(ctx context.Context, key string, value []byte) error {
	return QueuePush(ctx, p.below(), p.prefix+key, value)
}

// QueuePop implements [Queuer], by a fallback where the store below has none.
func (p *PrefixStore) QueuePop(ctx context.Context, key string, wait bool) ([]byte, error) {
	return QueuePop(ctx, p.below(), p.prefix+key, wait)
}

// QueueLen implements [Queuer], by a fallback where the store below has none.
func (p *PrefixStore) QueueLen(ctx context.Context, key string) (int, error) {
	return QueueLen(ctx, p.below(), p.prefix+key)
}

// ListKeys implements [Lister]: the keys under this prefix, without it.
func (p *PrefixStore) ListKeys(ctx context.Context) ([]string, error) {
	all, err := ListKeys(ctx, p.below())
	if err != nil {
		return nil, err
	}
	var own []string
	for _, key := range all {
		if short, ok := strings.CutPrefix(key, p.prefix); ok {
			own = append(own, short)
		}
	}
	return own, nil
}

// noStore is what a view has below it when it was made of nil.
type noStore struct{}

func (noStore) err(op string) error {
	return cohort.New("store: "+op, cohort.InvalidArgument,
		"store argument cannot be None: the store, or the store under the prefix, is nil")
}

func (n noStore) Set(context.Context, string, []byte) error         { return n.err("set") }
func (n noStore) Get(context.Context, string) ([]byte, error)       { return nil, n.err("get") }
func (n noStore) Add(context.Context, string, int64) (int64, error) { return 0, n.err("add") }
func (n noStore) Check(context.Context, ...string) (bool, error)    { return false, n.err("check") }
func (n noStore) Wait(context.Context, ...string) error             { return n.err("wait") }
func (n noStore) Delete(context.Context, string) (bool, error)      { return false, n.err("delete") }

func (n noStore) NumKeys(context.Context) (int, error) { return 0, n.err("number of keys") }
func (n noStore) Timeout() time.Duration               { return DefaultTimeout }
func (n noStore) SetTimeout(time.Duration)             {}
func (n noStore) Close() error                         { return n.err("close") }
func (n noStore) CompareAndSet(context.Context, string, []byte, []byte) ([]byte, error) {
	return nil, n.err("compare-and-set")
}

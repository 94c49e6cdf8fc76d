// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	"github.com/cohort-dist/cohort/internal/util/waitctx"
)

// Append appends value to what key holds, creating it. It corresponds to Store.append.
//
// On a store without [FeatureAppend] it is a loop of compare-and-set, as in PyTorch. That loop cannot tell its own
// success from that of another process that appends the same bytes at the same moment, so one of the two may then be
// lost. Values that differ (for example, because they contain a rank) are never lost.
func Append(ctx context.Context, s Store, key string, value []byte) error {
	if own, has, err := native[Appender](ctx, s, FeatureAppend); err != nil {
		return err
	} else if has {
		return own.Append(ctx, key, value)
	}
	ctx, cancel := waitctx.WithTimeout(ctx, s.Timeout())
	defer cancel()
	if len(value) == 0 { // only the creation of a missing key would be visible
		_, err := s.CompareAndSet(ctx, key, nil, nil)
		return err
	}
	// The value must be read first: appending to a guess could not tell "x" plus "x" from the first "x".
	current, err := peek(ctx, s, key)
	if err != nil {
		return err
	}
	for {
		desired := append(bytes.Clone(current), value...)
		got, err := s.CompareAndSet(ctx, key, current, desired)
		if err != nil {
			return err
		}
		if bytes.Equal(got, desired) {
			return nil
		}
		if bytes.Equal(got, current) { // the key was deleted: the store echoes what was expected
			current = nil
		} else {
			current = got
		}
		if err := storeop.WaitError("store: append", ctx, key); err != nil {
			return err
		}
	}
}

// peek returns the value of key without waiting, nil if it does not exist: a compare-and-set that expects what no value
// is answers with the value, or with what was expected.
func peek(ctx context.Context, s Store, key string) ([]byte, error) {
	probe := newStamp("peek")
	value, err := s.CompareAndSet(ctx, key, probe, probe)
	if err != nil || bytes.Equal(value, probe) {
		return nil, err
	}
	return value, nil
}

// MultiGet waits until all keys exist and returns their values. It corresponds to Store.multi_get. On a store without
// [FeatureMultiGet] the values are read one after the other.
func MultiGet(ctx context.Context, s Store, keys ...string) ([][]byte, error) {
	if own, has, err := native[MultiGetter](ctx, s, FeatureMultiGet); err != nil {
		return nil, err
	} else if has {
		return own.MultiGet(ctx, keys...)
	}
	ctx, cancel := waitctx.WithTimeout(ctx, s.Timeout())
	defer cancel()
	values := make([][]byte, 0, len(keys))
	for _, key := range keys {
		value, err := s.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// MultiSet stores values[i] under keys[i]. It corresponds to Store.multi_set. On a store without [FeatureMultiSet] the
// values are written one after the other, and an error leaves the first ones written.
func MultiSet(ctx context.Context, s Store, keys []string, values [][]byte) error {
	if err := storeop.CheckMultiSet("store: multi-set", keys, values); err != nil {
		return err
	}
	if own, has, err := native[MultiSetter](ctx, s, FeatureMultiSet); err != nil {
		return err
	} else if has {
		return own.MultiSet(ctx, keys, values)
	}
	for i, key := range keys {
		if err := s.Set(ctx, key, values[i]); err != nil {
			return err
		}
	}
	return nil
}

// ListKeys returns the user's keys in no particular order, without the store's own bookkeeping keys. It is
// [ErrNotSupported] on a store without [FeatureListKeys].
func ListKeys(ctx context.Context, s Store) ([]string, error) {
	if own, has, err := native[Lister](ctx, s, FeatureListKeys); err != nil {
		return nil, err
	} else if has {
		return own.ListKeys(ctx)
	}
	return nil, cohort.New("store: list keys", cohort.NotSupported, "this store cannot list its keys")
}

// Barrier returns when it has been called worldSize times for key, through any handles. The key may be used again, for
// the next worldSize calls. A call that times out stays counted, since it cannot be undone without a race.
//
// It uses only core operations, on keys that begin with key, so it works on every store. It does not work together with
// PyTorch's Store.barrier, which uses other keys and cannot be repeated. The last call that returns in a round removes
// the round's keys, so that only one counter stays, plus two keys for each round that a caller gave up.
func Barrier(ctx context.Context, s Store, key string, worldSize int) error {
	const op = "store: barrier"
	if worldSize < 1 {
		return &cohort.Error{
			Op: op, Code: cohort.InvalidArgument, Rank: cohort.NoRank, Key: key,
			Detail: "the world size must be at least 1",
		}
	}
	s = orNone(s)
	ctx, cancel := waitctx.WithTimeout(ctx, s.Timeout())
	defer cancel()
	count := key + "/arrived"
	n, err := s.Add(ctx, count, 1)
	if err != nil {
		return err
	}
	round := (n - 1) / int64(worldSize)
	open := key + "/open/" + strconv.FormatInt(round, 10)
	if n%int64(worldSize) == 0 {
		err = s.Set(ctx, open, []byte("1"))
	} else {
		err = s.Wait(ctx, open)
	}
	switch {
	case err == nil:
		leave(ctx, s, key+"/left/"+strconv.FormatInt(round, 10), open, worldSize)
		return nil
	case !errors.Is(err, ErrTimeout):
		return err
	}
	// The error says how many have joined. The time of the wait itself is up, so this question gets a little more.
	ask, cancelAsk := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancelAsk()
	now, askErr := s.Add(ask, count, 0)
	if askErr != nil {
		return err
	}
	arrived := min(now-round*int64(worldSize), int64(worldSize))
	e := cohort.Newf(op, cohort.DeadlineExceeded, "%d of %d have arrived: %w", arrived, worldSize, err)
	e.Key = key
	return e
}

// leave removes the keys of a round of Barrier once all callers have left it; until then one of them may still be about to wait
// for open. The barrier has been passed whether this succeeds or not, so errors are ignored.
func leave(ctx context.Context, s Store, left, open string, worldSize int) {
	n, err := s.Add(ctx, left, 1)
	if err != nil || n < int64(worldSize) {
		return
	}
	for _, key := range []string{open, left} {
		_, _ = s.Delete(ctx, key)
	}
}

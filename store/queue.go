// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	"github.com/cohort-dist/cohort/internal/util/waitctx"
)

// A store without queues keeps a whole queue in the value of one key, changed by compare-and-set:
//
//	magic (4) | stamp (16 random bytes) | items, each u32 length + bytes
//
// The stamp is new with every change. It makes each state unlike every other, so that the answer of compare-and-set
// says for certain who won: without it two clients that pop the same item would both see the state they asked for.
const (
	queueSuffix = "/.queue"
	queueMagic  = "cq1\n"
	stampSize   = 16
	queueHeader = len(queueMagic) + stampSize

	askTime      = time.Second
	firstPause   = time.Millisecond
	longestPause = 50 * time.Millisecond
)

// QueuePush appends value to the queue named key. It corresponds to Store.queue_push.
//
// On a store without [FeatureQueue] the queue is one value, under key + "/.queue", which every push and pop rewrites by
// compare-and-set. That is good enough for queues of some kilobytes, and is visible only to users of this package.
func QueuePush(ctx context.Context, s Store, key string, value []byte) error {
	if own, has, err := native[Queuer](ctx, s, FeatureQueue); err != nil {
		return err
	} else if has {
		return own.QueuePush(ctx, key, value)
	}
	ctx, cancel := waitctx.WithTimeout(ctx, s.Timeout())
	defer cancel()
	_, err := changeQueue(ctx, s, "store: queue push", key, func(items []byte) ([]byte, bool) {
		//nolint:gosec // bounded by the store
		items = append(bytes.Clone(items), binary.LittleEndian.AppendUint32(nil, uint32(len(value)))...)
		return append(items, value...), true
	})
	return err
}

// QueuePop takes the oldest item of the queue named key. On an empty queue it waits, or returns [ErrQueueEmpty] if wait
// is false. It corresponds to Store.queue_pop; see [QueuePush] for stores without queues.
func QueuePop(ctx context.Context, s Store, key string, wait bool) ([]byte, error) {
	if own, has, err := native[Queuer](ctx, s, FeatureQueue); err != nil {
		return nil, err
	} else if has {
		return own.QueuePop(ctx, key, wait)
	}
	const op = "store: queue pop"
	ctx, cancel := waitctx.WithTimeout(ctx, s.Timeout())
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		var item []byte
		changed, err := changeQueue(ctx, s, op, key, func(items []byte) ([]byte, bool) {
			if len(items) == 0 {
				return nil, false
			}
			end := 4 + int(binary.LittleEndian.Uint32(items))
			item = items[4:end]
			return items[end:], true
		})
		switch {
		case err != nil:
			return nil, err
		case changed:
			return bytes.Clone(item), nil
		case !wait:
			return nil, storeop.QueueEmpty(op, key)
		}
		// An emptied queue keeps its key, since its removal would race with a push; so this wait is a poll.
		select {
		case <-ctx.Done():
			return nil, storeop.WaitError(op, ctx, key)
		case <-time.After(pause):
		}
	}
}

// QueueLen returns the number of items in the queue named key; 0 for a queue that does not exist. It corresponds to
// Store.queue_len; see [QueuePush] for stores without queues.
func QueueLen(ctx context.Context, s Store, key string) (int, error) {
	if own, has, err := native[Queuer](ctx, s, FeatureQueue); err != nil {
		return 0, err
	} else if has {
		return own.QueueLen(ctx, key)
	}
	n := 0
	_, err := changeQueue(ctx, s, "store: queue length", key, func(items []byte) ([]byte, bool) {
		for n = 0; len(items) > 0; n++ {
			items = items[4+int(binary.LittleEndian.Uint32(items)):]
		}
		return nil, false
	})
	return n, err
}

// changeQueue gives the queue's items to change until its result could be stored or it wants none.
func changeQueue(ctx context.Context, s Store, op, key string, change func(items []byte) ([]byte, bool)) (bool, error) {
	key += queueSuffix
	current, err := peek(ctx, s, key)
	if err != nil {
		return false, err
	}
	for {
		var items []byte
		if len(current) > 0 {
			if items, err = parseQueue(op, key, current); err != nil {
				return false, err
			}
		}
		next, wanted := change(items)
		if !wanted {
			return false, nil
		}
		desired := append(newStamp(queueMagic), next...)
		got, err := s.CompareAndSet(ctx, key, current, desired)
		if err != nil {
			return false, err
		}
		if bytes.Equal(got, desired) {
			return true, nil
		}
		if bytes.Equal(got, current) { // deleted meanwhile
			got = nil
		}
		current = got
		if err := storeop.WaitError(op, ctx, key); err != nil {
			return false, err
		}
	}
}

func newStamp(magic string) []byte {
	b := make([]byte, len(magic)+stampSize)
	copy(b, magic)
	_, _ = rand.Read(b[len(magic):]) // never fails
	return b
}

// parseQueue returns the items of a state after checking every length in it.
func parseQueue(op, key string, state []byte) ([]byte, error) {
	if len(state) >= queueHeader && string(state[:len(queueMagic)]) == queueMagic {
		items := state[queueHeader:]
		rest := items
		for len(rest) >= 4 && int64(binary.LittleEndian.Uint32(rest)) <= int64(len(rest)-4) {
			rest = rest[4+int(binary.LittleEndian.Uint32(rest)):]
		}
		if len(rest) == 0 {
			return items, nil
		}
	}
	return nil, &cohort.Error{
		Op: op, Code: cohort.Protocol, Rank: cohort.NoRank, Key: key,
		Detail: "the value is not a queue: something else writes this key",
	}
}

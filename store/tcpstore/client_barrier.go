// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Barrier returns when it has been called size times for key, by any clients. The server counts, in one round trip, and
// never counts down: a key can be used for one barrier, and a call that ends early stays counted. [store.Barrier] works on
// every store and can be repeated; the two do not work together.
//
// It corresponds to TCPStore.barrier of PyTorch 2.12 and later, and Go and PyTorch clients meet at one key. Servers of
// earlier PyTorch have no barrier; there the error is [cohort.NotSupported].
func (c *Client) Barrier(ctx context.Context, key string, size int) error {
	q := &request{op: wire.Barrier, key: key, num: int64(size), wait: true}
	if size < 1 {
		e := cohort.New(q.opName(), cohort.InvalidArgument, "the size must be at least 1")
		e.Key = key
		return e
	}
	if has, err := c.hasBarrier(ctx); err != nil {
		return c.explain(q, err)
	} else if !has {
		e := cohort.New(q.opName(), cohort.NotSupported, "this is PyTorch's own store, of a version before 2.12, which has no barrier: "+
			"use store.Barrier, which works on every store")
		e.Peer, e.Key = c.addr, key
		return e
	}
	_, err := c.do(ctx, q)
	return err
}

// HasBarrier reports whether the server has the barrier operation: cohort's have it, PyTorch's since 2.12.
func (c *Client) HasBarrier(ctx context.Context) (bool, error) {
	has, err := c.hasBarrier(ctx)
	if err != nil {
		return false, c.explain(&request{op: wire.Barrier}, err)
	}
	return has, nil
}

func (c *Client) hasBarrier(ctx context.Context) (bool, error) {
	torch, ok := c.back.(*torchStore)
	if !ok {
		return true, nil
	}
	if c.closed.Load() {
		return false, cohort.Closed
	}
	ctx, cancel := c.withinTimeout(ctx)
	defer cancel()
	return torch.hasBarrier(ctx)
}

// barrierProbe is a key that a server of PyTorch counts the question for its barrier under.
const barrierProbe = "cohort/probe/barrier"

// hasBarrier asks once, and removes the key that the question leaves behind.
func (s *torchStore) hasBarrier(ctx context.Context) (bool, error) {
	failpoint.At("tcpstore.torch.knows")
	s.mu.Lock()
	known, ok := s.knows[wire.Barrier]
	s.mu.Unlock()
	if ok {
		return known, nil
	}
	has, err := s.has(ctx, &request{op: wire.Barrier, key: barrierProbe}) // of no ranks: it opens at once
	if err != nil || !has {
		return false, err
	}
	if _, err = s.short(ctx, &request{op: wire.DeleteKey, key: barrierProbe}); err != nil {
		failpoint.At("tcpstore.torch.forget")
		s.mu.Lock()
		delete(s.knows, wire.Barrier) // so that it is removed another time
		s.mu.Unlock()
	}
	return err == nil, err
}

// barrier counts the caller and waits for the others. It cannot share a connection with other waits nor poll, as they do where
// there are many: members of one barrier in this process would wait for each other's connection.
func (s *torchStore) barrier(ctx context.Context, q *request) error {
	t, err := s.pool.try(ctx, forWait)
	if err == nil && t == nil {
		if t, err = s.pool.openOne(ctx); err == nil {
			defer s.pool.drop(t)
			return t.barrier(ctx, q)
		}
	}
	if err != nil {
		return err
	}
	err = t.barrier(ctx, q)
	s.giveBack(ctx, t, forWait, err)
	return err
}

func (t *torchConn) barrier(ctx context.Context, q *request) error {
	return t.wait(ctx, q.append(nil, t.dialect), func(context.Context) (bool, error) {
		return false, nil // only the server knows how many have come
	})
}

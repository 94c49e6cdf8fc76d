// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package storefail

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// lateQueue is a queue that the other client fills while the victim waits.
const lateQueue = "late queue"

// operation is something that a client does.
type operation struct {
	name string
	adds bool
	pops bool
	do   func(ctx context.Context, g *game) error
}

var operations = []operation{
	{name: "set", do: func(ctx context.Context, g *game) error { return g.v.Set(ctx, "k", []byte("v")) }},
	{name: "large set", do: func(ctx context.Context, g *game) error { return g.v.Set(ctx, "large", g.large) }},
	{name: "larger set", do: func(ctx context.Context, g *game) error {
		return g.v.MultiSet(ctx, []string{"a", "b", "c", "d", "e"}, [][]byte{g.large, g.large, g.large, g.large, g.large})
	}},
	{name: "get", do: func(ctx context.Context, g *game) error {
		got, err := g.v.Get(ctx, "there")
		return wrongValue("get", got, "value", err)
	}},
	{name: "late get", do: func(ctx context.Context, g *game) error {
		got, err := g.v.Get(ctx, "late")
		return wrongValue("late get", got, "value", err)
	}},
	{name: "wait", do: func(ctx context.Context, g *game) error { return g.v.Wait(ctx, "late", "there") }},
	{name: "multi get", do: func(ctx context.Context, g *game) error {
		got, err := g.v.MultiGet(ctx, "late", "there")
		if err == nil && len(got) != 2 {
			return fmt.Errorf("multi get: %d values", len(got))
		}
		return err
	}},
	{name: "add", adds: true, do: func(ctx context.Context, g *game) error { _, err := g.v.Add(ctx, "counter", 1); return err }},
	{name: "check", do: func(ctx context.Context, g *game) error {
		ok, err := g.v.Check(ctx, "there")
		if err == nil && !ok && !g.r.Planned(restartEvent) {
			return errors.New("check: the key is not there")
		}
		return err
	}},
	{name: "compare and set", do: func(ctx context.Context, g *game) error {
		_, err := g.v.CompareAndSet(ctx, "cas", nil, []byte("v"))
		return err
	}},
	{name: "delete", do: func(ctx context.Context, g *game) error { _, err := g.v.Delete(ctx, "k"); return err }},
	{name: "append", do: func(ctx context.Context, g *game) error { return g.v.Append(ctx, "log", []byte("x")) }},
	{name: "number of keys", do: func(ctx context.Context, g *game) error { _, err := g.v.NumKeys(ctx); return err }},
	{name: "pop", pops: true, do: func(ctx context.Context, g *game) error { return g.pop(ctx, "queue", true) }},
	{name: "pop if any", pops: true, do: func(ctx context.Context, g *game) error { return g.pop(ctx, "queue", false) }},
	{name: "late pop", pops: true, do: func(ctx context.Context, g *game) error {
		if g.v.Dialect() == tcpstore.DialectLegacy { // its queues are not those of the other client
			return g.pop(ctx, "queue", true)
		}
		return g.pop(ctx, lateQueue, true)
	}},
	{name: "queue length", do: func(ctx context.Context, g *game) error { _, err := g.v.QueueLen(ctx, "queue"); return err }},
}

func (g *game) pop(ctx context.Context, queue string, wait bool) error {
	item, err := g.v.QueuePop(ctx, queue, wait)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(item, []byte("item")) {
		return fmt.Errorf("pop: %q", item)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken++
	return nil
}

// wrongValue is the error of a read that returned something else.
func wrongValue(what string, got []byte, want string, err error) error {
	if err == nil && string(got) != want {
		return fmt.Errorf("%s: %q, want %q", what, got, want)
	}
	return err
}

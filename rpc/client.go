// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/store"
)

// Caller can call workers: it is an *[Agent] or a *[Client].
type Caller interface {
	// Name returns the name under which it calls.
	Name() string
	String() string
	// Shutdown ends it in order: a worker leaves the world, a client waits for its calls.
	Shutdown(ctx context.Context) error
	// Close ends it at once; calls under way fail.
	Close() error

	callsBy() *Agent
}

func (a *Agent) callsBy() *Agent { return a }

// Client calls the workers of a world without being one of them. They need not know it; it serves nothing and holds no
// references. Tools use it to inspect a running world.
type Client struct{ a *Agent }

// NewClient returns a client of the RPC world that meets in st. The name must not be that of a worker. Only the options about
// addresses, transports, timeouts, logs and calls apply to it, and [WithRound].
func NewClient(ctx context.Context, st store.Store, name string, opts ...Option) (*Client, error) {
	opts = append(slices.Clone(opts), option(func(c *config) error { c.client, c.rank, c.worldSize = true, -1, 0; return nil }))
	a, err := Join(ctx, st, name, opts...)
	if err != nil {
		return nil, err
	}
	return &Client{a}, nil
}

func (g *Client) callsBy() *Agent { return g.a }

// Name returns the client's name.
func (g *Client) Name() string { return g.a.name }

// String names the client.
func (g *Client) String() string {
	if g.a == nil {
		return "no rpc client"
	}
	return "rpc client " + strconv.Quote(g.a.name)
}

// Workers reads the workers of the world from its store.
func (g *Client) Workers(ctx context.Context) ([]WorkerEntry, error) {
	return listWorkers(ctx, g.a.world.Store())
}

// Shutdown waits until no call of the client is under way, or ctx ends, and closes it.
func (g *Client) Shutdown(ctx context.Context) error { return g.a.Shutdown(ctx) }

// Close ends the client. It is idempotent and returns when its goroutines have ended.
func (g *Client) Close() error { return g.a.Close() }

func (a *Agent) startClient(ctx context.Context) error {
	if a.cfg.round < 0 {
		k, err := a.world.LatestRound(ctx)
		if err != nil {
			return err
		}
		a.world.Enter(k)
	}
	return a.listen(ctx, -1)
}

// lookup finds a worker for a client.
func (a *Agent) lookup(ctx context.Context, name string) (*rpcsession.Peer, error) {
	workers, err := rpcworld.List(ctx, a.world.Store())
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		if w.Name != name {
			continue
		}
		return a.net.AddPeer(w.Name, rrefcore.Worker(w.ID), w.Addr, w.Entry), nil //nolint:gosec // checked
	}
	e := cohort.New("rpc: worker", cohort.NotFound, "no such worker in the store")
	e.Key = name
	return nil, e
}

// WorkerEntry is a worker as the store knows it.
type WorkerEntry struct {
	WorkerInfo
	Addr string `json:"addr"`
	Go   bool   `json:"go"` // a Go worker, on whichever transport
}

// ListWorkers reads the workers of a world from its store, without joining it. round is 0 for the first world on the
// store; see [WithRound].
func ListWorkers(ctx context.Context, st store.Store, round int) ([]WorkerEntry, error) {
	return listWorkers(ctx, store.Prefix(rpcworld.RoundPrefix(round), st))
}

func listWorkers(ctx context.Context, st store.Store) ([]WorkerEntry, error) {
	all, err := rpcworld.List(ctx, st)
	if err != nil {
		return nil, err
	}
	out := make([]WorkerEntry, len(all))
	for i, w := range all {
		out[i] = WorkerEntry{WorkerInfo: WorkerInfo{Name: w.Name, ID: cohort.Rank(w.ID)}, Addr: w.Addr, Go: w.Go}
	}
	return out, nil
}

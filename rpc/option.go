// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// DefaultTimeout bounds a call whose context has no deadline. It is PyTorch's.
const DefaultTimeout = 60 * time.Second

// DefaultConcurrency is how many handlers run at once unless set. A handler that waits for a call of its own does not
// count.
const DefaultConcurrency = 256

type config struct {
	rank        cohort.Rank
	worldSize   int
	round       int
	listen      string
	advertise   string
	timeout     time.Duration
	concurrency int
	queue       int
	registry    *Registry
	operators   map[string]Kernel
	extension   rpcext.Extension
	logger      *slog.Logger
	panics      *slog.Logger // gets the panics of the program's functions, also where nothing else is logged
	hook        observe.Hook
	calling     []Interceptor
	serving     []Interceptor
	transports  []string
	channels    []string
	alloc       func(n int) (*tensor.Storage, error)
	core        rrefcore.Options
	client      bool
	strict      bool
	types       uint32 // later element types that every PyTorch worker knows
}

// Option configures [Join].
type Option interface{ apply(*config) error }

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithRank sets the worker's id, which must be unique. In a static world it is required. In a dynamic world the default
// is the lowest number that no worker has had: PyTorch workers never reconnect to an id that was used before.
func WithRank(rank cohort.Rank) Option {
	return option(func(c *config) error {
		if rank < 0 || rank > maxWorkerID {
			return cohort.Newf("rpc: join", cohort.InvalidArgument, "rank %d: a worker's id is 0 to %d", rank, maxWorkerID)
		}
		c.rank = rank
		return nil
	})
}

// WithWorldSize makes the world static: Join waits for exactly n workers with the ranks 0 to n-1.
func WithWorldSize(n int) Option {
	return option(func(c *config) error {
		if n < 1 || n > maxWorkerID+1 {
			return cohort.Newf("rpc: join", cohort.InvalidArgument, "a world of %d workers", n)
		}
		c.worldSize = n
		return nil
	})
}

// WithRound chooses one of several RPC worlds on a store: PyTorch gives the k-th init_rpc of a process, counted from 0,
// keys of its own. By default [Join] finds the round. In a static world it takes the first one that is not over, or the
// one in which PyTorch workers wait; in a dynamic world the last one that has workers, or the latest, or the next if that
// was static and is over.
//
// In two cases the store does not show it: when a dynamic world has to begin in the round of a PyTorch process that was
// in other worlds before and comes later, and when a start has failed and is repeated on the same store with PyTorch
// workers, whose next init_rpc is one round further, and which come after the Go workers.
func WithRound(k int) Option {
	return option(func(c *config) error {
		if k < 0 {
			return cohort.Newf("rpc: join", cohort.InvalidArgument, "round %d: the first is 0", k)
		}
		c.round = k
		return nil
	})
}

// WithHandlers sets the functions that this worker serves.
func WithHandlers(r *Registry) Option {
	return option(func(c *config) error { c.registry = r; return nil })
}

// WithTimeout bounds calls whose context has no deadline, and the steps of joining. The default is [DefaultTimeout]; zero
// or less means no bound, as PyTorch's 0.
func WithTimeout(d time.Duration) Option {
	return option(func(c *config) error { c.timeout = d; return nil })
}

// WithAddr sets the address to listen on, such as "10.0.0.5:0". The default follows PyTorch: the interface that
// TP_SOCKET_IFNAME names, else the address of the host name, else 127.0.0.1. That is also the address that others dial if
// it is a wildcard address, such as ":7000", unless [WithAdvertise] says otherwise.
func WithAddr(addr string) Option {
	return option(func(c *config) error { c.listen = addr; return nil })
}

// WithAdvertise sets the host:port that is published for others to dial. A name is looked up once, by [Join]: PyTorch
// workers dial addresses only.
func WithAdvertise(addr string) Option {
	return option(func(c *config) error { c.advertise = addr; return nil })
}

// The transports. PyTorch workers are always spoken to over uv.
const (
	TransportCohort = "cohort" // one connection per pair of Go workers, the extended reference protocol
	TransportUV     = "uv"     // TensorPipe over TCP
)

// WithTransports sets which transports Go workers may use among each other. The default is both, cohort first.
func WithTransports(names ...string) Option {
	return option(func(c *config) error {
		for _, n := range names {
			if n != TransportCohort && n != TransportUV {
				return cohort.Newf("rpc: join", cohort.InvalidArgument, "unknown transport %q: want cohort or uv", n)
			}
		}
		c.transports = names
		return nil
	})
}

// WithChannels sets how TensorPipe moves tensors: "basic" and "mpt_uv", the preferred first.
func WithChannels(names ...string) Option {
	return option(func(c *config) error { c.channels = names; return nil })
}

// WithLogger sets where warnings go: connections dropped, references leaked, phases of a shutdown.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l != nil {
			c.logger = l
		}
		return nil
	})
}

// WithHook sets the hook that gets an event for every call, served request and reference.
func WithHook(h observe.Hook) Option {
	return option(func(c *config) error { c.hook = h; return nil })
}

// WithConcurrency bounds how many handlers run at once; the default is [DefaultConcurrency]. Requests beyond it wait.
// Answers never wait for a slot, and a handler that waits for a call of its own with the context it was given does not
// count, so nested calls cannot block each other.
func WithConcurrency(n int) Option {
	return atLeastOne("concurrency", n, func(c *config) { c.concurrency = n })
}

// WithQueue bounds how many requests wait for a handler's slot; the default is 65,536. One caller gets three quarters of them at
// most. Requests beyond it end with [cohort.Exhausted]; PyTorch's workers queue without a bound.
func WithQueue(n int) Option { return atLeastOne("queue", n, func(c *config) { c.queue = n }) }

func atLeastOne(what string, n int, set func(*config)) Option {
	return option(func(c *config) error {
		if n < 1 {
			return cohort.Newf("rpc: join", cohort.InvalidArgument, "%s %d", what, n)
		}
		set(c)
		return nil
	})
}

// WithAlloc sets where the memory of received tensors comes from, such as the Get of a [tensor.Pool] whose tensors the
// program releases itself. By default large tensors are received into memory of the heap that the agent uses again once
// the garbage collector has found it unreachable, or that [tensor.Storage.Release] gave back.
func WithAlloc(alloc func(n int) (*tensor.Storage, error)) Option {
	return option(func(c *config) error { c.alloc = alloc; return nil })
}

// WithLease sets how Go workers watch each other: a message every heartbeat, a silent worker is suspected after lease,
// and what it held is released after grace more. A connection on which nothing comes for half of a lease is given up,
// so that there is time for another one; that takes heartbeats of at most a quarter of a lease.
func WithLease(heartbeat, lease, grace time.Duration) Option {
	return option(func(c *config) error {
		if heartbeat <= 0 || lease < 2*heartbeat || grace < 0 {
			return cohort.Newf("rpc: join", cohort.InvalidArgument,
				"heartbeat %v, lease %v, grace %v: a lease is at least two heartbeats", heartbeat, lease, grace)
		}
		c.core.Heartbeat, c.core.Lease, c.core.Grace = heartbeat, lease, grace
		return nil
	})
}

// WithLeakCheck makes Shutdown fail when references to this worker's objects were not released, as PyTorch's
// _ignore_rref_leak=False. Otherwise they are logged.
func WithLeakCheck() Option {
	return option(func(c *config) error { c.strict = true; return nil })
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		rank: cohort.NoRank, round: -1, timeout: DefaultTimeout, concurrency: DefaultConcurrency, queue: 1 << 16,
		logger:     slog.New(slog.DiscardHandler),
		transports: []string{TransportCohort, TransportUV},
	}
	for _, o := range opts {
		if o == nil {
			continue
		}
		if err := o.apply(c); err != nil {
			return nil, err
		}
	}
	if c.registry == nil {
		c.registry = NewRegistry()
	}
	c.panics = c.logger
	if c.logger.Handler() == slog.DiscardHandler {
		c.panics = slog.Default()
	}
	// Peers decide how often the functions below are called.
	c.panics = slog.New(limitLog(safecall.Logger(c.panics).Handler()))
	c.logger = slog.New(limitLog(safecall.Logger(c.logger).Handler()))
	c.hook, c.alloc = safecall.Hook(c.panics, c.hook), safecall.Func(c.panics, "rpc: alloc", c.alloc)
	if c.worldSize > 0 && (c.rank < 0 || int(c.rank) >= c.worldSize) {
		return nil, cohort.Newf("rpc: join", cohort.InvalidArgument, "a static world of %d workers needs WithRank(0..%d)",
			c.worldSize, c.worldSize-1)
	}
	return c, nil
}

func (c *config) endpointOptions() []tensorpipe.Option {
	opts := []tensorpipe.Option{tensorpipe.WithLogger(c.logger)}
	if len(c.channels) > 0 {
		opts = append(opts, tensorpipe.WithChannels(c.channels...))
	}
	if c.alloc != nil {
		opts = append(opts, tensorpipe.WithAlloc(c.alloc))
	}
	if c.advertise != "" {
		opts = append(opts, tensorpipe.WithAdvertisedAddress(c.advertise))
	}
	return opts
}

// WithElementTypes declares that every PyTorch worker of the world knows these element types: the Float8 types, which PyTorch
// has had since 2.1, and Uint16, Uint32 and Uint64, since 2.3. A process of an older version crashes when it receives
// one. Without this option they are sent only to Go workers, and to a PyTorch worker that has sent one itself.
func WithElementTypes(types ...tensor.DType) Option {
	return option(func(c *config) error {
		for _, dt := range types {
			if !dt.Valid() {
				return cohort.Newf("rpc: join", cohort.InvalidArgument, "%v is not an element type", dt)
			}
			c.types |= rpcsession.LaterType(dt)
		}
		return nil
	})
}

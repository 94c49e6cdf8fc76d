// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// EnvStore is the variable in which workers behind a launcher's gateway find the address of the store itself, HOST:PORT. OverTLS stands
// before that of a store which accepts only gateways of launchers.
const (
	EnvStore = "COHORT_STORE"
	OverTLS  = "tls://"
)

// Options is what a gateway is made of. Upstreams is needed.
type Options struct {
	// Upstreams are the addresses of the store, "host:port": the one that answered last is asked first, the others in turn.
	Upstreams []string
	// TLS, if it is not nil, protects the connections to the store.
	TLS *tls.Config
	// Dial opens connections to the store. Nil: over TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Limits are those for clients; Conns is how many there may be, and Stall how long one may leave its output unread.
	Limits storecore.Limits
	Conns  int
	Stall  time.Duration
	// AllowUIDs are users of this host whose connections are accepted, beside this process's own and root.
	AllowUIDs []uint32
	Logger    *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Limits.Memory == 0 {
		o.Limits = storecore.Limits{Limits: wire.DefaultLimits, Memory: 1 << 30, Output: 256 << 20, Waits: 1 << 14}
	}
	o.Conns, o.Stall = cmp.Or(o.Conns, 1<<14), cmp.Or(o.Stall, time.Minute)
	if o.Dial == nil {
		o.Dial = new(ctxdial.Faithful).Alive
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Gateway serves clients on a listener, by a store elsewhere.
type Gateway struct {
	options  Options
	gate     *gate // guarded by the lock of serving, as its machine is
	serving  *storeserve.Server
	upstream upstream
	addr     net.Addr
	started  time.Time
	end      context.CancelFunc
	joined   sync.WaitGroup
	close    sync.Once
}

// Serve starts a gateway on a listener, which belongs to it from then on. It returns at once: clients wait until the store is reached.
func Serve(l net.Listener, options Options) (*Gateway, error) {
	options = options.withDefaults()
	if len(options.Upstreams) == 0 {
		_ = l.Close()
		return nil, cohort.New("gateway: serve", cohort.InvalidArgument, "the address of the store is missing")
	}
	for _, addr := range options.Upstreams {
		if err := storedial.CheckAddr(addr); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	w := &Gateway{options: options, addr: l.Addr(), started: time.Now()}
	w.gate = newGate(Config{Token: newToken, Kept: options.Limits.Memory / 8})
	w.upstream.gateway, w.upstream.settled = w, make(chan struct{})
	serving, err := storeserve.Start(l, storeserve.Config{
		Machine: storecore.Config{Limits: options.Limits, Relay: w.gate, Silent: 1024},
		Stats:   func(c *storeserve.Core) []byte { return w.statsJSON(c) },
		Conns:   options.Conns, Stall: options.Stall, Portable: true, Loops: 1,
		AllowUIDs: options.AllowUIDs, Logger: options.Logger,
		Stepped: w.upstream.collect, Unlocked: w.upstream.flush,
	})
	if err != nil {
		return nil, err
	}
	w.serving = serving
	serving.Do(func(c *storeserve.Core) { w.gate.Machine = c.Machine })
	ctx, cancel := context.WithCancel(context.Background())
	w.end = cancel
	w.joined.Go(func() { w.upstream.run(ctx) })
	return w, nil
}

// Addr returns the address that clients connect to.
func (w *Gateway) Addr() net.Addr { return w.addr }

// Reached waits until the store is reached for the first time. It returns an error for cohort.NotSupported if what is there cannot be
// used: a gateway needs a store with sessions.
func (w *Gateway) Reached(ctx context.Context) error {
	select {
	case <-w.upstream.settled:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.upstream.mu.Lock()
	defer w.upstream.mu.Unlock()
	return w.upstream.mu.refusal
}

// Close ends the gateway and all connections of its clients.
func (w *Gateway) Close() error {
	w.close.Do(func() {
		w.end()
		w.joined.Wait()
		w.serving.End()
	})
	return nil
}

func newToken() (id [wire.SessionIDSize]byte) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

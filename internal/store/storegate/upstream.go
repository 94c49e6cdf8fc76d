// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

const (
	// takeSize is about how many bytes are sent to the store in one write.
	takeSize = 256 << 10
	// maxFrame bounds an answer of the store.
	maxFrame = 1 << 30
	// tickTime is how often the gate is given a chance to go on.
	tickTime = 50 * time.Millisecond
	// silentTime is how long the store may be silent before it is asked for a sign of life, and then before the connection is given up.
	silentTime = 2 * time.Second
	// attemptTime bounds an attempt to reach one address.
	attemptTime = 2 * time.Second
	// maxHops bounds how often in a row servers may name another one.
	maxHops = 3
	// firstPause and lastPause are between attempts when no address has answered.
	firstPause, lastPause = 5 * time.Millisecond, 200 * time.Millisecond
)

// upstream is the connection to the store, which is replaced whenever it is lost.
type upstream struct {
	gateway *Gateway

	mu struct {
		sync.Mutex

		conn    net.Conn // nil: not connected
		addr    string
		out     []byte
		more    bool // the gate has more than was taken
		writing bool
		since   time.Time // connected, or lost
		lost    string    // why
		times   int       // how often it was connected
		refusal error     // the store cannot be used
	}
	settled chan struct{} // closed when the store was reached or refused for the first time
	once    sync.Once
}

// collect takes what the gate has for the store, unless something is being written: then more comes together. The machine stands still.
func (u *upstream) collect() {
	g := u.gateway.gate
	if !g.Pending() {
		return
	}
	u.mu.Lock()
	switch {
	case u.mu.conn == nil:
	case u.mu.writing || len(u.mu.out) > 0:
		u.mu.more = true
	default:
		u.mu.out = g.Take(takeSize)
		u.mu.more = g.Pending()
	}
	u.mu.Unlock()
}

// flush writes what was collected, unless another goroutine does.
func (u *upstream) flush() {
	u.mu.Lock()
	if u.mu.writing || len(u.mu.out) == 0 || u.mu.conn == nil {
		u.mu.Unlock()
		return
	}
	u.mu.writing = true
	for len(u.mu.out) > 0 && u.mu.conn != nil {
		conn, out := u.mu.conn, u.mu.out
		u.mu.out = nil
		u.mu.Unlock()
		failpoint.At("storegate.write")
		if _, err := conn.Write(out); err != nil {
			_ = conn.Close() // which ends the reader
		}
		u.mu.Lock()
		if u.mu.more && len(u.mu.out) == 0 {
			u.mu.Unlock()
			u.takeMore(conn)
			u.mu.Lock()
		}
	}
	u.mu.writing = false
	u.mu.Unlock()
}

// takeMore takes what the gate has gathered while the writer was busy.
func (u *upstream) takeMore(conn net.Conn) {
	u.gateway.serving.Do(func(*storeserve.Core) {
		g := u.gateway.gate
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.mu.conn == conn && len(u.mu.out) == 0 {
			u.mu.out = g.Take(takeSize)
			u.mu.more = g.Pending()
		}
	})
}

// run keeps a connection to the store until ctx ends.
func (u *upstream) run(ctx context.Context) {
	next, pause := 0, firstPause
	for ctx.Err() == nil {
		addr := u.gateway.options.Upstreams[next%len(u.gateway.options.Upstreams)]
		moved, served := u.attempt(ctx, addr)
		for hops := 0; moved != "" && hops < maxHops && ctx.Err() == nil; hops++ { // the store has said whom to ask
			moved, served = u.attempt(ctx, moved)
		}
		if served {
			pause = firstPause
			continue // the same address is tried first: the connection alone may have been lost
		}
		if next++; next%len(u.gateway.options.Upstreams) != 0 {
			continue
		}
		u.refuse()
		timer := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // jitter needs no secrecy
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, lastPause)
	}
}

// withoutSessions notes that the store at an address has no sessions, without which nothing is applied exactly once.
func (u *upstream) withoutSessions(addr string) error {
	err := cohort.Newf("gateway", cohort.NotSupported, "the store at %s cannot have a gateway, because it has no sessions: "+
		"it is a gateway itself, or its cohort is older; have clients connect to it directly", addr)
	u.mu.Lock()
	u.mu.refusal = err
	u.mu.Unlock()
	return err
}

// refuse has clients refused if one of the addresses has answered that cannot be used, and none that can.
func (u *upstream) refuse() {
	u.mu.Lock()
	why := u.mu.refusal
	u.mu.Unlock()
	if why == nil {
		return
	}
	u.gateway.serving.Do(func(*storeserve.Core) {
		if g := u.gateway.gate; g.Refusal() == nil {
			g.Refuse(why)
		}
	})
	u.once.Do(func() { close(u.settled) })
}

// attempt connects to an address and serves until the connection is lost. It reports whether the store has answered there.
func (u *upstream) attempt(ctx context.Context, addr string) (moved string, served bool) {
	conn, err := u.dial(ctx, addr)
	if err != nil {
		u.say(ctx, addr, err)
		return "", false
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	u.began(conn, addr)
	err = u.read(ctx, conn)
	_ = conn.Close()
	var fault error
	u.gateway.serving.Do(func(*storeserve.Core) {
		served = u.gateway.gate.Ready()
		moved, fault = u.gateway.gate.Fault()
		u.gateway.gate.Disconnected()
		u.mu.Lock()
		u.mu.conn, u.mu.out, u.mu.more = nil, nil, false
		u.mu.since = time.Now()
		u.mu.Unlock()
	})
	if fault != nil {
		err = fault
	}
	if moved == addr {
		moved = ""
	}
	u.say(ctx, addr, err)
	return printable.Line(moved), served
}

// dial connects to an address and makes sure that it has sessions.
func (u *upstream) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	o := &u.gateway.options
	dial := o.Dial
	if o.TLS != nil {
		dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := o.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return handshake(ctx, raw, addr, o.TLS)
		}
	}
	f, err := (&storedial.Dialer{Addr: addr, Dial: dial, Log: o.Logger}).Again(ctx, storedial.Conn{Dialect: wire.Native})
	if err != nil {
		return nil, err
	}
	if !f.Sessions {
		_ = f.Conn.Close()
		return nil, u.withoutSessions(addr)
	}
	return f.Conn, nil
}

func handshake(ctx context.Context, raw net.Conn, addr string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

func (u *upstream) began(conn net.Conn, addr string) {
	u.gateway.serving.Do(func(*storeserve.Core) {
		u.mu.Lock()
		u.mu.conn, u.mu.addr, u.mu.out, u.mu.more = conn, addr, nil, false
		u.mu.Unlock()
		u.gateway.gate.Connected() // Stepped takes the greeting
	})
	u.flush()
}

// read takes what the store sends until the connection ends, and looks after its clock.
func (u *upstream) read(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	var ticker sync.WaitGroup
	defer ticker.Wait()
	defer cancel()
	alive := make(chan struct{}, 1)
	ticker.Go(func() { u.tick(ctx, conn, alive) })
	var in wire.Inbox
	announced := false
	for {
		failpoint.At("storegate.read")
		n, err := conn.Read(in.Space())
		in.Filled(n)
		if n == 0 {
			return cmp.Or(err, io.ErrNoProgress)
		}
		select {
		case alive <- struct{}{}:
		default:
		}
		ready := false
		if err = u.receive(&in, &ready); err != nil {
			return err
		}
		if ready && !announced {
			announced = true
			u.found(ctx)
		}
	}
}

// receive gives the gate all frames that are there.
func (u *upstream) receive(in *wire.Inbox, ready *bool) (err error) {
	u.gateway.serving.Do(func(*storeserve.Core) {
		g := u.gateway.gate
		for {
			frame, kept, failed := in.Next(maxFrame)
			if failed != nil || frame == nil {
				err = failed
				break
			}
			g.Receive(frame, kept)
		}
		if _, fault := g.Fault(); err == nil {
			err = fault
		}
		*ready = g.Ready()
	})
	return err
}

// tick gives the gate its ticks, and ends a connection on which the store is silent.
func (u *upstream) tick(ctx context.Context, conn net.Conn, alive <-chan struct{}) {
	ticks := time.NewTicker(tickTime)
	defer ticks.Stop()
	for silent := time.Duration(0); ; silent += tickTime {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		select {
		case <-alive:
			silent = 0
		default:
		}
		asked := false
		u.gateway.serving.Do(func(*storeserve.Core) {
			if u.gateway.gate.Tick(); silent >= silentTime {
				asked = u.gateway.gate.Ping()
			}
		})
		if asked && silent >= 2*silentTime || silent >= 4*silentTime {
			_ = conn.Close()
			return
		}
	}
}

// found says that the store is reached.
func (u *upstream) found(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was, again := time.Since(u.mu.since), u.mu.times > 0
	u.mu.times++
	u.mu.refusal = nil
	u.once.Do(func() { close(u.settled) })
	u.mu.since = time.Now()
	logger, attrs := u.gateway.options.Logger, []slog.Attr{slog.String("addr", u.mu.addr)}
	if u.mu.lost = ""; again {
		attrs = append(attrs, slog.Duration("away", was.Round(time.Millisecond)))
		logger.LogAttrs(ctx, slog.LevelInfo, "the store is reached again; requests of clients go on", attrs...)
		return
	}
	logger.LogAttrs(ctx, slog.LevelInfo, "the store is reached", attrs...)
}

// say notes why the store is not reached, and says it once for each reason.
func (u *upstream) say(ctx context.Context, addr string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	why := printable.Line(err.Error())
	refused := errors.Is(err, cohort.NotSupported)
	known := u.mu.lost != "" && !refused || u.mu.lost == why
	u.mu.lost = why
	u.mu.Unlock()
	logger, attrs := u.gateway.options.Logger, []slog.Attr{slog.String("addr", addr), slog.String("reason", why)}
	switch {
	case known:
	case refused:
		logger.LogAttrs(ctx, slog.LevelWarn, "the store cannot be used; clients are refused", attrs...)
	default:
		logger.LogAttrs(ctx, slog.LevelWarn, "the store is not reached; requests of clients wait until it is", attrs...)
	}
}

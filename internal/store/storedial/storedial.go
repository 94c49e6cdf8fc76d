// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storedial opens connections to a TCPStore server, cohort's or that of any PyTorch, and finds out which dialect it speaks.
package storedial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

const (
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = time.Second
	// handshakeTime bounds one attempt; a server that is merely busy gets another one.
	handshakeTime = 10 * time.Second
	// redialTime bounds the replacing of a connection in the middle of a client's life: a server that is gone must
	// show as an error soon.
	redialTime = 2 * time.Second
)

// Dialer opens connections to one server.
type Dialer struct {
	Addr string
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	Log  *slog.Logger
	// Patient tells that a host name which does not exist may come to be.
	Patient bool
	// Failed, if not nil, is told of each attempt of Connect that is followed by another.
	Failed func(attempt int, took time.Duration, err error)
}

// Conn is a connection whose dialect is known, ready for its first request.
type Conn struct {
	Conn    net.Conn
	Dialect wire.Dialect
	V0      bool // a V server without PING
	// Sessions tells that a Native server has sessions.
	Sessions bool
}

// Connect tries until ctx ends to reach a server that speaks the wanted dialect, wire.Undetected being any. What cannot get better by
// waiting is not retried.
func (d *Dialer) Connect(ctx context.Context, want wire.Dialect) (Conn, error) {
	start := time.Now()
	backoff := firstBackoff
	var last error
	for attempt := 1; ; attempt++ {
		f, err := d.attempt(ctx, want)
		if err == nil {
			return f, nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if hopeless(err) || ctxdial.UnknownHost(err) && !d.Patient {
			return Conn{}, err
		}
		if ctx.Err() == nil {
			if d.Failed != nil {
				d.Failed(attempt, time.Since(start), err)
			}
			d.Log.LogAttrs(ctx, slog.LevelDebug, "store does not answer yet",
				slog.String("addr", d.Addr), slog.Int("attempt", attempt), slog.String("err", err.Error()))
			timer := time.NewTimer(backoff/2 + rand.N(backoff)) //nolint:gosec // jitter needs no secrecy
			failpoint.At("tcpstore.dial.pause")
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			backoff = min(backoff*3/2, maxBackoff)
		}
		if ctx.Err() != nil {
			return Conn{}, d.gaveUp(ctx, time.Since(start), last)
		}
	}
}

// gaveUp is the error of a connect whose context ended. It has PyTorch's words, for those who search for them.
func (d *Dialer) gaveUp(ctx context.Context, took time.Duration, last error) error {
	e := cohort.Ended(ctx, "tcpstore: dial")
	e.Peer = d.Addr
	host, port, err := net.SplitHostPort(d.Addr)
	if err != nil {
		host, port = d.Addr, "?"
	}
	if e.Code == cohort.DeadlineExceeded {
		e.Detail = fmt.Sprintf("The client socket has timed out after %dms while trying to connect to (%s, %s). "+
			"The last attempt ended with: %v. Check that rank 0 (or the store) has started, that MASTER_ADDR and MASTER_PORT "+
			"name it, and that no firewall is between", took.Milliseconds(), host, port, storeop.Detail(last))
	} else {
		e.Detail = fmt.Sprintf("cancelled after %dms while trying to connect to (%s, %s); the last attempt ended with: %v",
			took.Milliseconds(), host, port, storeop.Detail(last))
	}
	return e
}

// hopeless reports whether another attempt must fail as well.
func hopeless(err error) bool {
	switch cohort.CodeOf(err) { //nolint:exhaustive // all others may get better
	case cohort.Protocol, cohort.NotSupported, cohort.InvalidArgument:
		return true
	}
	return false
}

// attempt connects and finds the dialect once.
func (d *Dialer) attempt(ctx context.Context, want wire.Dialect) (Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTime, cohort.DeadlineExceeded)
	defer cancel()
	if want == wire.Legacy {
		return d.tryLegacy(ctx)
	}
	f, closed, err := d.tryV(ctx, want)
	if !closed || want == wire.Native {
		return f, err
	}
	// A PyTorch that knows no PING (2.4) or no VALIDATE (1.13) has closed the connection. The first of the two is asked
	// first: its server, when built with libuv, would swallow a legacy request in silence.
	older, err := d.tryV0(ctx)
	if err != nil && want == wire.Undetected && cohort.CodeOf(err) != cohort.Protocol {
		older, err = d.tryLegacy(ctx)
	}
	if err != nil {
		return older, err
	}
	// So may a network, or a server that had no room. Twice, it was the server.
	if f, closed, err = d.tryV(ctx, want); closed {
		return older, nil
	}
	_ = older.Conn.Close()
	return f, err
}

// open connects and makes the context's end interrupt the handshake that follows.
func (d *Dialer) open(ctx context.Context) (net.Conn, ctxdial.Interrupt, error) {
	failpoint.At("tcpstore.dial.open")
	conn, err := d.Dial(ctx, "tcp", d.Addr)
	if err != nil {
		e := &cohort.Error{Op: "tcpstore: dial", Code: cohort.Unavailable, Rank: cohort.NoRank, Peer: d.Addr, Err: err}
		if ctxdial.UnknownHost(err) {
			host, _, _ := net.SplitHostPort(d.Addr)
			e.Code, e.Detail = cohort.NotFound, fmt.Sprintf("no host is named %q: check the address (MASTER_ADDR); %v", host, err)
		}
		if ctxdial.BadAddr(err) {
			e.Code, e.Detail = cohort.InvalidArgument, err.Error()+`: want "host:port" with a port from 1 to 65535`
		}
		if refused, ok := errors.AsType[*portowner.TorchPortError](err); ok {
			e.Code, e.Detail = cohort.Protocol, refused.Error()
		}
		return nil, ctxdial.Interrupt{}, e
	}
	return conn, ctxdial.InterruptBy(ctx, conn.SetDeadline), nil
}

// ask writes hello and reads an answer of n bytes. closed tells that the server closed the connection instead.
func (d *Dialer) ask(ctx context.Context, hello []byte, n int) (conn net.Conn, answer []byte, closed bool, err error) {
	conn, watch, err := d.open(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	answer = make([]byte, n)
	failpoint.At("tcpstore.dial.greet")
	// One write: PyTorch's libuv server takes VALIDATE only when it arrives whole.
	if _, err = conn.Write(hello); err == nil {
		failpoint.At("tcpstore.dial.greeted")
		_, err = io.ReadFull(conn, answer)
	}
	if interrupted := watch.End(); err == nil && interrupted {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		closed = isClosedByPeer(err)
		return nil, nil, closed, &cohort.Error{
			Op: "tcpstore: dial", Code: cohort.Unavailable, Rank: cohort.NoRank, Peer: d.Addr,
			Detail: fmt.Sprintf("connected, but the greeting failed: %v", err), Err: err,
		}
	}
	return conn, answer, false, nil
}

// tryV greets as PyTorch 2.6 does and, unless plain V is wanted, asks whether this is cohort's server.
//
// PyTorch 1.13 reads the greeting as a SET whose key length ends with the nonce's third byte: at 0x80 or more that length
// is impossible for it, so it gives up at once instead of trying to allocate.
func (d *Dialer) tryV(ctx context.Context, want wire.Dialect) (f Conn, closed bool, err error) {
	nonce := rand.Uint32() | 0x00800000 //nolint:gosec // a nonce, not a secret
	hello := wire.AppendPing(wire.AppendValidate(nil), wire.V, nonce)
	n := 4
	if want != wire.V {
		hello = wire.AppendKeys(hello, wire.V, wire.Check, wire.NativeKey)
		hello = wire.AppendKeys(hello, wire.V, wire.Check, wire.SessionsKey)
		n = 6
	}
	conn, answer, closed, err := d.ask(ctx, hello, n)
	if err != nil {
		return Conn{}, closed, err
	}
	echo, _, _, err := wire.ParseReply(wire.V, wire.Ping, 0, answer, &wire.DefaultLimits)
	switch {
	case err != nil, echo.Nonce != nonce:
		return Conn{}, false, d.stranger(conn, answer)
	case want == wire.V:
		return Conn{Conn: conn, Dialect: wire.V}, false, nil
	}
	switch answer[4] {
	case wire.Ready:
		return Conn{Conn: conn, Dialect: wire.Native, Sessions: answer[5] == wire.Ready}, false, nil
	case wire.NotReady:
		if want == wire.Native {
			_ = conn.Close()
			e := cohort.New("tcpstore: dial", cohort.NotSupported,
				"this is PyTorch's store, which has no native dialect: leave the dialect to Dial")
			e.Peer = d.Addr
			return Conn{}, false, e
		}
		return Conn{Conn: conn, Dialect: wire.V}, false, nil
	}
	return Conn{}, false, d.stranger(conn, answer)
}

// tryV0 greets without PING. The four requests for the number of keys after VALIDATE make the whole unreadable to a
// PyTorch 1.13 server as well: it takes them for the end of a key length of 2^58 and closes.
func (d *Dialer) tryV0(ctx context.Context) (Conn, error) {
	hello := wire.AppendValidate(nil)
	for range 4 {
		hello = wire.AppendPlain(hello, wire.V, wire.NumKeys)
	}
	conn, answer, _, err := d.ask(ctx, hello, 4*8)
	if err != nil {
		return Conn{}, err
	}
	for i := range 4 {
		if r, _, _, err := wire.ParseReply(wire.V, wire.NumKeys, 0, answer[8*i:], &wire.DefaultLimits); err != nil || r.Num < 0 ||
			r.Num > 1<<40 {
			return Conn{}, d.stranger(conn, answer)
		}
	}
	return Conn{Conn: conn, Dialect: wire.V, V0: true}, nil
}

// tryLegacy asks a PyTorch 1.13 server for its number of keys, so that a server of another kind is found out now and not
// at the user's first operation.
func (d *Dialer) tryLegacy(ctx context.Context) (Conn, error) {
	conn, answer, _, err := d.ask(ctx, wire.AppendPlain(nil, wire.Legacy, wire.NumKeys), 8)
	if err != nil {
		return Conn{}, err
	}
	if r, _, _, err := wire.ParseReply(wire.Legacy, wire.NumKeys, 0, answer, &wire.DefaultLimits); err != nil || r.Num < 0 ||
		r.Num > 1<<40 {
		return Conn{}, d.stranger(conn, answer)
	}
	return Conn{Conn: conn, Dialect: wire.Legacy}, nil
}

// Again opens one more connection to a server whose dialect is known: one attempt, no patience.
func (d *Dialer) Again(ctx context.Context, like Conn) (Conn, error) {
	f, err := d.reopen(ctx, like)
	if err != nil && isOver(ctx) { // the caller's time was up, which says nothing about the server
		e := cohort.Ended(ctx, "tcpstore: dial")
		e.Peer = d.Addr
		return Conn{}, e
	}
	return f, err
}

// isOver reports whether ctx has ended. Sockets have timers of their own for its deadline, which may be a little faster.
func isOver(ctx context.Context) bool {
	if deadline, bounded := ctx.Deadline(); bounded && !time.Now().Before(deadline) {
		failpoint.At("tcpstore.dial.over")
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

func (d *Dialer) reopen(ctx context.Context, like Conn) (Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, redialTime,
		cohort.Newf("tcpstore: dial", cohort.Unavailable, "no connection within %v", redialTime))
	defer cancel()
	if like.Dialect == wire.Native {
		f, _, err := d.tryV(ctx, wire.Native)
		return f, err
	}
	conn, watch, err := d.open(ctx)
	if err != nil {
		return Conn{}, err
	}
	if like.Dialect == wire.V {
		failpoint.At("tcpstore.dial.validate")
		_, err = conn.Write(wire.AppendValidate(nil))
	}
	if watch.End() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return Conn{}, &cohort.Error{Op: "tcpstore: dial", Code: cohort.Unavailable, Rank: cohort.NoRank, Peer: d.Addr, Err: err}
	}
	like.Conn = conn
	return like, nil
}

func (d *Dialer) stranger(conn net.Conn, answer []byte) error {
	_ = conn.Close()
	e := cohort.Newf("tcpstore: dial", cohort.Protocol, "no TCPStore listens here: it answered %q; check the port", answer)
	e.Peer = d.Addr
	return e
}

// isClosedByPeer reports whether a connection ended by the other side's doing.
func isClosedByPeer(err error) bool {
	return ctxdial.Ended(err) || errors.Is(err, io.ErrClosedPipe)
}

// CheckAddr refuses an address without a port before any name is looked up.
func CheckAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil && port != "" {
		return nil
	}
	detail := `want "host:port"`
	if err != nil {
		detail = strings.TrimPrefix(err.Error(), "address "+addr+": ") + ": " + detail
	}
	return &cohort.Error{Op: "tcpstore: dial", Code: cohort.InvalidArgument, Rank: cohort.NoRank, Peer: addr, Detail: detail}
}

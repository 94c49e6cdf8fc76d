// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// torchConn is a connection to a PyTorch server (or to ours, spoken to as if it were one). One operation uses it at a
// time. Replies carry no ids: an operation that is given up must leave the connection either in step or unusable.
type torchConn struct {
	conn    net.Conn
	dialect wire.Dialect

	buf  []byte
	r, w int // the unread part of buf

	cancelled int  // CANCEL_WAITs whose reply has not been read
	unusable  bool // out of step, or ended
}

// lostError is the end of a connection by the server's doing or the network's.
type lostError struct{ cause error }

func (e *lostError) Error() string {
	if isEnd(e.cause) {
		return "the server closed the connection"
	}
	return e.cause.Error()
}

func (e *lostError) Unwrap() error { return e.cause }

func (e *lostError) Is(target error) bool { return target == error(cohort.PeerLost) }

func isEnd(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF } //nolint:errorlint // as read returns them

// exchange writes a request and has read read its replies. It ends with ctx; then the connection is out of step.
func (t *torchConn) exchange(ctx context.Context, request []byte, read func() error) error {
	watch := ctxdial.InterruptBy(ctx, t.conn.SetDeadline)
	failpoint.At("tcpstore.torch.write")
	err := t.drain()
	if err == nil {
		_, err = t.conn.Write(request)
	}
	if err == nil {
		failpoint.At("tcpstore.torch.read")
		err = read()
	}
	failpoint.At("tcpstore.torch.done")
	interrupted := watch.End()
	if err == nil {
		if interrupted { // the answer was faster
			_ = t.conn.SetDeadline(time.Time{})
		}
		t.release()
		return nil
	}
	t.unusable = true
	return t.failed(ctx, err)
}

// failed returns what ended an exchange: ctx, a reply that makes no sense, or the connection.
func (t *torchConn) failed(ctx context.Context, err error) error {
	if isTimeout(err) {
		if e := cohort.FromContext(ctx, "tcpstore"); e != nil {
			return e
		}
	}
	if cohort.CodeOf(err) != cohort.Unknown {
		return err
	}
	return &lostError{cause: err}
}

// drain reads the answers to CANCEL_WAITs of earlier users of the connection. A wait that was satisfied at the last
// moment has its own answer before that.
func (t *torchConn) drain() error {
	for t.cancelled > 0 {
		b, err := t.reply(wire.CancelWait, 0)
		if err != nil {
			return err
		}
		if b.Byte == wire.StopWaiting {
			if b, err = t.reply(wire.CancelWait, 0); err != nil {
				return err
			}
		}
		if b.Byte != wire.WaitCanceled {
			return cohort.Newf("tcpstore: decode", cohort.Protocol, "byte %d in answer to cancel_wait, want %d", b.Byte, wire.WaitCanceled)
		}
		t.cancelled--
	}
	return nil
}

// reply reads the reply to op. It is valid until the next reply.
func (t *torchConn) reply(op wire.Op, keys int) (wire.Reply, error) {
	for {
		if have := t.buf[t.r:t.w]; len(have) >= wire.ReplySize(op, have) {
			r, n, short, err := wire.ParseReply(t.dialect, op, keys, have, &replyLimits)
			if err != nil {
				return r, err
			}
			if !short {
				t.r += n
				return r, nil
			}
		} else if _, _, _, err := wire.ParseReply(t.dialect, op, keys, have, &replyLimits); err != nil {
			return wire.Reply{}, err // a length over the limit is not waited for
		}
		if err := t.fill(); err != nil {
			return wire.Reply{}, err
		}
	}
}

// fill reads once. The buffer grows only after it was filled with bytes that did arrive.
func (t *torchConn) fill() error {
	switch {
	case t.buf == nil:
		t.buf = make([]byte, 4<<10)
	case t.r == t.w:
		t.r, t.w = 0, 0
	case t.w == len(t.buf) && t.r > 0:
		t.w = copy(t.buf, t.buf[t.r:t.w])
		t.r = 0
	case t.w == len(t.buf):
		grown := make([]byte, 2*len(t.buf))
		copy(grown, t.buf)
		t.buf = grown
	}
	failpoint.At("tcpstore.torch.fill")
	n, err := t.conn.Read(t.buf[t.w:])
	t.w += n
	return readResult(n, err)
}

// readResult keeps an error for the next read when this one brought bytes.
func readResult(n int, err error) error {
	switch {
	case n > 0:
		return nil
	case err == nil:
		return io.ErrNoProgress
	}
	return err
}

// release gives a large buffer back after its reply was used; see own.
func (t *torchConn) release() {
	if t.r == t.w && len(t.buf) > keptBuffer {
		t.buf, t.r, t.w = nil, 0, 0
	}
}

// wait sends a WAIT and returns when it is answered. While it lasts, present is asked now and then: PyTorch's servers
// forget to wake waiters of a key that compare_set creates. After any end but a lost connection the connection is in
// step, or marked as unusable.
func (t *torchConn) wait(ctx context.Context, request []byte, present func(context.Context) (bool, error)) error {
	const firstLook, lastLook = 100 * time.Millisecond, 2 * time.Second
	if err := t.exchange(ctx, request, func() error { return nil }); err != nil {
		return err
	}
	for look := firstLook; ; look = min(2*look, lastLook) {
		turn, cancel := context.WithTimeout(ctx, look)
		err := t.waitTurn(turn)
		cancel()
		if !isTimeout(err) {
			return err
		}
		if e := cohort.FromContext(ctx, "tcpstore"); e != nil {
			t.cancelWait()
			return e
		}
		failpoint.At("tcpstore.torch.look")
		if there, err := present(ctx); err != nil || there {
			t.cancelWait()
			return err
		}
	}
}

// waitTurn reads until the answer to a WAIT or the end of ctx, which is a timeout.
func (t *torchConn) waitTurn(ctx context.Context) error {
	watch := ctxdial.InterruptBy(ctx, t.conn.SetDeadline)
	failpoint.At("tcpstore.torch.wait")
	r, err := t.reply(wire.Wait, 0)
	if watch.End() {
		_ = t.conn.SetDeadline(time.Time{})
	}
	switch {
	case isTimeout(err):
		return err
	case err != nil:
		t.unusable = true
		return t.failed(ctx, err)
	case r.Byte != wire.StopWaiting:
		t.unusable = true
		return cohort.Newf("tcpstore: decode", cohort.Protocol, "byte %d in answer to wait, want %d", r.Byte, wire.StopWaiting)
	}
	return nil
}

// cancelWait ends a WAIT that no call waits for any more. The legacy dialect cannot, and would send the answer
// later, in the middle of something else: there the connection must be replaced.
func (t *torchConn) cancelWait() {
	switch {
	case t.unusable:
	case t.dialect == wire.Legacy:
		t.unusable = true
	default:
		// One byte fits into any socket's buffer, or the server has been hanging for long.
		_ = t.conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		failpoint.At("tcpstore.torch.cancel")
		if _, err := t.conn.Write(wire.AppendPlain(nil, t.dialect, wire.CancelWait)); err != nil {
			t.unusable = true
			return
		}
		_ = t.conn.SetWriteDeadline(time.Time{})
		t.cancelled++
	}
}

// String names the connection in logs.
func (t *torchConn) String() string {
	return fmt.Sprintf("%s connection from %s", t.dialect, t.conn.LocalAddr())
}

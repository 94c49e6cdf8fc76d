// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Change is what happened to a key that is watched.
type Change struct {
	// Old and New are the values before and after; nil where there is none.
	Old, New []byte
}

// Watch calls changed for every change of key, one after another and in order, until ctx ends or the connection is lost,
// and returns why. ready, if not nil, is called when the watch has begun: no change after that is missed. Watch uses its
// own connection, and only ctx bounds it.
//
// It corresponds to TCPStore's watchKey of PyTorch 1.13, and works on cohort's server and on that one. Later PyTorch servers cannot watch;
// there the error is [cohort.NotSupported]. A server that has become another store is refused with [cohort.Replaced]. [Client.Clear] and
// [Server.Clear] end all watches with that error, those of the client that clears too: no change in the new store is reported before the
// watch is begun again.
func (c *Client) Watch(ctx context.Context, key string, ready func(), changed func(Change)) error {
	return c.watchKey(ctx, &request{op: wire.WatchKey, key: key, raw: c.config.raw}, ready, changed)
}

// WatchWorkers is [Client.Watch] for the number of workers that have joined, see [Client.JoinWorker]: it calls changed
// once when the watch has begun, and then whenever a worker joins.
func (c *Client) WatchWorkers(ctx context.Context, changed func()) error {
	return c.watchKey(ctx, &request{op: wire.WatchKey, key: wire.WorkerCountKey, raw: true}, changed, func(Change) { changed() })
}

func (c *Client) watchKey(ctx context.Context, q *request, ready func(), changed func(Change)) error {
	if err := q.check(&c.config.limits); err != nil {
		return err
	}
	if c.back.dialect() == wire.V {
		e := cohort.New(q.opName(), cohort.NotSupported, "PyTorch's servers since 2.0 cannot watch keys: wait for a key instead")
		e.Peer, e.Key = c.addr, q.key
		return e
	}
	if c.closed.Load() {
		return c.explain(q, cohort.Closed)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(cohort.Closed) })() // Close ends it
	var watched []byte                                                  // the identity of the store, as far as it is known
	err := c.watch(ctx, q, func() {
		if native, ok := c.back.(*nativeStore); ok {
			watched = native.known.get()
		}
		if ready != nil {
			ready()
		}
	}, changed)
	if native, ok := c.back.(*nativeStore); ok && errors.Is(err, cohort.PeerLost) {
		err = native.whyCut(ctx, watched, err)
	}
	if ended := cohort.FromContext(ctx, "tcpstore"); ended != nil {
		err = ended
	}
	return c.explain(q, err)
}

// errOther is the error of a watch of a store that is another one by now.
func errOther() *cohort.Error {
	return cohort.New("tcpstore", cohort.Replaced, "this is another store: the server was restarted or its keys were cleared")
}

// whyCut finds out why the connection of a watch was cut: a server that is cleared cuts its watches, and cannot say why. watched is the
// identity of the store that was watched. This client may know the new one already: it has cleared the store itself, or said hello.
func (n *nativeStore) whyCut(ctx context.Context, watched []byte, cut error) error {
	short, cancel := context.WithTimeout(ctx, minReplyTime)
	defer cancel()
	_, err := n.do(short, time.Time{}, &request{op: wire.Check, keys: []string{}})
	switch now := n.known.get(); {
	case errors.Is(err, cohort.Replaced):
		return err
	case watched != nil && now != nil && !bytes.Equal(watched, now):
		return errOther()
	}
	return cut
}

// watch is Watch on a connection that it opens.
func (c *Client) watch(ctx context.Context, q *request, ready func(), changed func(Change)) error {
	f, err := c.config.dialer(c.addr).Again(ctx, storedial.Conn{Dialect: wire.Legacy})
	if err != nil {
		return err
	}
	t := &torchConn{conn: f.Conn, dialect: wire.Legacy}
	defer func() { _ = t.conn.Close() }()
	if err = c.sameStore(ctx, t); err != nil {
		return err
	}
	err = t.exchange(ctx, q.append(nil, wire.Legacy), func() error {
		r, readErr := t.reply(wire.WatchKey, 0)
		if readErr == nil && r.Byte != wire.Watching {
			readErr = cohort.Newf("tcpstore: decode", cohort.Protocol, "byte %d in answer to watch_key, want %d", r.Byte, wire.Watching)
		}
		return readErr
	})
	if err == nil {
		ready()
	}
	for err == nil {
		var e wire.WatchEvent
		if e, err = t.event(ctx); err == nil {
			changed(Change{Old: e.Old, New: e.New})
		}
	}
	return err
}

// sameStore asks over the connection that a watch is to begin on whether the store at its end is the one that the client knows. Another
// connection of the client may still lead to a server that was replaced.
func (c *Client) sameStore(ctx context.Context, t *torchConn) error {
	native, ok := c.back.(*nativeStore)
	if !ok {
		return nil
	}
	if native.known.get() == nil { // nothing has been asked yet
		if _, err := native.do(ctx, c.limitOf(ctx, false), &request{op: wire.Check, keys: []string{}}); err != nil {
			return err
		}
	}
	var same, asked wire.Reply
	questions := wire.AppendKeys(nil, t.dialect, wire.Check, wire.IdentityPrefix+string(native.known.get()))
	questions = wire.AppendKeys(questions, t.dialect, wire.Check, wire.IdentityPrefix)
	err := t.exchange(ctx, questions, func() (err error) {
		if same, err = t.reply(wire.Check, 0); err == nil {
			asked, err = t.reply(wire.Check, 0)
		}
		return err
	})
	if err == nil && same.Byte != wire.Ready && asked.Byte == wire.Ready {
		err = errOther()
	}
	return err
}

// event reads the next callback of a watch.
func (t *torchConn) event(ctx context.Context) (wire.WatchEvent, error) {
	watch := ctxdial.InterruptBy(ctx, t.conn.SetDeadline)
	defer watch.End()
	failpoint.At("tcpstore.watch.event")
	for {
		e, n, short, err := wire.ParseWatchEvent(t.buf[t.r:t.w], &replyLimits)
		switch {
		case err != nil:
			return e, err
		case !short:
			t.r += n
			e.Old, e.New = append([]byte(nil), e.Old...), append([]byte(nil), e.New...) // nil where there is none
			return e, nil
		}
		if err := t.fill(); err != nil {
			return e, t.failed(ctx, err)
		}
	}
}

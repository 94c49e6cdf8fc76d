// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/ctxdial"
	"github.com/cohort-dist/cohort/internal/moment"
	wire "github.com/cohort-dist/cohort/internal/wire/tcpstore"
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
// It corresponds to TCPStore's watchKey of PyTorch 1.13, and works on cohort's server and on that one. Later PyTorch
// servers cannot watch; there the error is [dist.NotSupported]. A server that has become another store is refused with
// [dist.Replaced].
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
		e := dist.New(q.opName(), dist.NotSupported, "PyTorch's servers since 2.0 cannot watch keys: wait for a key instead")
		e.Peer, e.Key = c.addr, q.key
		return e
	}
	if c.closed.Load() {
		return c.explain(q, dist.Closed)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life, func() { cancel(dist.Closed) })() // Close ends it
	err := c.watch(ctx, q, ready, changed)
	if ended := dist.FromContext(ctx, "tcpstore"); ended != nil {
		err = ended
	}
	return c.explain(q, err)
}

// watch is Watch on a connection that it opens.
func (c *Client) watch(ctx context.Context, q *request, ready func(), changed func(Change)) error {
	d := &dialer{addr: c.addr, dial: c.config.dial, log: c.config.logger, hook: c.config.hook}
	f, err := d.again(ctx, found{dialect: wire.Legacy})
	if err != nil {
		return err
	}
	t := &torchConn{conn: f.conn, dialect: wire.Legacy}
	defer func() { _ = t.conn.Close() }()
	err = t.exchange(ctx, q.append(nil, wire.Legacy), func() error {
		r, readErr := t.reply(wire.WatchKey, 0)
		if readErr == nil && r.Byte != wire.Watching {
			readErr = dist.Newf("tcpstore: decode", dist.Protocol, "byte %d in answer to watch_key, want %d", r.Byte, wire.Watching)
		}
		return readErr
	})
	if err == nil {
		err = c.sameStore(ctx)
	}
	if err == nil && ready != nil {
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

// sameStore asks over the client's own connection whether the store is still the one that it knows. The dialect of a watch cannot ask:
// if the answer comes after the watch has begun, the watch is in that store, provided that both connections lead to one server. They do
// where the address is that of one server; of a name with several addresses, the one that the client has reached is dialled for the watch
// as long as it answers.
func (c *Client) sameStore(ctx context.Context) error {
	if c.back.dialect() != wire.Native {
		return nil
	}
	ask := func() error {
		_, err := c.back.do(ctx, limitOf(ctx, c.Timeout(), false), &request{op: wire.Check, keys: []string{}})
		return err
	}
	err := ask()
	if isLost(err) { // the connection was lost before: the next one tells
		err = ask()
	}
	return err
}

// event reads the next callback of a watch.
func (t *torchConn) event(ctx context.Context) (wire.WatchEvent, error) {
	watch := ctxdial.InterruptBy(ctx, t.conn.SetDeadline)
	defer watch.End()
	moment.At("tcpstore.watch.event")
	for {
		e, n, short, err := wire.ParseWatchEvent(t.buf[t.r:t.w], &replyLimits)
		switch {
		case err != nil:
			return e, err
		case !short:
			t.r += n
			return ownEvent(e), nil
		}
		if err := t.fill(); err != nil {
			return e, t.failed(ctx, err)
		}
	}
}

func ownEvent(e wire.WatchEvent) wire.WatchEvent {
	own := func(b []byte) []byte {
		if len(b) == 0 {
			return nil
		}
		return append([]byte{}, b...)
	}
	e.Old, e.New = own(e.Old), own(e.New)
	return e
}

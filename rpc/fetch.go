// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/rpclink"
	"github.com/cohort-dist/cohort/internal/rpcplace"
	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// flagExact marks a fetch among Go workers: its payload is the object's id with the epoch, which PyTorch's form lacks.
const flagExact = 1

// fetchArrived answers a fetch when the object has its value.
func (r *refs) fetchArrived(req *request) {
	form := fetchForm
	if req.Kind == rpcwire.ScriptRRefFetchCall {
		form = scriptFetchForm
	}
	var id rrefcore.ID
	var err error
	if req.Flags&flagExact != 0 && req.cohort() {
		var rest []byte
		rest, err = parseID(req.Payload, &id, 0, 0)
		if err == nil && len(rest) > 0 {
			err = badControl("%d bytes behind the id of a fetch", len(rest))
		}
	} else {
		var f rpcwire.Fetch
		f, err = rpcwire.DecodeFetch(req.Payload)
		id = r.id(f.RRef)
	}
	if err == nil && req.Peer.ID < 0 {
		err = dist.New("rpc: fetch", dist.NotSupported, "a guest holds no references")
	}
	if err != nil {
		req.refuse(err)
		return
	}
	r.mu.Lock()
	r.known(req.Peer.ID)
	r.known(id.On)
	var o *object
	code := rrefcore.Gone // for whoever holds no reference to it
	if r.m.MayUse(req.Peer.ID, id) {
		if code = r.m.FetchArrived(id); code == rrefcore.OK {
			o = r.object(id)
		}
	}
	e := r.take(false)
	r.mu.Unlock()
	r.perform(e)
	if o == nil {
		err := refFailure("fetch", id, r.a.name, code, nil)
		r.a.net.Background(func() { r.a.answerValue(req, form, nil, err) })
		return
	}
	answer := func() {
		v, err := o.peek()
		r.a.answerValue(req, form, v, err)
	}
	if req.Inline && o.isDone() {
		req.Conn.Inline.Do(answer)
		return
	}
	req.await(o, answer)
}

// maxFetches bounds the fetches on one connection that wait for their objects.
const maxFetches = 16 << 10

// await answers a fetch when its object has its value, unless the fetcher gives up before, or its connection ends.
func (r *request) await(o *object, answer func()) {
	c, a := r.Conn, r.a
	if c == nil {
		o.then(func() { a.net.Background(answer) })
		return
	}
	if c.Fetches.Add(1) > maxFetches {
		c.Fetches.Add(-1)
		r.refuse(dist.Newf("rpc: fetch", dist.Exhausted, "more than %d fetches wait for their objects", maxFetches))
		return
	}
	moment.At("rpc.fetch.wait")
	remove := o.then(func() {
		c.Fetches.Add(-1)
		a.net.Background(answer)
	})
	r.track(func(error) {
		if remove() {
			c.Fetches.Add(-1)
			c.Untrack(r.ID)
		}
	})
}

// settled makes sure that the owner knows of a received reference before it is asked for the value: it answers only those
// who hold one. On a link it is enough that the news goes first.
func (r *refs) settled(ctx context.Context, p *rpclink.Peer, core *refCore) error {
	h := core.h
	select {
	case <-h.ready:
		return nil
	default:
	}
	if h.wire.ID.On == r.a.id { // made here: the owner knows its creator
		return nil
	}
	if c := p.Current(); c != nil && c.Link != nil {
		r.flushOn(p, c)
		return nil
	}
	bounded, cancel := contextUntil(ctx, r.a.deadline(ctx))
	defer cancel()
	pl := rpcplace.Of(ctx)
	pl.Pause()
	defer pl.Resume()
	moment.At("rpc.refs.settled")
	select {
	case <-h.ready:
		return core.state()
	case <-bounded.Done():
		return dist.FromContext("rpc: fetch", bounded)
	case <-r.a.net.Context.Done():
		return rpclink.ErrClosed("fetch")
	}
}

// fetch copies the value of a reference's object to here.
func (r *refs) fetch(ctx context.Context, core *refCore) (any, error) {
	if core.closed.Load() {
		return nil, core.failure("fetch", rrefcore.Closed)
	}
	if core.obj != nil {
		return core.obj.get(ctx)
	}
	if err := core.state(); err != nil {
		return nil, err
	}
	p := r.a.net.PeerByID(core.h.wire.Owner)
	if p == nil {
		return nil, core.failure("fetch", rrefcore.OwnerLost)
	}
	o := &outgoing{a: r.a, op: "fetch", fn: "fetch " + core.h.wire.ID.String(), peer: p}
	o.repeat = func() bool { return !core.closed.Load() && core.state() == nil }
	o.build = func(toGo bool) (*rpcwire.Message, []rrefcore.Wire, uint8, error) {
		kind := rpcwire.PythonRRefFetchCall
		if core.script {
			kind = rpcwire.ScriptRRefFetchCall
		}
		if toGo {
			return &rpcwire.Message{Type: kind, Payload: appendID(nil, core.h.wire.ID, 0, 0)}, nil, flagExact, nil
		}
		payload, err := rpcwire.Fetch{RRef: global(core.h.wire.ID), From: rpcwire.WorkerID(core.h.wire.Owner)}.Encode()
		return &rpcwire.Message{Type: kind, Payload: payload}, nil, 0, err
	}
	if err := r.settled(ctx, p, core); err != nil {
		return nil, err
	}
	started := r.a.begin(o)
	x, err := r.a.exchange(ctx, o)
	r.a.end(o, started, err)
	if err != nil {
		if failed := core.state(); failed != nil {
			return nil, failed
		}
		return nil, err
	}
	d := r.decodingReply(p, x)
	dec := &d.Decoder
	var v any
	switch x.Msg.Type {
	case rpcwire.PythonRRefFetchRet:
		v, err = dec.PythonFetchRet(x.Msg.Payload)
	case rpcwire.ScriptRRefFetchRet:
		v, err = dec.ScriptFetchRet(x.Msg.Payload)
	default:
		err = unexpectedAnswer(o.fn, p, x.Msg)
	}
	if err != nil {
		r.abandonReply(d, x)
		return nil, err
	}
	if raised, ok := v.(*rpcwire.RemoteException); ok {
		return nil, restoreReason(remoteError(p.Name, raised))
	}
	return v, nil
}

// abandonReply releases the references of an answer that could not be read to its end.
func (r *refs) abandonReply(d *decoding, x rpclink.Reply) {
	d.release()
	if x.Frame != nil && d.peer != nil {
		if c := d.peer.Current(); c != nil {
			r.discard(c, x.Frame)
		}
	}
}

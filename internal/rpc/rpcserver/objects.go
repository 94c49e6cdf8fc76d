// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcslots"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// creationArrived returns the object, without its value, that a creating call makes, if it may run.
func (s *Server) creationArrived(r *request, j *job, cancel context.CancelCauseFunc) (*rpcref.Object, error) {
	if r.own != nil {
		r.own.Begin(cancel)
		return r.own, nil
	}
	if r.Peer.ID < 0 {
		return nil, cohort.New("rpc: remote", cohort.NotSupported, "a client holds no references")
	}
	var life rrefcore.Epoch
	if r.Frame != nil {
		life = rrefcore.Epoch(r.Frame.Incarnation)
	}
	return s.cfg.Refs.CallArrived(r.Peer, life, j.pair, s.cfg.Program.Shown(j.Func, j.Args), cancel)
}

// answerCreated confirms to a creator that its object is here.
func (s *Server) answerCreated(req *request, j *job) {
	if req.goPeer() { // its type says it all
		req.answer(&rpcwire.Message{Type: rpcwire.RemoteRet}, nil)
		if req.Conn != nil {
			s.cfg.Refs.SendWithNextFlush(req.Peer)
		}
		return
	}
	payload, err := j.pair.Encode()
	if err != nil {
		req.answer(req.failure(err), nil)
		return
	}
	req.answer(&rpcwire.Message{Type: rpcwire.RemoteRet, Payload: payload}, nil)
}

// createFailed makes the object of a creating call that is not run, and reports whether it did. No goroutine waits for
// the answer to the call before the object is fetched, or its reference passed on, and a fetch would wait for an object
// that is never made. It is called in the goroutine that reads.
func (s *Server) createFailed(r *request, failed error) bool {
	if !r.creates() || r.Conn == nil {
		return false
	}
	if r.goPeer() {
		r.decoder.Tensors = r.Tensors // the references of the frame are not claimed
	} else {
		r.decoder.Begin(s.cfg.Refs, r.Peer, nil, r.Tensors)
		defer r.decoder.Release()
	}
	j, err := s.decodeCall(r, &r.decoder)
	if err != nil {
		return false
	}
	o, err := s.creationArrived(r, j, func(error) {})
	if err != nil {
		return false
	}
	s.cfg.Refs.Created(o, nil, s.cfg.Program.Raised(failed), false)
	s.drop(r)
	r.Conn.Refusals.Add(r.Conn, func() { s.answerCreated(r, j) })
	return true
}

// countCreation counts the function of a creating call as active from before its answer. The creator counts the call itself
// until then, and a PyTorch creator gets the answer when the function has ended. So at no moment could the
// workers of a static world leave while it runs.
func (s *Server) countCreation(ctx context.Context) (counted bool) {
	return s.cfg.Static && s.cfg.Caller.Active.Enter(ctx) == nil
}

// runRemote runs the function of a creating call and stores its result.
func (s *Server) runRemote(r *request, o *rpcref.Object) {
	j, toGo, started := &r.job, r.goPeer(), r.began
	counted := toGo && r.uncount == nil && s.countCreation(&r.ctx)
	if toGo {
		s.answerCreated(r, j) // the object exists; its value comes later
		started = time.Now()  // to write that takes longer than a short function, and is not part of it
	}
	done := func(v any, err error) {
		if !r.ended.CompareAndSwap(false, true) {
			return
		}
		r.recordDuration(started)
		s.cfg.Refs.Created(o, v, s.cfg.Program.Raised(err), r.own != nil)
		if !toGo {
			s.answerCreated(r, j)
		}
		s.ended(r, err)
		r.ctx.Cancel(rpcslots.ErrDone)
		if r.uncount != nil {
			r.uncount()
		} else if counted {
			s.cfg.Caller.Active.Leave()
		}
	}
	err := j.err
	if err == nil {
		err = s.find(r)
	}
	if err != nil {
		r.decoder.Release()
		s.drop(r)
		done(nil, err)
		return
	}
	if !s.invoke(&r.ctx, j, done) {
		r.decoder.Release()
	}
	if !r.ended.Load() {
		r.slot.Pause()
	}
}

// serveFetch answers a fetch when the object has its value.
func (s *Server) serveFetch(req *request) {
	form := fetchForm
	if req.Kind == rpcwire.ScriptRRefFetchCall {
		form = scriptFetchForm
	}
	id, err := s.cfg.Refs.Fetched(req.Payload, req.Flags&rpcref.FlagExact != 0 && req.goPeer())
	if err == nil && req.Peer.ID < 0 {
		err = cohort.New("rpc: fetch", cohort.NotSupported, "a client holds no references")
	}
	if err != nil {
		req.refuse(err)
		return
	}
	o, err := s.cfg.Refs.FetchArrived(req.Peer.ID, id)
	if err != nil {
		s.cfg.Net.Background(func() { s.answerValue(req, form, nil, err) })
		return
	}
	if req.Inline && o.IsDone() {
		req.Conn.Inline.Do(func() { s.answerFetch(req, form, o) })
		return
	}
	req.await(o, func() { s.answerFetch(req, form, o) })
}

// answerFetch answers a fetch with the value of the object, which is there.
func (s *Server) answerFetch(req *request, form *answerForm, o *rpcref.Object) {
	v, err := o.Peek()
	s.answerValue(req, form, v, err)
}

// maxFetches bounds the fetches on one connection that wait for their objects.
const maxFetches = 16 << 10

// await answers a fetch when its object has its value, unless the fetcher gives up before, or its connection ends.
func (r *request) await(o *rpcref.Object, answer func()) {
	c, s := r.Conn, r.s
	if c == nil {
		o.Then(func() { s.cfg.Net.Background(answer) })
		return
	}
	if c.Fetches.Add(1) > maxFetches {
		c.Fetches.Add(-1)
		r.refuse(cohort.Newf("rpc: fetch", cohort.Exhausted, "more than %d fetches wait for their objects", maxFetches))
		return
	}
	failpoint.At("rpc.fetch.wait")
	remove := o.Then(func() {
		c.Fetches.Add(-1)
		s.cfg.Net.Background(answer)
	})
	r.track(func(error) {
		if remove() {
			c.Fetches.Add(-1)
			c.Untrack(r.ID)
		}
	})
}

// serveControl performs a control message of a PyTorch peer. It is acknowledged whatever its effect: they are repeated until they
// are.
func (s *Server) serveControl(req *request) {
	msg, err := s.cfg.Refs.TorchControl(req.Kind, req.Payload)
	if err == nil && req.Peer.ID < 0 {
		err = cohort.Newf("rpc: control message", cohort.Protocol, "%q is not a worker of this world", req.Peer.Name)
	}
	if err != nil {
		req.refuse(err)
		return
	}
	s.cfg.Refs.Controlled(req.Peer, msg)
	s.cfg.Net.Background(func() { req.answer(&rpcwire.Message{Type: rpcwire.RRefAck}, nil) })
}

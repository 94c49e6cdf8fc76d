// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import "github.com/cohort-dist/cohort/internal/rpc/rpcwire"

// answerForm is how a value is answered to a kind of request.
type answerForm struct {
	kind   rpcwire.Type
	encode func(*rpcwire.Encoder, any) ([]byte, error)
	script bool // an error is not a value there
}

var (
	callForm        = &answerForm{kind: rpcwire.PythonRet, encode: (*rpcwire.Encoder).PythonRet}
	fetchForm       = &answerForm{kind: rpcwire.PythonRRefFetchRet, encode: (*rpcwire.Encoder).PythonFetchRet}
	scriptCallForm  = &answerForm{kind: rpcwire.ScriptRet, encode: (*rpcwire.Encoder).ScriptRet, script: true}
	scriptFetchForm = &answerForm{kind: rpcwire.ScriptRRefFetchRet, encode: (*rpcwire.Encoder).ScriptFetchRet, script: true}
)

// form is how the result of a call is answered.
func (j *job) form() *answerForm {
	if j.script {
		return scriptCallForm
	}
	return callForm
}

// answerValue answers a request with a value, or with the error that stands for it, which a Python caller raises.
func (s *Server) answerValue(req *request, form *answerForm, v any, err error) {
	toGo := req.goPeer()
	if err != nil && !form.script {
		v, err = s.cfg.Program.Exception(err, toGo), nil
	}
	for first := true; err == nil; first = false {
		e, wires := s.cfg.Refs.Encoder(req.Peer, toGo)
		var payload []byte
		if payload, err = form.encode(e, v); err == nil {
			s.cfg.Refs.FlushNow(req.Peer, *wires)
			req.answer(e.Message(form.kind, payload), *wires)
			return
		}
		s.cfg.Refs.Undecoded(req.Peer, *wires) // nothing of it was sent
		if first && !form.script {             // the value has no Python form
			v, err = s.cfg.Program.Exception(err, toGo), nil
		}
	}
	req.answer(req.failure(err), nil)
}

// answerError answers a request that could not be understood.
func (s *Server) answerError(r *request, err error) {
	if r.Kind == rpcwire.PythonCall {
		s.answerValue(r, callForm, nil, err)
		return
	}
	r.answer(r.failure(err), nil)
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"strings"

	"github.com/cohort-dist/cohort/internal/rpc/rpcref"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

// job is a decoded call.
type job struct {
	Call
	script bool             // it came as TorchScript and is answered so
	pair   rpcwire.RRefPair // of a call whose result stays here
	err    error            // why it cannot run, although it was understood as a call
}

// scriptPrefix begins the qualified names of TorchScript functions.
const scriptPrefix = "__torch__."

// decodeCall reads the call inside a request. The references it brings are noted in d.
func (s *Server) decodeCall(r *request, d *rpcref.Decoding) (*job, error) {
	dec := &d.Decoder
	j := &r.job
	j.From, j.Conn = r.Peer, r.Conn
	var u rpcwire.UDF
	var x rpcwire.ScriptUDF
	var err error
	switch r.Kind { //nolint:exhaustive // the others are not calls
	case rpcwire.PythonCall:
		u, _, err = dec.PythonCall(r.Payload)
	case rpcwire.ScriptCall:
		x, err = dec.ScriptCall(r.Payload)
		j.script = true
	case rpcwire.PythonRemoteCall:
		var creating rpcwire.RemoteUDF
		creating, err = dec.PythonRemoteCall(r.Payload)
		u = creating.UDF
		j.creates(creating.RRefPair, err)
	case rpcwire.ScriptRemoteCall:
		var creating rpcwire.RemoteScriptUDF
		creating, err = dec.ScriptRemoteCall(r.Payload)
		x = creating.ScriptUDF
		j.script = true
		j.creates(creating.RRefPair, err)
	}
	if err != nil {
		if j.Remote { // the failure is stored under its ids
			j.err = err
			return j, nil
		}
		return j, err
	}
	if j.script {
		j.Func, j.Args, j.Schema = x.Name, x.Stack, x.Schema
		if x.Schema == "" {
			j.Func = strings.TrimPrefix(x.Name, scriptPrefix)
		}
		return j, nil
	}
	j.Func, j.Args, j.Kwargs = u.Func.String(), u.Args, u.Kwargs
	return j, nil
}

// creates notes the ids of the object that a call makes, if they could be read.
func (j *job) creates(pair rpcwire.RRefPair, err error) {
	if err == nil || pair != (rpcwire.RRefPair{}) {
		j.pair, j.Remote = pair, true
	}
}

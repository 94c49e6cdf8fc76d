// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// scriptRRef is a reference among TorchScript values.
var scriptRRef = py.Global{Module: "torch.distributed.rpc", Name: "rref"}

const (
	// maxWrappers bounds the wrappers around a message.
	maxWrappers = 8
	// maxForksDepth is deeper than what is taken as a value, and deeper than what Python can write.
	maxForksDepth = 1 << 14
)

// Forks returns the references that a message of a PyTorch worker brings, whatever else in it cannot be read. It finds none in what is no
// pickle, and none in a message of a Go worker, which names them outside of its payload.
func Forks(kind Type, payload []byte) []RRefFork { return forks(kind, payload, 0) }

// forks is Forks inside so many wrappers.
func forks(kind Type, payload []byte, wrappers int) []RRefFork {
	if isNative(payload) || wrappers > maxWrappers || len(payload) == 0 {
		return nil
	}
	switch kind { //nolint:exhaustive // the others bring none
	case ForwardAutogradReq, ForwardAutogradResp:
		if a, inner, err := UnwrapAutograd(payload); err == nil {
			return forks(a.Inner, inner, wrappers+1)
		}
	case RunWithProfilingReq, RunWithProfilingResp:
		if p, inner, err := UnwrapProfiling(payload); err == nil {
			return forks(p.Inner, inner, wrappers+1)
		}
	case PythonCall:
		return pythonForks(payload[1:])
	case PythonRet:
		return pythonForks(payload)
	case PythonRemoteCall, PythonRRefFetchRet: // the pickle is a string among TorchScript values
		items, _ := jitTuple(payload, -1)
		for _, item := range items {
			if data, ok := item.(string); ok {
				return pythonForks([]byte(data))
			}
		}
	case ScriptCall, ScriptRemoteCall, ScriptRet, ScriptRRefFetchRet:
		if v, err := jitDecode(payload); err == nil {
			return forksOf(v)
		}
	}
	return nil
}

func pythonForks(data []byte) []RRefFork {
	v, err := pickle.Decode(data, pickle.Limits{Depth: maxForksDepth, Cycles: true})
	if err != nil {
		return nil
	}
	return forksOf(v)
}

// forksOf returns the references inside a decoded pickle.
func forksOf(v any) (all []RRefFork) {
	pickle.Walk(v, func(v any) {
		o, ok := v.(*pickle.Object)
		if !ok {
			return
		}
		name, _ := callee(o.Class)
		parts := o.Args.Items
		if name == rrefReceiver && len(parts) == 1 { // the tuple of them
			if t, is := parts[0].(*pickle.Tuple); is {
				parts = t.Items
			}
		}
		if f, is := parseRRefFork(parts); is && (name == rrefReceiver || name == scriptRRef) {
			all = append(all, f)
		}
	})
	return all
}

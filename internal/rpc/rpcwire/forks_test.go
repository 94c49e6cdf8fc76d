// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"cmp"
	"slices"
	"testing"

	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// TestForks: the references of every kind of message are found, in wrappers and beside what cannot be read.
func TestForks(t *testing.T) {
	t.Parallel()
	ref := func(n int64) fork {
		return fork{RRefFork: RRefFork{
			Owner: 1, RRef: GlobalID{On: 1, Local: n}, Fork: GlobalID{On: 1, Local: n + 1}, Parent: 1,
			TypeName: TypePyObject,
		}}
	}
	one, two := ref(10), ref(20)
	e := func() *Encoder { return &Encoder{Fork: forkOf} }
	must := func(payload []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return payload
	}
	udf := UDF{Func: py.Func("m.f"), Args: []any{[]any{one}, 1}, Kwargs: &py.Dict{Pairs: []py.Pair{{Key: "k", Value: py.Tuple{two}}}}}
	pair := RRefPair{RRef: GlobalID{On: 1, Local: 5}, Fork: GlobalID{On: 1, Local: 6}}
	script := ScriptUDF{Name: "__torch__.f", Stack: []any{one, py.Tuple{two}}}
	call := must(e().PythonCall(udf, false))
	wrapped := must(Profiling{Inner: PythonCall, Config: []any{int64(1)}}.WrapRequest(call))
	itself := &pickle.List{Items: []any{pickle.Call(rrefReceiver, one.tuple()), pickle.Call(rrefReceiver, two.tuple())}}
	itself.Items = append(itself.Items, itself) // no value of Go
	cycle := must(pickle.AppendAtMost(nil, itself, pickle.DefaultProtocol, 1<<20))
	for name, c := range map[string]struct {
		kind    Type
		payload []byte
	}{
		"call":            {PythonCall, call},
		"answer":          {PythonRet, must(e().PythonRet([]any{one, two}))},
		"creation":        {PythonRemoteCall, must(e().PythonRemoteCall(RemoteUDF{UDF: udf, RRefPair: pair}))},
		"fetched":         {PythonRRefFetchRet, must(e().PythonFetchRet([]any{one, two}))},
		"script":          {ScriptCall, must(e().ScriptCall(script))},
		"script creation": {ScriptRemoteCall, must(e().ScriptRemoteCall(RemoteScriptUDF{ScriptUDF: script, RRefPair: pair}))},
		"script answer":   {ScriptRet, must(e().ScriptRet(py.Tuple{one, two}))},
		"script fetched":  {ScriptRRefFetchRet, must(e().ScriptFetchRet(py.Tuple{one, two}))},
		"profiled":        {RunWithProfilingReq, wrapped},
		"in a cycle":      {PythonRet, cycle},
	} {
		got := Forks(c.kind, c.payload)
		slices.SortFunc(got, func(a, b RRefFork) int { return cmp.Compare(a.Fork.Local, b.Fork.Local) })
		if len(got) != 2 || got[0].Fork != one.Fork || got[1].Fork != two.Fork {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, none := range [][]byte{nil, {0}, {0, 1, 2}, []byte("no pickle")} {
		for kind := range Type(256) {
			if got := Forks(kind, none); got != nil {
				t.Errorf("%v %q: %v", kind, none, got)
			}
		}
	}
}

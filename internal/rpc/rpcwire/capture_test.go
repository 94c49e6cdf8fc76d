// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//nolint:errcheck // a type assertion that fails fails the test
package rpcwire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// fork is a reference that the tests receive and send again.
type fork struct {
	pyconv.ReferenceMark
	RRefFork
}

func arrive(f RRefFork) (any, error) { return fork{RRefFork: f}, nil }

func forkOf(r pyconv.Reference) (RRefFork, error) { return r.(fork).RRefFork, nil }

func captured(tb testing.TB) []*tpcapture.Message {
	tb.Helper()
	frames, err := tpcapture.Load("../tensorpipe/testdata/rpc-session.txt")
	if err != nil {
		tb.Fatal(err)
	}
	return tpcapture.Messages(frames)
}

func toPipe(tb testing.TB, m *tpcapture.Message) *tensorpipe.Message {
	tb.Helper()
	raw := &tensorpipe.Message{Payloads: m.Payloads}
	for _, data := range m.Storages {
		s, err := tensor.NewStorage(len(data))
		if err != nil {
			tb.Fatal(err)
		}
		b, _ := s.Bytes()
		copy(b, data)
		raw.Storages = append(raw.Storages, s)
	}
	return raw
}

// again decodes the payload of a message and encodes it once more. exact says that the bytes must be PyTorch's own;
// Python pickles are written with fewer memo entries, so there the value must survive.
func again(m *Message) (payload []byte, tensors []any, exact bool, err error) {
	dec := &Decoder{Tensors: m.Tensors, Arrive: arrive}
	enc := &Encoder{Fork: forkOf}
	exact = true
	switch m.Type {
	case ScriptCall:
		var s ScriptUDF
		if s, err = dec.ScriptCall(m.Payload); err == nil {
			payload, err = enc.ScriptCall(s)
		}
	case ScriptRemoteCall:
		var s RemoteScriptUDF
		if s, err = dec.ScriptRemoteCall(m.Payload); err == nil {
			payload, err = enc.ScriptRemoteCall(s)
		}
	case ScriptRet:
		var v any
		if v, err = dec.ScriptRet(m.Payload); err == nil {
			payload, err = enc.ScriptRet(v)
		}
	case ScriptRRefFetchRet:
		var v any
		if v, err = dec.ScriptFetchRet(m.Payload); err == nil {
			payload, err = enc.ScriptFetchRet(v)
		}
	case PythonCall:
		exact = false
		var u UDF
		var async bool
		if u, async, err = dec.PythonCall(m.Payload); err == nil {
			payload, err = enc.PythonCall(u, async)
		}
	case PythonRemoteCall:
		exact = false
		var u RemoteUDF
		if u, err = dec.PythonRemoteCall(m.Payload); err == nil {
			payload, err = enc.PythonRemoteCall(u)
		}
	case PythonRet:
		exact = false
		var v any
		if v, err = dec.PythonRet(m.Payload); err == nil {
			payload, err = enc.PythonRet(v)
		}
	case PythonRRefFetchRet:
		exact = false
		var v any
		if v, err = dec.PythonFetchRet(m.Payload); err == nil {
			payload, err = enc.PythonFetchRet(v)
		}
	case RemoteRet, RRefUserDelete, RRefForkRequest:
		var p RRefPair
		if p, err = DecodeRRefPair(m.Payload); err == nil {
			payload, err = p.Encode()
		}
	case RRefChildAccept:
		var g GlobalID
		if g, err = DecodeForkID(m.Payload); err == nil {
			payload, err = EncodeForkID(g)
		}
	case ScriptRRefFetchCall, PythonRRefFetchCall:
		var f Fetch
		if f, err = DecodeFetch(m.Payload); err == nil {
			payload, err = f.Encode()
		}
	case ForwardAutogradReq, ForwardAutogradResp:
		var a Autograd
		var inner []byte
		if a, inner, err = UnwrapAutograd(m.Payload); err != nil {
			return nil, nil, false, err
		}
		inner, tensors, exact, err = again(&Message{Type: a.Inner, Payload: inner, Tensors: m.Tensors})
		if err == nil {
			payload, err = a.Wrap(inner)
		}
		return payload, tensors, exact, err
	case BackwardAutogradReq:
		var b Backward
		if b, err = dec.Backward(m.Payload); err == nil {
			payload, err = enc.Backward(b)
		}
	case CleanupAutogradReq:
		var id int64
		if id, err = DecodeCleanup(m.Payload); err == nil {
			payload, err = EncodeCleanup(id)
		}
	case RRefAck, BackwardAutogradResp, CleanupAutogradResp:
		if len(m.Payload) != 0 {
			err = fmt.Errorf("a payload of %d bytes", len(m.Payload))
		}
	case Exception:
		class, text := DecodeException(m.Payload)
		payload = EncodeException(class, text)
	default:
		err = fmt.Errorf("%v does not appear in the captures", m.Type)
	}
	return payload, enc.Tensors, exact, err
}

// TestCapturedMessages decodes every RPC message of real PyTorch sessions, encodes it again and compares the bytes.
func TestCapturedMessages(t *testing.T) {
	seen := map[Type]int{}
	for _, c := range captured(t) {
		raw := toPipe(t, c)
		m, err := Decode(raw)
		if err != nil {
			t.Fatalf("%s: %v", c.Block, err)
		}
		seen[m.Type]++
		payload, tensors, exact, err := again(m)
		if err != nil {
			t.Fatalf("%s: %v: %v", c.Block, m.Type, err)
		}
		if exact && !bytes.Equal(payload, m.Payload) {
			t.Errorf("%s: %v\n got %q\nwant %q", c.Block, m.Type, payload, m.Payload)
		}
		if !exact { // our bytes must decode to what PyTorch's did
			first := describe(t, m)
			second := describe(t, &Message{Type: m.Type, Payload: payload, Tensors: tensors})
			if diff := cmp.Diff(first, second); diff != "" {
				t.Errorf("%s: %v: %s", c.Block, m.Type, diff)
			}
		}
		out, err := (&Message{Type: m.Type, ID: m.ID, Payload: payload, Tensors: tensors}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err = tensorpipe.CheckOutgoing(out); err != nil {
			t.Error(err)
		}
		for i, k := range []int{0, 1, 3} { // type, id and tensor table are PyTorch's bytes in any case
			if !bytes.Equal(out.Payloads[k], c.Payloads[k]) {
				t.Errorf("%s: %v: payload %d (%d)\n got %q\nwant %q", c.Block, m.Type, k, i, out.Payloads[k], c.Payloads[k])
			}
		}
		// The same message over the cohort transport.
		frame, err := (&Message{Type: m.Type, ID: m.ID, Payload: payload, Tensors: tensors}).Frame()
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeFrame(arrived(frame))
		if err != nil || !bytes.Equal(back.Payload, payload) || len(back.Tensors) != len(tensors) {
			t.Fatalf("%s: frame: %v, %v", c.Block, back, err)
		}
	}
	for _, want := range []Type{
		ScriptCall, ScriptRet, PythonCall, PythonRet, ScriptRemoteCall, PythonRemoteCall, RemoteRet, ScriptRRefFetchCall,
		PythonRRefFetchCall, ScriptRRefFetchRet, PythonRRefFetchRet, RRefUserDelete, RRefChildAccept, RRefAck,
		ForwardAutogradReq, ForwardAutogradResp, BackwardAutogradReq, BackwardAutogradResp, CleanupAutogradReq,
		CleanupAutogradResp, Exception,
	} {
		if seen[want] < 2 {
			t.Errorf("%v appears %d times, want both versions", want, seen[want])
		}
	}
}

// describe turns the Python value of a message into text, tensors by shape and content.
func describe(t *testing.T, m *Message) string {
	t.Helper()
	dec := &Decoder{Tensors: m.Tensors, Arrive: arrive}
	var v any
	var err error
	switch m.Type {
	case PythonCall:
		v, _, err = dec.PythonCall(m.Payload)
	case PythonRet:
		v, err = dec.PythonRet(m.Payload)
	case PythonRemoteCall:
		v, err = dec.PythonRemoteCall(m.Payload)
	case PythonRRefFetchRet:
		v, err = dec.PythonFetchRet(m.Payload)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text(v)
}

func text(v any) string {
	switch v := v.(type) {
	case *tensor.Tensor:
		b, err := v.Storage().Bytes()
		return fmt.Sprintf("tensor %v %v %v %x %v", v.DType(), v.Shape(), v.Strides(), b, err)
	case *tensor.Sparse:
		return fmt.Sprintf("sparse %v %s %s", v.Shape, text(v.Indices), text(v.Values))
	case []any:
		return items("[", v)
	case py.Tuple:
		return items("(", v)
	case py.Set:
		return items("{", v)
	case py.FrozenSet:
		return items("frozen{", v)
	case *py.Dict:
		s := "dict{"
		var sSb249 strings.Builder
		for _, p := range pyconv.Pairs(v) {
			sSb249.WriteString(text(p.Key) + ": " + text(p.Value) + ", ")
		}
		s += sSb249.String()
		return s
	case UDF:
		return fmt.Sprint(v.Func, text(v.Args), text(v.Kwargs))
	case RemoteUDF:
		return fmt.Sprint(text(v.UDF), v.RRefPair, v.Async)
	case *RemoteException:
		return fmt.Sprintf("%+v", *v)
	case *py.Object:
		return fmt.Sprintf("object %v %v %s %s %s %s", text(v.Class), v.New, text(v.Args), text(v.KwArgs), text(v.States), text(v.Items))
	default:
		return fmt.Sprintf("%T(%#v)", v, v)
	}
}

func items(open string, v []any) string {
	var openSb267 strings.Builder
	for _, x := range v {
		openSb267.WriteString(text(x) + ", ")
	}
	open += openSb267.String()
	return open
}

// toFuzz is a message whose storages are zeros.
type toFuzz struct {
	kind, payload, table []byte
	storages             int
}

func (f *toFuzz) decode() (*Message, error) {
	raw := &tensorpipe.Message{Payloads: [][]byte{f.kind, make([]byte, 8), f.payload, f.table}}
	for range min(max(f.storages, 0), 4) {
		raw.Storages = append(raw.Storages, tensor.WrapStorage(make([]byte, 64), "fuzz", nil))
	}
	return Decode(raw)
}

// TestCompactAutograd: Go workers wrap messages in a form of their own, beside PyTorch's.
func TestCompactAutograd(t *testing.T) {
	want := Autograd{Inner: PythonCall, ContextID: 5<<48 | 7, MessageID: -3, From: 300, Compact: true}
	payload, err := want.Wrap([]byte("inner"))
	if err != nil {
		t.Fatal(err)
	}
	got, inner, err := UnwrapAutograd(payload)
	if err != nil || string(inner) != "inner" || !cmp.Equal(got, want) {
		t.Errorf("%+v around %q, %v, want %+v", got, inner, err, want)
	}
	want.Compact = false
	pickled, err := want.Wrap([]byte("inner"))
	if err != nil {
		t.Fatal(err)
	}
	if got, inner, err = UnwrapAutograd(pickled); err != nil || string(inner) != "inner" || !cmp.Equal(got, want) {
		t.Errorf("PyTorch's form: %+v around %q, %v, want %+v", got, inner, err, want)
	}
	for name, change := range map[string]func(b []byte){
		"an unknown type":           func(b []byte) { b[len("inner")+1] = 0xee },
		"a worker that is negative": func(b []byte) { b[len("inner")+19] = 0x80 },
		"another form":              func(b []byte) { b[len("inner")] = 'D' },
		"another length":            func(b []byte) { b[len(b)-1]-- },
		"a length beyond the end":   func(b []byte) { b[len(b)-2]++ },
	} {
		b := bytes.Clone(payload)
		change(b)
		if _, _, err := UnwrapAutograd(b); cohort.CodeOf(err) != cohort.Protocol {
			t.Errorf("%s: %v, want a protocol error", name, err)
		}
	}
}

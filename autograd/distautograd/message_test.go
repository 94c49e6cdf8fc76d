// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"reflect"
	"testing"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/tensor"
)

func sampleMessages() []message {
	one := tensor.Must(tensor.From([]float32{1, 2}, 2))
	two := &tensor.Sparse{Shape: []int{3}, Indices: tensor.Must(tensor.From([]int64{2, 0}, 1, 2)), Values: one}
	return []message{
		{
			Kind: backwardcore.Mark, Mode: backwardcore.Smart, Context: backwardcore.Context{Origin: 3, N: 77},
			Pass: backwardcore.PassID{Origin: 2, N: 9}, Call: backwardcore.Call{From: 1, N: 5},
		},
		{
			Kind: backwardcore.Grad, Mode: backwardcore.Fast, Context: backwardcore.Context{Origin: 3, N: 77},
			Pass: backwardcore.PassID{Origin: 2, N: 9}, Call: backwardcore.Call{From: 1, N: 5},
			Gradient: &gradient{ts: []autograd.Value{{}, {Dense: one}, {Sparse: two}, {}}, retain: true},
		},
		{
			Kind: backwardcore.Grad, Mode: backwardcore.Foreign, Context: backwardcore.Context{Origin: 0, N: 1},
			Pass: backwardcore.NoID, Gradient: &gradient{ts: []autograd.Value{}},
		},
		{
			Kind: backwardcore.Fail, Mode: backwardcore.Fast, Context: backwardcore.Context{Origin: 3, N: 77},
			Pass:  backwardcore.PassID{Origin: 2, N: 9},
			Cause: backwardcore.Cause{Worker: 4, Code: 9, Died: true, Function: "MulBackward", Text: "it died"},
		},
		{Kind: backwardcore.Seen, Context: backwardcore.Context{Origin: 3, N: 1<<48 - 1}},
	}
}

func TestMessagesAsSent(t *testing.T) {
	for _, m := range sampleMessages() {
		sent := encodeMessage(m)
		got, err := decodeMessage(sent)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v is read as %+v, %v", m, got, err)
		}
		for n := range sent.Payload {
			short := *sent
			short.Payload = sent.Payload[:n]
			if _, err := decodeMessage(&short); err == nil {
				t.Errorf("%d of %d bytes are read as a message", n, len(sent.Payload))
			}
		}
	}
}

func sampleAnswers() [][]carried {
	one := tensor.Must(tensor.From([]float32{1, 2}, 2))
	return [][]carried{
		nil,
		{{Call: backwardcore.Call{From: 2, N: 7}, Gradient: &gradient{ts: []autograd.Value{{Dense: one}}, retain: true}}},
		{
			{Call: backwardcore.Call{From: 2, N: 7}, Gradient: &gradient{ts: []autograd.Value{{}, {Dense: one}}}},
			{Call: backwardcore.Call{From: 3, N: 1<<48 - 1}, Gradient: &gradient{ts: []autograd.Value{}}},
		},
	}
}

func TestAnswersAsSent(t *testing.T) {
	for _, all := range sampleAnswers() {
		sent := encodeAnswer(nil, all)
		failed, got, err := decodeAnswer(backwardcore.Grad, sent)
		if err != nil || failed != nil || !reflect.DeepEqual(got, all) {
			t.Errorf("%+v is read as %+v, %v, %v", all, got, failed, err)
		}
		for n := range sent.Payload {
			short := *sent
			short.Payload = sent.Payload[:n]
			if _, _, err := decodeAnswer(backwardcore.Grad, &short); err == nil && n > 0 {
				t.Errorf("%d of %d bytes are read as an answer", n, len(sent.Payload))
			}
		}
	}
	cause := backwardcore.Cause{Worker: 4, Code: 9, Died: true, Function: "MulBackward", Text: "it died"}
	if failed, _, err := decodeAnswer(backwardcore.Mark, encodeAnswer(&cause, nil)); err != nil || failed == nil || *failed != cause {
		t.Errorf("%+v is read as %+v, %v", cause, failed, err)
	}
}

func TestCleanupsAsSent(t *testing.T) {
	all := []backwardcore.Context{{Origin: 0, N: 1}, {Origin: 3, N: 1<<48 - 1}}
	sent := encodeCleanups(all)
	if got, err := decodeCleanups(sent); err != nil || !isCleanups(sent) || !reflect.DeepEqual(got, all) {
		t.Errorf("%v are read as %v, %v", all, got, err)
	}
	for n := 2; n < len(sent.Payload); n++ {
		if _, err := decodeCleanups(&rpcwire.Message{Payload: sent.Payload[:n]}); err == nil {
			t.Errorf("%d of %d bytes are read as clean-ups", n, len(sent.Payload))
		}
	}
}

func TestContextIDs(t *testing.T) {
	for _, c := range []backwardcore.Context{{Origin: 0, N: 1}, {Origin: 1, N: 1<<48 - 1}, {Origin: 32767, N: 42}} {
		if got := idOf(c).context(); got != c {
			t.Errorf("%v is %v after the wire", c, got)
		}
	}
	if id := idOf(backwardcore.Context{Origin: 3, N: 5}); id != 3<<48|5 {
		t.Errorf("the id is %x", int64(id))
	}
}

// Whatever arrives, what is accepted is the same after it was written again.
func FuzzMessage(f *testing.F) {
	for _, m := range sampleMessages() {
		f.Add(encodeMessage(m).Payload, 1)
	}
	f.Fuzz(func(t *testing.T, payload []byte, tensors int) {
		in := &rpcwire.Message{Payload: payload}
		for range tensors & 3 {
			in.Tensors = append(in.Tensors, tensor.Must(tensor.From([]float32{1}, 1)))
		}
		m, err := decodeMessage(in)
		if err != nil {
			return
		}
		out := encodeMessage(m)
		again, err := decodeMessage(out)
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%x is read as %+v, and again as %+v, %v", payload, m, again, err)
		}
	})
}

// The same of answers.
func FuzzAnswer(f *testing.F) {
	for _, all := range sampleAnswers() {
		f.Add(encodeAnswer(nil, all).Payload, 1)
	}
	f.Fuzz(func(t *testing.T, payload []byte, tensors int) {
		in := &rpcwire.Message{Payload: payload}
		for range tensors & 3 {
			in.Tensors = append(in.Tensors, tensor.Must(tensor.From([]float32{1}, 1)))
		}
		failed, all, err := decodeAnswer(backwardcore.Grad, in)
		if err != nil {
			return
		}
		failedAgain, again, err := decodeAnswer(backwardcore.Grad, encodeAnswer(failed, all))
		if err != nil || !reflect.DeepEqual(again, all) || !reflect.DeepEqual(failedAgain, failed) {
			t.Errorf("%x is read as %+v, %+v, and again as %+v, %+v, %v", payload, failed, all, failedAgain, again, err)
		}
	})
}

// The same of clean-ups.
func FuzzCleanups(f *testing.F) {
	f.Add(encodeCleanups([]backwardcore.Context{{Origin: 1, N: 2}}).Payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		in := &rpcwire.Message{Payload: payload}
		if !isCleanups(in) {
			return
		}
		all, err := decodeCleanups(in)
		if err != nil {
			return
		}
		if out := encodeCleanups(all); !reflect.DeepEqual(out.Payload, payload) {
			t.Errorf("%x is written as %x", payload, out.Payload)
		}
	})
}

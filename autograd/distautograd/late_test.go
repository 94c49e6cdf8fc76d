// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"context"
	"errors"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcext"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/tensor"
)

// idleAgent is the agent of worker 0, which runs nothing.
type idleAgent struct{ rpcext.Agent }

func (idleAgent) Self() rpcext.Worker           { return rpcext.Worker{Name: "go0", Go: true} }
func (idleAgent) Go(func(context.Context)) bool { return true }

// TestLateRequest: a request of PyTorch that comes after its context was cleaned up here is served without it, but not if its answer
// requires gradients: they would be lost without an error.
func TestLateRequest(t *testing.T) {
	e := New()
	if err := e.attach(idleAgent{}); err != nil {
		t.Fatal(err)
	}
	id := backwardcore.Context{Origin: 1, N: 5}
	e.step(func(m *machine) {
		m.Meet(id, 1)
		m.Receive(message{Kind: backwardcore.Cleanup, From: 1, Context: id})
	})
	payload, err := rpcwire.Autograd{
		Inner: rpcwire.PythonCall, ContextID: int64(1<<idBits | id.N), MessageID: 1<<idBits | 9,
		From: 1,
	}.Wrap(nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := e.incoming(rpcext.Worker{Name: "py1", ID: 1}, &rpcwire.Message{Type: rpcwire.ForwardAutogradReq, Payload: payload})
	if err != nil || w.Context != nil {
		t.Fatalf("the request: %+v, %v", w, err)
	}
	weight := tensor.Must(tensor.From([]float64{1, 2}, 2))
	if err := w.Answer(&rpcwire.Message{Type: rpcwire.PythonRet, Tensors: []any{weight}}); err != nil {
		t.Errorf("an answer without gradients: %v", err)
	}
	weight.SetRequiresGrad(true)
	if err := w.Answer(&rpcwire.Message{Type: rpcwire.PythonRet, Tensors: []any{weight}}); !errors.Is(err, cohort.Closed) {
		t.Errorf("an answer that requires gradients: %v", err)
	}
}

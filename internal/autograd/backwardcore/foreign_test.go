// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package backwardcore

import "testing"

// TestLateGradientOfAFailedPass: in a pass with PyTorch workers, which has no id, one of two gradients comes, and then the pass
// fails. The other one comes late. It must not begin a pass: that would not end before its deadline.
func TestLateGradientOfAFailedPass(t *testing.T) {
	for name, fail := range map[string]func(m *Machine[int64], ctx Context){
		"a function fails": func(m *Machine[int64], ctx Context) { m.Failed(ctx, NoID, Cause{Text: "it fails"}) },
		"another worker says so": func(m *Machine[int64], ctx Context) {
			m.Receive(Message[int64]{Kind: Fail, From: 2, Context: ctx, Pass: NoID, Mode: Foreign, Cause: Cause{Text: "it fails"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(0, sum, Options{})
			ctx := m.Open()
			leaf, _ := m.Record(ctx)
			first, _ := m.RecordSend(ctx, 1, leaf)
			second, _ := m.RecordSend(ctx, 1, leaf)
			m.Meet(ctx, 2)
			grad := func(call Call) (failed *Cause) {
				m.Receive(Message[int64]{Kind: Grad, From: 1, Context: ctx, Pass: NoID, Mode: Foreign, Call: call, Gradient: 1})
				for _, e := range m.Take() {
					if e.Kind == Send && e.Msg.Kind == Fail && e.Msg.To == 1 {
						failed = &e.Msg.Cause
					}
				}
				return failed
			}
			if failed := grad(first); failed != nil || !m.Runs(ctx, NoID) {
				t.Fatalf("the pass does not begin: %+v", failed)
			}
			fail(m, ctx)
			m.Take()
			if failed := grad(second); failed == nil || failed.Text != "it fails" || m.Runs(ctx, NoID) {
				t.Errorf("the late gradient: refused because of %+v, and a pass runs: %v", failed, m.Runs(ctx, NoID))
			}
			// Now both have come: what comes again is of the next pass.
			if failed := grad(second); failed != nil || !m.Runs(ctx, NoID) {
				t.Errorf("the next pass: refused because of %+v", failed)
			}
		})
	}
}

// TestFailureComesBeforeTheGradient: a worker hears of the failure of a pass that has not reached it.
func TestFailureComesBeforeTheGradient(t *testing.T) {
	m := New(0, sum, Options{})
	ctx := m.Open()
	leaf, _ := m.Record(ctx)
	call, _ := m.RecordSend(ctx, 1, leaf)
	fail := Message[int64]{Kind: Fail, From: 1, Context: ctx, Pass: NoID, Mode: Foreign, Cause: Cause{Text: "it fails"}}
	grad := Message[int64]{Kind: Grad, From: 1, Context: ctx, Pass: NoID, Mode: Foreign, Call: call, Gradient: 1}
	m.Receive(fail)
	if m.Receive(grad); m.Runs(ctx, NoID) {
		t.Error("the late gradient begins a pass")
	}
	m.Receive(fail)
	if _, ok := m.Backward(ctx, map[Node]int64{leaf: 1}, Foreign); !ok {
		t.Fatal("the next pass does not begin")
	}
	if m.Receive(grad); len(m.Missing(ctx, NoID)) > 0 {
		t.Error("a pass that this worker has begun is refused its gradient")
	}
}

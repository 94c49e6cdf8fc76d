// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"context"
	"testing"
)

func TestProfileName(t *testing.T) {
	for fn, want := range map[string]string{
		"stats.mean": "stats.mean", "torch.ops.aten.add": "aten::add", "aten::add.Tensor(Tensor self, Tensor other) -> Tensor": "aten::add",
		"aten::relu(Tensor self) -> Tensor": "aten::relu", "__torch__.module.f": "__torch__.module.f", "": "",
	} {
		if got := ProfileName(fn); got != want {
			t.Errorf("%q is %q, want %q", fn, got, want)
		}
	}
}

// TestSpanLimit: a recorder keeps so many spans and counts the rest.
func TestSpanLimit(t *testing.T) {
	r := &ProfileRecorder{}
	many := make([]Span, maxSpans-1)
	r.Add(many...)
	r.Add(Span{Name: "last"}, Span{Name: "no room"})
	r.Add(Span{Name: "no room"})
	spans, dropped := r.Spans()
	if len(spans) != maxSpans || spans[maxSpans-1].Name != "last" || dropped != 2 {
		t.Errorf("%d spans, %d dropped", len(spans), dropped)
	}
	if ProfileFrom(context.Background()) != nil || ProfileFrom(WithProfile(context.Background(), r)) != r {
		t.Error("the recorder of a context")
	}
}

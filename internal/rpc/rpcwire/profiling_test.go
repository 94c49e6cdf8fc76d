// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/internal/python/pickle"
)

func TestProfilingWrappers(t *testing.T) {
	start := time.Unix(1_700_000_000, 123)
	answer := Profiling{
		Inner: PythonRet, ID: GlobalID{On: 2, Local: 9},
		Spans: []Span{
			{Name: "stats.mean", Worker: 1, Start: start, Took: time.Millisecond},
			{Name: "load rows", Worker: 3, Start: start, Took: 0},
		},
	}
	payload, err := answer.WrapResponse([]byte("inner"))
	if err != nil {
		t.Fatal(err)
	}
	got, inner, err := UnwrapProfiling(payload)
	if err != nil || string(inner) != "inner" {
		t.Fatalf("%q, %v", inner, err)
	}
	if diff := cmp.Diff(answer, got); diff != "" {
		t.Error(diff)
	}
	request := Profiling{Inner: PythonCall, ID: GlobalID{On: 1, Local: 7}, Config: ProfileCPU()}
	if payload, err = request.WrapRequest([]byte("call")); err != nil {
		t.Fatal(err)
	}
	if got, inner, err = UnwrapProfiling(payload); err != nil || string(inner) != "call" || !cmp.Equal(got, request) {
		t.Errorf("%+v, %q, %v", got, inner, err)
	}
}

// TestProfilingRefusals: an answer whose events are not events is refused.
func TestProfilingRefusals(t *testing.T) {
	for name, fill := range map[string]func(j *pickle.JIT){
		"a count without events": func(j *pickle.JIT) { j.Int(1) },
		"events without a count": func(j *pickle.JIT) { j.Int(0); j.Int(5) },
		"no count":               func(j *pickle.JIT) { j.String("2") },
		"an event that is none":  func(j *pickle.JIT) { j.Int(1); j.Int(5) },
		"an empty event":         func(j *pickle.JIT) { j.Int(1); j.EmptyList() },
	} {
		j := pickle.NewJIT(nil)
		j.Mark()
		j.Int(int64(PythonRet))
		GlobalID{}.push(j)
		fill(j)
		j.Tuple()
		payload, err := wrap([]byte("inner"), j)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = UnwrapProfiling(payload); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

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

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Profiling is what a RUN_WITH_PROFILING message adds to the message inside it.
type Profiling struct {
	Inner Type
	// Config is the profiler's configuration of a request; it is kept as it came.
	Config []any
	ID     GlobalID
	// Spans are the profiled events of an answer.
	Spans []Span
}

// ProfileCPU is the configuration of PyTorch's legacy profiler that takes times on the CPU: its state, whether shapes and
// whether memory are recorded.
func ProfileCPU() []any { return []any{int64(1), false, false} }

// The kinds of events, and how many parts each has.
const (
	eventPush  = 1
	eventPop   = 2
	eventParts = 12
)

// WrapRequest returns the payload of a RUN_WITH_PROFILING_REQ.
func (p Profiling) WrapRequest(inner []byte) ([]byte, error) {
	j := pickle.NewJIT(nil)
	j.Int(int64(p.Inner))
	var e Encoder
	if err := e.jitTyped(j, py.Typed{Type: "List[Any]", Value: p.Config}, 0); err != nil {
		return nil, err
	}
	p.ID.push(j)
	j.TupleOf(3)
	return wrap(inner, j)
}

// WrapResponse returns the payload of a RUN_WITH_PROFILING_RESP. PyTorch's event is one end of a span, and a handle says
// which two belong together.
func (p Profiling) WrapResponse(inner []byte) ([]byte, error) {
	j := pickle.NewJIT(nil)
	j.Mark()
	j.Int(int64(p.Inner))
	p.ID.push(j)
	j.Int(int64(2 * len(p.Spans)))
	var e Encoder
	for i, s := range p.Spans {
		push := eventOf(s, i+1, eventPush, s.Start)
		push[1] = s.Name
		for _, event := range [][]any{push, eventOf(s, i+1, eventPop, s.Start.Add(s.Took))} {
			if err := e.jitTyped(j, py.Typed{Type: "List[Any]", Value: event}, 0); err != nil {
				return nil, err
			}
		}
	}
	j.Tuple()
	return wrap(inner, j)
}

// eventOf is one end of a span: kind, name, thread, handle, node, memory, time, and of a GPU whether it was looked at, memory,
// device and time; then the shapes of the inputs.
func eventOf(s Span, handle int, kind int64, at time.Time) []any {
	return []any{
		kind, "", int64(1), float64(handle), int64(s.Worker), int64(0), at.UnixNano(), false, int64(0), int64(-1), int64(-1),
		py.Typed{Type: "List[List[int]]", Value: []any{}},
	}
}

// UnwrapProfiling splits the payload of a RUN_WITH_PROFILING message of either direction.
func UnwrapProfiling(payload []byte) (p Profiling, inner []byte, err error) {
	inner, items, err := unwrap(payload)
	if err != nil {
		return p, nil, err
	}
	if len(items) < 3 {
		return p, nil, badPayload("a profiling wrapper of %d parts", len(items))
	}
	var ok1, ok2 bool
	p.Inner, ok1 = innerType(items[0])
	if p.Inner.IsResponse() {
		if p.ID, ok2 = parseGlobalID(items[1]); ok2 {
			p.Spans, ok2 = parseSpans(items[2], items[3:])
		}
	} else {
		raw, _ := pickle.Untag(items[1])
		var list *pickle.List
		if list, ok2 = raw.(*pickle.List); ok2 {
			p.Config = list.Items
			p.ID, ok2 = parseGlobalID(items[2])
		}
	}
	if !ok1 || !ok2 {
		return p, nil, badPayload("a profiling wrapper whose parts have the wrong types")
	}
	return p, inner, nil
}

// parseSpans puts the two ends of each span together. Marks, allocations and spans without an end are left out.
func parseSpans(count any, events []any) ([]Span, bool) {
	if n, ok := count.(int64); !ok || n != int64(len(events)) {
		return nil, false
	}
	type end struct {
		handle float64
		node   int64
	}
	var spans []Span
	open := map[end]Span{}
	for _, event := range events {
		raw, _ := pickle.Untag(event)
		list, ok := raw.(*pickle.List)
		if !ok || len(list.Items) < eventParts {
			return nil, false
		}
		kind, ok1 := list.Items[0].(int64)
		name, ok2 := list.Items[1].(string)
		handle, ok3 := list.Items[3].(float64)
		node, ok4 := list.Items[4].(int64)
		ns, ok5 := list.Items[6].(int64)
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			return nil, false
		}
		at, key := time.Unix(0, ns), end{handle, node}
		switch kind {
		case eventPush:
			open[key] = Span{Name: name, Worker: cohort.Rank(node), Start: at}
		case eventPop:
			if s, ok := open[key]; ok {
				s.Took = at.Sub(s.Start)
				spans = append(spans, s)
				delete(open, key)
			}
		}
	}
	return spans, true
}

// Span is something that has ended.
type Span struct {
	Name   string
	Worker cohort.Rank // where it ran
	Start  time.Time
	Took   time.Duration
}

// maxSpans is how many spans a recorder keeps: a handler that never returns must not fill the memory.
const maxSpans = 1 << 16

// ProfileRecorder keeps spans in the order in which they ended. Its methods may be called at any time from anywhere.
type ProfileRecorder struct {
	mu struct {
		sync.Mutex
		spans   []Span
		dropped int
	}
}

type profileKey struct{}

// WithProfile returns a context whose calls are recorded.
func WithProfile(ctx context.Context, r *ProfileRecorder) context.Context {
	return context.WithValue(ctx, profileKey{}, r)
}

// ProfileFrom returns the recorder in a context, or nil.
func ProfileFrom(ctx context.Context) *ProfileRecorder {
	r, _ := ctx.Value(profileKey{}).(*ProfileRecorder)
	return r
}

// Add records spans.
func (r *ProfileRecorder) Add(spans ...Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := min(len(spans), maxSpans-len(r.mu.spans))
	r.mu.spans = append(r.mu.spans, spans[:room]...)
	r.mu.dropped += len(spans) - room
}

// Spans returns what has ended so far, and how many spans there was no room for.
func (r *ProfileRecorder) Spans() (spans []Span, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.mu.spans...), r.mu.dropped
}

// ProfileName is what PyTorch's profiler calls a function: an operator without its overload and its signature.
func ProfileName(fn string) string {
	if rest, ok := strings.CutPrefix(fn, "torch.ops."); ok {
		return strings.Replace(rest, ".", "::", 1)
	}
	if name, _, ok := strings.Cut(fn, "("); ok && strings.Contains(name, "::") {
		name, _, _ = strings.Cut(name, ".")
		return name
	}
	return fn
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
)

// A handler that takes one struct can be called with that struct, a pointer to it, a dict, its fields by position or by
// name; at another worker and at this one, to call and to create.
func TestStructArgument(t *testing.T) {
	type layer struct{ Width int }
	type config struct {
		Name   string
		Layers []layer
		Rate   float64
	}
	type options struct{ Extra map[string]int }
	reg := NewRegistry().
		MustHandle("s.value", func(_ context.Context, c config) (int, error) { return c.Layers[0].Width, nil }).
		MustHandle("s.pointer", func(_ context.Context, c *config) (int, error) { return c.Layers[0].Width, nil }).
		MustHandle("s.plain", func(c config) int { return c.Layers[0].Width }).
		MustHandle("s.map", func(o options) int { return o.Extra["width"] })
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		agents := world(t, 2, true, func(int) *Registry { return reg }, opts...)
		ctx := testContext(t)
		c := config{Name: "net", Layers: []layer{{8}}}
		for _, to := range []string{"w1", "w0"} {
			check := func(fn string, args ...any) {
				t.Helper()
				if n, err := Call[int](ctx, agents[0], to, fn, args...); err != nil || n != 8 {
					t.Errorf("%s%v: %v, %v", fn, args, n, err)
				}
				ref, err := Remote[int](ctx, agents[0], to, fn, args...)
				if err != nil {
					t.Fatal(err)
				}
				if n, err := ref.Fetch(ctx); err != nil || n != 8 {
					t.Errorf("object of %s%v: %v, %v", fn, args, n, err)
				}
				_ = ref.Close()
			}
			for _, fn := range []string{"s.value", "s.pointer", "s.plain"} {
				check(fn, c)
				check(fn, &c)
				check(fn, map[string]any{"layers": []layer{{8}}})
			}
			check("s.value", "net", []layer{{8}})
			check("s.value", Kw{"layers": []layer{{8}}})
			check("s.map", map[string]int{"width": 8}) // not the struct, but its first field
			check("s.map", options{map[string]int{"width": 8}})
		}
		shutdown(t, agents)
	})
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"runtime"
	"testing"
	"time"
)

// TestSharedValuesStayShared sends a value of which each level mentions the one below it twice to a handler that sends it
// back, over both transports: it is a few hundred bytes on the wire, and 2^60 leaves if anybody writes it out.
func TestSharedValuesStayShared(t *testing.T) {
	for name, opts := range map[string][]Option{"cohort": nil, "uv": {WithTransports(TransportUV)}} {
		t.Run(name, func(t *testing.T) {
			agents := world(t, 2, true, func(int) *Registry { return NewRegistry().MustHandle("expand.echo", func(v any) any { return v }) }, opts...)
			ctx := testContext(t)
			var v any = []any{"leaf"}
			for range 60 {
				v = []any{v, v}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			got, err := Call[any](ctx, agents[0], "w1", "expand.echo", v)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d bytes were allocated", used)
			}
			for range 60 {
				list, ok := got.([]any)
				if !ok || len(list) != 2 {
					t.Fatalf("a level is a %T", got)
				}
				got = list[1]
			}
		})
	}
}

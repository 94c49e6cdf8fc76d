// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// BenchmarkClient measures calls of one client on a server in the same process. bench/storeget measures the same with
// the server in a process of its own.
func BenchmarkClient(b *testing.B) {
	cancellable, cancel := context.WithCancel(b.Context())
	defer cancel()
	contexts := map[string]context.Context{"background": context.Background(), "cancellable": cancellable}
	for _, dialect := range dialects {
		for name, ctx := range contexts {
			b.Run("get/"+dialect.String()+"/"+name, func(b *testing.B) {
				c := connect(b, serve(b).Addr().String(), tcpstore.WithDialect(dialect))
				if err := c.Set(ctx, "a/short/key", make([]byte, 64)); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Get(ctx, "a/short/key"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	for _, goroutines := range []int{8, 64} {
		b.Run("get/native/goroutines"+strconv.Itoa(goroutines), func(b *testing.B) {
			c := connect(b, serve(b).Addr().String())
			if err := c.Set(b.Context(), "a/short/key", make([]byte, 64)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetParallelism(goroutines / 2)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := c.Get(context.Background(), "a/short/key"); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// TestGetAllocates what it must: the value, and little beside it.
func TestGetAllocates(t *testing.T) {
	c := connect(t, serve(t).Addr().String())
	ctx := context.Background()
	if err := c.Set(ctx, "a/short/key", make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(1000, func() {
		if _, err := c.Get(ctx, "a/short/key"); err != nil {
			t.Fatal(err)
		}
	})
	// The server is in the same process and counts too.
	if allocs > 4 {
		t.Errorf("a get allocates %v times", allocs)
	}
}

// BenchmarkClientWrites is what changes something, which has a number in the client's session.
func BenchmarkClientWrites(b *testing.B) {
	c := connect(b, serve(b).Addr().String())
	value := make([]byte, 64)
	b.Run("set", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Set(context.Background(), "a/short/key", value); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("add", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Add(context.Background(), "count", 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

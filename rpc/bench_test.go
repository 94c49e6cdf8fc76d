// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// benchPair starts two agents whose handlers echo.
func benchPair(b *testing.B, opts ...Option) *Agent {
	b.Helper()
	reg := NewRegistry().
		MustHandle("bench.echo", func(x *tensor.Tensor) *tensor.Tensor { return x }).
		MustHandle("bench.int", func(n int) int { return n })
	agents := world(b, 2, true, func(int) *Registry { return reg }, opts...)
	return agents[0]
}

func benchSync(b *testing.B, size int, opts ...Option) {
	b.Helper()
	a := benchPair(b, opts...)
	x := tensor.Must(tensor.New(tensor.Float32, size))
	b.SetBytes(int64(8 * size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Call[*tensor.Tensor](context.Background(), a, "w1", "bench.echo", x); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSyncSmall(b *testing.B)   { benchSync(b, 2) }
func BenchmarkSyncSmallUV(b *testing.B) { benchSync(b, 2, WithTransports(TransportUV)) }
func BenchmarkEcho1MiB(b *testing.B)    { benchSync(b, 1<<18) }
func BenchmarkEcho64MiB(b *testing.B)   { benchSync(b, 16<<20) }

func BenchmarkAsyncWindow64(b *testing.B) {
	a := benchPair(b)
	x := tensor.Must(tensor.New(tensor.Float32, 2))
	window := make(chan *cohort.Future[*tensor.Tensor], 64)
	b.ReportAllocs()
	for b.Loop() {
		if len(window) == cap(window) {
			if _, err := (<-window).Await(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		window <- Async[*tensor.Tensor](context.Background(), a, "w1", "bench.echo", x)
	}
	for len(window) > 0 {
		_, _ = (<-window).Await(context.Background())
	}
}

func BenchmarkReferenceChurn(b *testing.B) {
	a := benchPair(b)
	b.ReportAllocs()
	for b.Loop() {
		ref, err := Remote[int](context.Background(), a, "w1", "bench.int", 1)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ref.Fetch(context.Background()); err != nil {
			b.Fatal(err)
		}
		_ = ref.Close()
	}
}

func BenchmarkReferenceCreateDelete(b *testing.B) {
	a := benchPair(b)
	b.ReportAllocs()
	for b.Loop() {
		ref, err := Remote[int](context.Background(), a, "w1", "bench.int", 1)
		if err != nil {
			b.Fatal(err)
		}
		_ = ref.Close()
	}
}

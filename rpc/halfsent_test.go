// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// TestGivenUpHalfSent gives a call up while it is written to a worker that is spoken to as PyTorch's are. It is written to its end, so
// the worker gets the reference in it, and may use it.
func TestGivenUpHalfSent(t *testing.T) {
	ctx, port := testContext(t), testkit.FreePort(t)
	proxy, err := faultnet.ListenTCP("127.0.0.1:" + strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proxy.Close() }()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	got := make(chan *Ref[int], 1)
	reg := NewRegistry().MustHandle("t.take", func(_ *tensor.Tensor, r *Ref[int]) { got <- r })
	join := func(name string, rank cohort.Rank, opts ...Option) *Agent {
		t.Helper()
		a, failed := Join(ctx, st, name, append(opts, WithRank(rank), WithHandlers(reg), WithLogger(testLogger()), WithTransports(TransportUV))...)
		if failed != nil {
			t.Fatal(failed)
		}
		t.Cleanup(func() { _ = a.Close() })
		return a
	}
	a := join("w0", 0, WithAddr("127.0.0.1:0"))
	join("w1", 1, WithAddr("127.0.0.1:"+strconv.Itoa(port)), WithAdvertise(proxy.Addr()))
	big, err := tensor.New(tensor.Uint8, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := NewRef(a, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.call(ctx, "w1", handlerNames, nil); err != nil { // so that there is a pipe
		t.Fatal(err)
	}
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		proxy.SetUp(faultnet.Fault{BytesPerSecond: 1 << 20})
		limited, cancel := context.WithTimeout(ctx, wait)
		_, err := Call[any](limited, a, "w1", "t.take", big, mine)
		cancel()
		proxy.SetUp(faultnet.Fault{})
		if !errors.Is(err, cohort.DeadlineExceeded) {
			t.Fatalf("the call that takes too long: %v", err)
		}
		if !errors.Is(err, tensorpipe.ErrUnsent) {
			break
		}
	}
	_ = mine.Close()
	select {
	case r := <-got:
		if v, err := r.Fetch(ctx); err != nil || v != 7 {
			t.Errorf("the reference that came with a call that was given up: %v, %v", v, err)
		}
		_ = r.Close()
	case <-ctx.Done():
		t.Fatal("the call does not arrive")
	}
}

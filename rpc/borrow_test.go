// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/tensor"
)

// TestBorrowing: memory that is used again at once never shows in another call's result, over both transports, and a
// borrowed argument is unusable afterwards.
func TestBorrowing(t *testing.T) {
	for _, transport := range []string{TransportCohort, TransportUV} {
		t.Run(transport, func(t *testing.T) {
			var mu sync.Mutex
			var last *tensor.Tensor
			reg := NewRegistry().MustHandle("borrow.echo", func(x *tensor.Tensor) *tensor.Tensor {
				mu.Lock()
				last = x
				mu.Unlock()
				return x
			}, Borrowed())
			agents := world(t, 2, true, func(int) *Registry { return reg }, WithTransports(transport))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			var callers sync.WaitGroup
			for g := range 4 {
				callers.Go(func() {
					for i := range 25 {
						x := tensor.Must(tensor.New(tensor.Uint8, 100_000+1000*g))
						if err := x.Fill(int64(g*50 + i)); err != nil {
							t.Error(err)
							return
						}
						y, err := Call[*tensor.Tensor](ctx, agents[0], "w1", "borrow.echo", x)
						if err != nil {
							t.Error(err)
							return
						}
						want, _ := x.Bytes()
						if got, err := y.Bytes(); err != nil || !bytes.Equal(got, want) {
							t.Errorf("caller %d, call %d: another tensor came back (%v)", g, i, err)
							return
						}
						y.Storage().Release()
					}
				})
			}
			callers.Wait()
			limit := time.Now().Add(10 * time.Second)
			mu.Lock()
			kept := last
			mu.Unlock()
			for !kept.Storage().Released() {
				if time.Now().After(limit) {
					t.Fatal("a borrowed argument was not given back")
				}
				time.Sleep(time.Millisecond)
			}
			shutdown(t, agents)
		})
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"testing"
	"time"
)

// TestGivenUpCreationIsDeleted gives a creation up that runs at a worker of PyTorch's protocol, which cannot be told. When it
// answers after all, the object is deleted there.
func TestGivenUpCreationIsDeleted(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		begun, gate := make(chan struct{}), make(chan struct{})
		reg := NewRegistry().MustHandle("v.slow", func() int {
			close(begun)
			<-gate
			return 7
		})
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		ctx, cancel := context.WithCancel(testContext(t))
		ref, err := Remote[int](ctx, agents[0], "w1", "v.slow")
		if err != nil {
			t.Fatal(err)
		}
		<-begun
		cancel()
		// A Go worker confirms a creation while its function runs, and that may have come first.
		if err := ref.Confirmed(testContext(t)); err == nil && len(opts) > 0 {
			t.Error("a creation that was given up is confirmed")
		}
		_ = ref.Close()
		close(gate)
		settled := func() bool {
			user, owner := agents[0].DebugInfo(), agents[1].DebugInfo()
			return user["num_failed_users"] == 0 && user["num_pending_users"] == 0 && owner["num_owner_rrefs"] == 0 && owner["num_forks"] == 0
		}
		for deadline := time.Now().Add(30 * time.Second); !settled(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("user %v\nowner %v", agents[0].DebugInfo(), agents[1].DebugInfo())
			}
		}
		shutdown(t, agents)
	})
}

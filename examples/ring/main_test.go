// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

func TestRing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	const size = 4
	outs := make([]bytes.Buffer, size)
	var wg sync.WaitGroup
	for rank := range size {
		wg.Go(func() {
			if err := run(ctx, fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, rank, size), &outs[rank]); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	wg.Wait()
	if got, want := outs[0].String(), "worker1 was here\nworker2 was here\nworker3 was here\n"; got != want {
		t.Errorf("the diary is %q, want %q", got, want)
	}
}

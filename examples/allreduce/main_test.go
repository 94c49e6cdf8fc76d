// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

func TestMeansAgree(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const size = 3
	outputs := make([]bytes.Buffer, size)
	var ranks sync.WaitGroup
	for r := range size {
		ranks.Go(func() {
			if err := run(ctx, fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, r, size), &outputs[r]); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ranks.Wait()
	for r := range outputs {
		if !strings.Contains(outputs[r].String(), "mean [1 1 2 3]") {
			t.Errorf("rank %d printed %q", r, outputs[r].String())
		}
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
)

// TestRun trains on Go ranks alone; interop/examples has PyTorch ranks too.
func TestRun(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "job") + "?world_size=3&rank="
	var ranks sync.WaitGroup
	var outs [3]bytes.Buffer
	for rank := range outs {
		ranks.Go(func() {
			if err := run(t.Context(), fmt.Sprint(url, rank), 60, &outs[rank]); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	ranks.Wait()
	digests := map[string]bool{}
	for rank := range outs {
		var r int
		var first, last float64
		var digest string
		if _, err := fmt.Sscanf(outs[rank].String(), "rank %d loss %f -> %f parameters %s", &r, &first, &last,
			&digest); err != nil || r != rank {
			t.Fatalf("rank %d wrote %q: %v", rank, &outs[rank], err)
		}
		if last >= first/2 {
			t.Errorf("rank %d learned nothing: %s", rank, &outs[rank])
		}
		digests[digest] = true
	}
	if len(digests) != 1 {
		t.Errorf("the parameters differ: %v", digests)
	}
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestRun(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "job") + "?world_size=2&rank="
	var ranks sync.WaitGroup
	var outs [2]bytes.Buffer
	for rank := range outs {
		ranks.Go(func() {
			if err := run(t.Context(), fmt.Sprint(url, rank), &outs[rank]); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	ranks.Wait()
	for rank := range outs {
		if out := outs[rank].String(); strings.Count(out, "read: hello from rank") != 2 {
			t.Errorf("rank %d wrote\n%s", rank, out)
		}
	}
	if err := run(t.Context(), "tcp://nowhere", &outs[0]); err == nil || !strings.Contains(err.Error(), "port number missing") {
		t.Errorf("a bad url: %v", err)
	}
}

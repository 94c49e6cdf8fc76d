// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"encoding/json"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestFSDP2StoppedRank: PyTorch ranks train with FSDP2 over a store that a Go process hosts. Each rank is stopped for a
// while, one after the other, and all have the results that they have without that.
func TestFSDP2StoppedRank(t *testing.T) {
	const steps = 60
	shape := fsdpShape{size: 3, ins: 4, outsA: 5, outsB: 2, batch: 3}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if !tr.About(t).Since(2, 9) {
			tr.NotApplicable(t, "has no FSDP2 for processors")
		}
		t.Parallel()
		train := func(stop bool) [][]string {
			server, err := tcpstore.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			w := world{size: shape.size, shared: slices.Concat(torchtest.Optimizers, []string{"torch.distributed.fsdp"})}
			procs, logs := w.startTorch(t, tr, server.Port(), fsdpSource, append(shape.args(steps), "hosted")...),
				make([][]string, shape.size)
			for r := range shape.size {
				procs[r].Expect(t, "begun")
				if stop {
					procs[r].Signal(syscall.SIGSTOP)
					time.Sleep(300 * time.Millisecond) // the others wait for it
					procs[r].Signal(syscall.SIGCONT)
				}
			}
			for r, p := range procs {
				if line := p.Line(t); json.Unmarshal([]byte(line), &logs[r]) != nil {
					t.Fatalf("rank %d printed %q", r, line)
				}
				p.MustExit(t, time.Minute)
			}
			return logs
		}
		want, got := train(false), train(true)
		for r := range want {
			if len(want[r]) != 3*steps || !slices.Equal(got[r], want[r]) {
				t.Errorf("rank %d: %d digests, which are others than the %d of a world that runs through", r, len(got[r]), len(want[r]))
			}
		}
	})
}

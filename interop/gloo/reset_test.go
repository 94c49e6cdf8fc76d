// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestResetAtBytes resets the connection of a Go rank and a PyTorch rank after some bytes, while they connect or within
// a collective. Both end with an error, or both have the result.
func TestResetAtBytes(t *testing.T) {
	plan := []step{{Op: "all_reduce", DType: "float32", N: 20_000}, {Op: "barrier"}}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, n := range []int{1, 8, 9, 33, 64, 100, 5000, 40_000, 81_000} {
			for _, down := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d-down-%v", n, down), func(t *testing.T) {
					t.Parallel()
					port := strconv.Itoa(testkit.FreePort(t))
					p := tr.Start(t, torchtest.Script{Name: "rank0.py", Source: worker, Args: []string{"0", "2", port, string(text), "20"}})
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // PyTorch may take a minute to start
					defer cancel()
					var proxy *faultnet.Proxy
					hash := ""
					m, err := join(ctx, tr, "127.0.0.1:"+port, 1, 2, 2*time.Minute, func(c *gloo.Config) {
						c.Devices = []string{"127.0.0.2"}
						through := throughProxy{KV: c.Store, t: t, size: 2, suffix: "/0/0", proxy: &proxy}
						if down {
							through.down.CutAfter = n
						} else {
							through.up.CutAfter = n
						}
						c.Store = through
					})
					for i := 0; err == nil && i < len(plan); i++ {
						var got string
						if got, err = m.run(ctx, i, plan[i]); i == 0 && err == nil {
							hash = got
						}
					}
					if err != nil && ctx.Err() != nil {
						t.Errorf("the Go rank hangs: %v", err)
					}
					if m != nil {
						m.close()
					}
					if proxy == nil {
						t.Fatal("the proxy is not in the way")
					}
					if err == nil {
						p.Expect(t, "done")
						p.Send(t, "exit")
					}
					if _, failed := p.Wait(ctx); failed != nil {
						t.Fatalf("the PyTorch rank does not end: %v", failed)
					}
					_, line, found := strings.Cut(p.Stdout(), "step 0 ")
					line, _, _ = strings.Cut(line, "\n")
					if found && hash != "" && !strings.HasPrefix(line, "error") && line != hash {
						t.Errorf("PyTorch has %s, Go %s", line, hash)
					}
					t.Logf("Go: %v; PyTorch: %.100s", err, line)
				})
			}
		}
	})
}

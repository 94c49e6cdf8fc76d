// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package examples_test runs the examples that need PyTorch as a user would: as processes.
package examples_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// result is the line that every rank of examples/ddp prints.
type result struct {
	rank        int
	first, last float64
	digest      string
}

func parse(t *testing.T, text string) result {
	t.Helper()
	var r result
	if _, err := fmt.Sscanf(text, "rank %d loss %f -> %f parameters %s", &r.rank, &r.first, &r.last, &r.digest); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return r
}

// TestDDP trains with a Go rank in every position of a DistributedDataParallel job, rank 0 with the store included, and with
// two of them. The parameters of all ranks agree in the end, bit by bit.
func TestDDP(t *testing.T) {
	if os.Getenv("COHORT_INTEROP") == "" {
		t.Skip("interop: left out (COHORT_INTEROP is not set; 'make interop' runs it)")
	}
	program := testkit.BuildProgram(t, "examples/ddp")
	script, err := os.ReadFile(filepath.Join("..", "..", "examples", "ddp", "train.py"))
	if err != nil {
		t.Fatal(err)
	}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, goRanks := range []string{"2", "1", "0", "1,2"} {
			t.Run("go="+goRanks, func(t *testing.T) { trainTogether(t, tr, program, string(script), goRanks, nil) })
		}
		t.Run("go=2,checked", func(t *testing.T) {
			if tr.About(t).Since(2, 14) {
				tr.NotApplicable(t, "crashes with DDP and DETAIL, also without a Go rank")
			}
			// The variable is read when torch is imported, which may have been before.
			checked := "import torch.distributed\ntorch.distributed.set_debug_level_from_env()\n" + string(script)
			trainTogether(t, tr, program, checked, "2", map[string]string{"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
		})
	})
}

func trainTogether(t *testing.T, tr *torchtest.Torch, program, script, goRanks string, more map[string]string) {
	t.Helper()
	const size, steps = 3, "60"
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	port := strconv.Itoa(testkit.FreePort(t))
	var procs []*torchtest.Proc
	var programs []*exec.Cmd
	var outs []*bytes.Buffer
	for r := range size {
		env := map[string]string{
			"RANK": strconv.Itoa(r), "WORLD_SIZE": strconv.Itoa(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
			"GLOO_SOCKET_IFNAME": "lo",
		}
		maps.Copy(env, more)
		if !strings.Contains(goRanks, strconv.Itoa(r)) {
			procs = append(procs, tr.Start(t, torchtest.Script{
				Name: "train.py", Source: script, Shared: torchtest.Optimizers,
				Args: []string{steps}, Env: env,
			}))
			continue
		}
		cmd := exec.CommandContext(ctx, program, steps)
		cmd.Env = os.Environ()
		for key, value := range env {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		programs, outs = append(programs, cmd), append(outs, out)
	}
	var results []result
	for i, cmd := range programs {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("the Go rank: %v\n%s", err, outs[i])
		}
		results = append(results, parse(t, outs[i].String()))
	}
	for _, p := range procs {
		p.MustExit(t, 60*time.Second)
		results = append(results, parse(t, p.Stdout()))
	}
	for _, r := range results {
		if r.last >= r.first/2 {
			t.Errorf("rank %d learned nothing: %+v", r.rank, r)
		}
		if r.digest != results[0].digest {
			t.Errorf("the parameters of rank %d and rank %d differ: %+v", r.rank, results[0].rank, results)
		}
	}
	t.Logf("%+v", results)
}

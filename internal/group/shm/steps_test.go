// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// stepsOf runs a collective and returns its steps, which are the same on every rank. bytes is the tensor of a broadcast, reduce or
// all-reduce, else a rank's block.
func stepsOf(t *testing.T, engines []*Engine, kind collective.Kind, bytes int, tag uint32) uint32 {
	t.Helper()
	n := len(engines)
	steps := make([]uint32, n)
	errs := each(engines, func(e *Engine) error {
		q := &collective.Request{Kind: kind, Tag: tag, DType: tensor.Float32, Op: reduce.Sum, Timeout: 20 * time.Second}
		switch kind {
		case collective.Broadcast, collective.Reduce, collective.AllReduce:
			q.Out = make([]byte, bytes)
		case collective.AllGather:
			q.In, q.Out = make([]byte, bytes), make([]byte, bytes*n)
		case collective.Gather:
			q.In = make([]byte, bytes)
			if e.rank == 0 {
				q.Out = make([]byte, bytes*n)
			}
		case collective.Scatter:
			q.Out = make([]byte, bytes)
			if e.rank == 0 {
				q.In = make([]byte, bytes*n)
			}
		case collective.ReduceScatter:
			q.In, q.Out = make([]byte, bytes*n), make([]byte, bytes)
		case collective.AllToAll:
			q.In, q.Out = make([]byte, bytes*n), make([]byte, bytes*n)
		default:
		}
		before := e.steps.last
		err := e.Run(t.Context(), q)
		steps[e.rank] = e.steps.last - before
		return err
	})
	for rank, err := range errs {
		if err != nil || steps[rank] != steps[0] {
			t.Fatalf("%v of %d bytes, rank %d: %d steps, rank 0 %d: %v", kind, bytes, rank, steps[rank], steps[0], err)
		}
	}
	return steps[0]
}

// The table in docs/internals/collectives.md is what the code does, and what is small takes one step with any number of ranks.
func TestStepsTable(t *testing.T) {
	kinds := []struct {
		name string
		kind collective.Kind
	}{
		{"barrier", collective.Barrier},
		{"broadcast", collective.Broadcast},
		{"reduce", collective.Reduce},
		{"gather", collective.Gather},
		{"scatter", collective.Scatter},
		{"all-gather", collective.AllGather},
		{"reduce-scatter", collective.ReduceScatter},
		{"all-to-all", collective.AllToAll},
		{"all-reduce", collective.AllReduce},
	}
	counts := []int{2, 4, 8, 16}
	rows := make([]strings.Builder, len(kinds))
	for i := range kinds {
		fmt.Fprintf(&rows[i], "| %s |", kinds[i].name)
	}
	for _, n := range append(counts, 32) {
		engines := world(t, n, func(c *Config) { c.Arena = pageSize }) // 32 mappings in one process
		tag := uint32(0)
		for i, k := range kinds {
			sizes := []int{4, 64 << 10, 1 << 20}
			if n > 16 {
				sizes = sizes[:1]
			}
			for _, bytes := range sizes {
				steps := stepsOf(t, engines, k.kind, bytes, tag)
				tag++
				if bytes == 4 && steps != 1 {
					t.Errorf("%s of 4 B with %d ranks takes %d steps", k.name, n, steps)
				}
				if n <= 16 {
					fmt.Fprintf(&rows[i], " %d |", steps)
				}
			}
		}
	}
	var b strings.Builder
	for i := range rows {
		b.WriteString(rows[i].String() + "\n")
	}
	page, err := os.ReadFile("../../../docs/internals/collectives.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), b.String()) {
		t.Errorf(
			"docs/internals/collectives.md does not have the table of steps in shared memory (2, 4, 8 and 16 ranks; 4 B, 64 KiB and "+
				"1 MiB each):\n%s", b.String())
	}
}

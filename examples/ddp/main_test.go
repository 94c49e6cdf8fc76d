// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/torchtest"
)

//go:embed train.py
var train string

type result struct {
	Rank   int
	Loss   float64
	Weight [][]float64
	Bias   []float64
}

func (r result) parameters() []float64 {
	var all []float64
	for _, row := range r.Weight {
		all = append(all, row...)
	}
	return append(all, r.Bias...)
}

// TestTrainsAlong puts the Go rank into a real DistributedDataParallel job, in every position.
func TestTrainsAlong(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for goRank := range 3 {
			t.Run(fmt.Sprintf("rank=%d", goRank), func(t *testing.T) { trainWith(t, tr, goRank) })
		}
	})
}

func trainWith(t *testing.T, tr *torchtest.Torch, goRank int) {
	const size, steps = 3, 20
	if goRank == 0 {
		t.Skip("rank 0 of DistributedDataParallel tells the others its parameters: this example takes them")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	var procs []*torchtest.Proc
	for r := range size {
		if r != goRank {
			procs = append(procs, tr.Start(t, torchtest.Script{
				Name: "train.py", Source: train, Args: []string{strconv.Itoa(r), strconv.Itoa(size), strconv.Itoa(port), strconv.Itoa(steps)},
			}))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, fmt.Sprintf("tcp://127.0.0.1:%d?rank=%d&world_size=%d", port, goRank, size), steps, &out); err != nil {
		t.Fatal(err)
	}
	lines := []string{out.String()}
	for _, p := range procs {
		lines = append(lines, p.Line(t))
		p.MustExit(t, time.Minute)
	}
	var first result
	for i, line := range lines {
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if i == 0 {
			first = r
			if r.Loss > 2 {
				t.Errorf("it learned nothing: loss %v", r.Loss)
			}
			continue
		}
		for j, p := range r.parameters() {
			if math.Abs(p-first.parameters()[j]) > 1e-5 {
				t.Errorf("parameter %d: %v on rank %d, %v on rank %d", j, first.parameters()[j], first.Rank, p, r.Rank)
			}
		}
	}
}

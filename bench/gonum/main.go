// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command gonum measures gonum's float32 product of two 1024x1024 matrices on one thread and on two, as `cohort bench train`
// measures ours. It prints one JSON object per value, as all programs of the benchmark do.
//
//	gonum [-dur 2s]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

func main() {
	dur := flag.Duration("dur", 2*time.Second, "time per case")
	flag.Parse()
	out := json.NewEncoder(os.Stdout)
	for _, threads := range []int{1, 2} {
		row := map[string]any{
			"group": "autograd", "case": fmt.Sprintf("matmul1024.t%d", threads), "peer": "gonum",
			"value": rate(threads, *dur), "unit": "GFLOP/s",
		}
		if err := out.Encode(row); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// rate is the median speed of a product.
func rate(threads int, dur time.Duration) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	const n = 1024
	x, y, z := make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)
	for i := range x {
		x[i], y[i] = float32(i%13)/13, float32(i%7)/7
	}
	product := func() time.Duration {
		begin := time.Now()
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, x, n, y, n, 0, z, n)
		return time.Since(begin)
	}
	product()
	var took []time.Duration
	for start := time.Now(); len(took) < 3 || time.Since(start) < dur; {
		took = append(took, product())
	}
	slices.Sort(took)
	return 2 * n * n * n / took[len(took)/2].Seconds() / 1e9
}

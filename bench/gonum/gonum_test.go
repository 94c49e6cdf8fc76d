// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/rand/v2"
	"testing"

	gonumblas "gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
)

// TestAgainstGonum compares real numbers with another implementation, within the error bound of a sum of k products.
func TestAgainstGonum(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for _, s := range [][3]int{{1, 1, 1}, {5, 7, 300}, {64, 256, 784}, {130, 50, 129}} {
		m, n, k := s[0], s[1], s[2]
		a, b := make([]float32, m*k), make([]float32, k*n)
		for i := range a {
			a[i] = float32(r.NormFloat64())
		}
		for i := range b {
			b[i] = float32(r.NormFloat64())
		}
		got, want := make([]float32, m*n), make([]float32, m*n)
		blas.Mul(blas.Dense(got, m, n), blas.Dense(a, m, k), blas.Dense(b, k, n), false)
		gonum.Implementation{}.Sgemm(gonumblas.NoTrans, gonumblas.NoTrans, m, n, k, 1, a, k, b, n, 0, want, n)
		for i := range got {
			if math.Abs(float64(got[i]-want[i])) > 1e-5*math.Sqrt(float64(k))*4 {
				t.Fatalf("%v element %d: %v, gonum %v", s, i, got[i], want[i])
			}
		}
	}
}

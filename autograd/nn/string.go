// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"github.com/cohort-dist/cohort/autograd"
)

// String returns the layer as PyTorch prints it.
func (l *Linear) String() string {
	return fmt.Sprintf("Linear(in_features=%d, out_features=%d, bias=%s)", size(l.Weight, 1), size(l.Weight, 0), python(l.Bias != nil))
}

// String returns the table as PyTorch prints it.
func (e *Embedding) String() string {
	sparse := ""
	if e.Sparse {
		sparse = ", sparse=True"
	}
	return fmt.Sprintf("Embedding(%d, %d%s)", size(e.Weight, 0), size(e.Weight, 1), sparse)
}

// String returns the shape that is normalised, and Eps.
func (l *LayerNorm) String() string {
	var shape []int
	if l.Weight != nil {
		shape = l.Weight.Shape()
	}
	return fmt.Sprintf("LayerNorm(%v, eps=%v)", shape, l.Eps)
}

// String returns the number of features, Eps and Momentum.
func (l *BatchNorm) String() string {
	return fmt.Sprintf("BatchNorm(%d, eps=%v, momentum=%v)", size(l.Weight, 0), l.Eps, l.Momentum)
}

// String returns the width, Heads and Causal.
func (a *Attention) String() string {
	return fmt.Sprintf("Attention(%d, heads=%d, causal=%s)", size(a.InWeight, 1), a.Heads, python(a.Causal))
}

// String returns the name of the function, as PyTorch prints an activation.
func (f Func) String() string {
	name := "Func"
	if fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer()); fn != nil {
		name = fn.Name()[strings.LastIndexByte(fn.Name(), '.')+1:]
	}
	return name + "()"
}

// String returns the modules, one to a line, as PyTorch prints them.
func (s Sequential) String() string {
	var b strings.Builder
	b.WriteString("Sequential(")
	for i, m := range s {
		fmt.Fprintf(&b, "\n  (%d): %s", i, strings.ReplaceAll(fmt.Sprint(m), "\n", "\n  "))
	}
	if len(s) > 0 {
		b.WriteByte('\n')
	}
	b.WriteByte(')')
	return b.String()
}

// size returns the size of a dimension, or 0 for a parameter that is not set.
func size(v *autograd.Variable, dim int) int {
	if v == nil || v.Dims() <= dim {
		return 0
	}
	return v.Shape()[dim]
}

// python writes a bool as Python does.
func python(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

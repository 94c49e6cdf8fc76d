// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"errors"
	"math"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
)

// Adam keeps running means of gradients and of their squares; with AMSGrad it divides by the largest of the latter. Beta1, Beta2 and
// Eps of 0 mean PyTorch's 0.9, 0.999 and 1e-8. It corresponds to torch.optim.Adam.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	AMSGrad, Maximize                  bool
}

// Rate returns LR.
func (r Adam) Rate() float64 { return r.LR }

func (r Adam) maximize() bool { return r.Maximize }

func (r Adam) check() error {
	if r.Beta1 < 0 || r.Beta1 >= 1 || r.Beta2 < 0 || r.Beta2 >= 1 {
		return badRule("invalid beta parameters: %v and %v", r.Beta1, r.Beta2)
	}
	return errors.Join(notNegative("learning rate", r.LR), notNegative("epsilon value", r.Eps),
		notNegative("weight_decay value", r.WeightDecay))
}

func (r Adam) sparse() string { return "Adam does not support sparse gradients" }

func (r Adam) slots() slots {
	s := slots{names: [3]string{"exp_avg", "exp_avg_sq"}, counted: true}
	if r.AMSGrad {
		s.names[2] = "max_exp_avg_sq"
	}
	return s
}

func (r Adam) step32(p *param, w, g []float32, lr float64) { adam(r, false, p, w, g, lr) }
func (r Adam) step64(p *param, w, g []float64, lr float64) { adam(r, false, p, w, g, lr) }

// AdamW is [Adam] with weight decay apart from the gradient (PyTorch's default is a WeightDecay of 0.01; 0 means none
// here). It corresponds to torch.optim.AdamW.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	AMSGrad, Maximize                  bool
}

// Rate returns LR.
func (r AdamW) Rate() float64 { return r.LR }

func (r AdamW) maximize() bool { return r.Maximize }

func (r AdamW) check() error   { return Adam(r).check() }
func (r AdamW) sparse() string { return "AdamW does not support sparse gradients" }
func (r AdamW) slots() slots   { return Adam(r).slots() }

func (r AdamW) step32(p *param, w, g []float32, lr float64) { adam(Adam(r), true, p, w, g, lr) }
func (r AdamW) step64(p *param, w, g []float64, lr float64) { adam(Adam(r), true, p, w, g, lr) }

func adam[T blas.Float](r Adam, apart bool, p *param, w, g []T, lr float64) {
	b1, b2, eps := or(r.Beta1, 0.9), or(r.Beta2, 0.999), or(r.Eps, 1e-8)
	mean, square, largest := slot[T](p, 0), slot[T](p, 1), slot[T](p, 2)
	n := float64(p.steps)
	size := T(lr / (1 - math.Pow(b1, n)))
	root := T(math.Sqrt(1 - math.Pow(b2, n)))
	keep, decay := T(1), T(r.WeightDecay)
	if apart {
		keep, decay = T(1-lr*r.WeightDecay), 0
	}
	m1, v1, v2, e := T(1-b1), T(b2), T(1-b2), T(eps)
	for i, d := range g {
		x := w[i] * keep
		if decay != 0 {
			d += decay * x
		}
		mean[i] = lerp(mean[i], d, m1)
		square[i] = square[i]*v1 + v2*d*d
		by := square[i]
		if largest != nil {
			by = max(largest[i], by)
			largest[i] = by
		}
		w[i] = x - size*mean[i]/(sqrt(by)/root+e)
	}
}

// SparseAdam is [Adam] for sparse gradients: the running means change only where a gradient has values, and so does the parameter.
// Beta1, Beta2 and Eps of 0 mean PyTorch's 0.9, 0.999 and 1e-8. It corresponds to torch.optim.SparseAdam.
type SparseAdam struct {
	LR, Beta1, Beta2, Eps float64
	Maximize              bool
}

// Rate returns LR.
func (r SparseAdam) Rate() float64 { return r.LR }

func (r SparseAdam) maximize() bool { return r.Maximize }

func (r SparseAdam) check() error {
	if r.LR == 0 {
		return badRule("invalid learning rate: 0")
	}
	return r.adam().check()
}

func (r SparseAdam) adam() Adam {
	return Adam{LR: r.LR, Beta1: r.Beta1, Beta2: r.Beta2, Eps: r.Eps, Maximize: r.Maximize}
}

func (r SparseAdam) sparse() string { return "" }
func (r SparseAdam) slots() slots   { return r.adam().slots() }

func (r SparseAdam) step32(p *param, w, g []float32, lr float64) { sparseAdam(r, p, w, g, lr) }
func (r SparseAdam) step64(p *param, w, g []float64, lr float64) { sparseAdam(r, p, w, g, lr) }

// sparseAdam differs from adam in what Eps is added to.
func sparseAdam[T blas.Float](r SparseAdam, p *param, w, g []T, lr float64) {
	b1, b2, eps := or(r.Beta1, 0.9), or(r.Beta2, 0.999), T(or(r.Eps, 1e-8))
	mean, square := slot[T](p, 0), slot[T](p, 1)
	n := float64(p.steps)
	size := T(lr * math.Sqrt(1-math.Pow(b2, n)) / (1 - math.Pow(b1, n)))
	m1, v1 := T(1-b1), T(1-b2)
	for i, d := range g {
		mean[i] += (d - mean[i]) * m1
		square[i] += (d*d - square[i]) * v1
		w[i] -= size * (mean[i] / (sqrt(square[i]) + eps))
	}
}

// Adamax is [Adam] that divides by the largest gradient, which fades, instead of by the root of a mean. Beta1, Beta2 and Eps of 0 mean
// PyTorch's 0.9, 0.999 and 1e-8. It corresponds to torch.optim.Adamax.
type Adamax struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Maximize                           bool
}

// Rate returns LR.
func (r Adamax) Rate() float64 { return r.LR }

func (r Adamax) maximize() bool { return r.Maximize }

func (r Adamax) adam() Adam {
	return Adam{LR: r.LR, Beta1: r.Beta1, Beta2: r.Beta2, Eps: r.Eps, WeightDecay: r.WeightDecay, Maximize: r.Maximize}
}

func (r Adamax) check() error   { return r.adam().check() }
func (r Adamax) sparse() string { return "Adamax does not support sparse gradients" }
func (r Adamax) slots() slots   { return slots{names: [3]string{"exp_avg", "exp_inf"}, counted: true} }

func (r Adamax) step32(p *param, w, g []float32, lr float64) { adamax(r, p, w, g, lr) }
func (r Adamax) step64(p *param, w, g []float64, lr float64) { adamax(r, p, w, g, lr) }

func adamax[T blas.Float](r Adamax, p *param, w, g []T, lr float64) {
	b1, b2, eps := or(r.Beta1, 0.9), T(or(r.Beta2, 0.999)), T(or(r.Eps, 1e-8))
	mean, largest := slot[T](p, 0), slot[T](p, 1)
	size, m1, decay := T(lr/(1-math.Pow(b1, float64(p.steps)))), T(1-b1), T(r.WeightDecay)
	for i, d := range g {
		if decay != 0 {
			d += decay * w[i]
		}
		mean[i] = lerp(mean[i], d, m1)
		largest[i] = max(largest[i]*b2, max(d, -d)+eps)
		w[i] -= size * mean[i] / largest[i]
	}
}

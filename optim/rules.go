// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"errors"
	"math"

	"github.com/cohort-dist/cohort/internal/blas"
)

// SGD is gradient descent, with momentum when that is not 0. It corresponds to torch.optim.SGD.
type SGD struct {
	LR          float64 `json:"lr"`
	Momentum    float64 `json:"momentum"`
	Dampening   float64 `json:"dampening"`
	WeightDecay float64 `json:"weight_decay"`
	Nesterov    bool    `json:"nesterov"`
}

// Rate returns LR.
func (r SGD) Rate() float64 { return r.LR }

func (r SGD) check() error {
	if r.Nesterov && (r.Momentum <= 0 || r.Dampening != 0) {
		return badRule("Nesterov momentum requires a momentum and zero dampening")
	}
	return errors.Join(notNegative("learning rate", r.LR), notNegative("momentum value", r.Momentum), notNegative("weight_decay value", r.WeightDecay))
}

func (r SGD) sparse() string { return noDecay(r.WeightDecay) }

func (r SGD) slots() slots {
	if r.Momentum != 0 {
		return slots{names: [3]string{"momentum_buffer"}}
	}
	return slots{}
}

func (r SGD) step32(p *param, w, g []float32, lr float64) { sgd(r, p, w, g, lr) }
func (r SGD) step64(p *param, w, g []float64, lr float64) { sgd(r, p, w, g, lr) }

func sgd[T blas.Float](r SGD, p *param, w, g []T, lr float64) {
	if r.Momentum == 0 && r.WeightDecay == 0 {
		blas.AXPY(T(-lr), g, w)
		return
	}
	buf := slot[T](p, 0)
	decay, momentum, rest, rate := T(r.WeightDecay), T(r.Momentum), T(1-r.Dampening), T(-lr)
	for i, d := range g {
		if decay != 0 {
			d += decay * w[i]
		}
		if buf != nil {
			if p.steps == 1 {
				buf[i] = d
			} else {
				buf[i] = buf[i]*momentum + rest*d
			}
			if r.Nesterov {
				d += momentum * buf[i]
			} else {
				d = buf[i]
			}
		}
		w[i] += rate * d
	}
}

// Adam keeps running means of gradients and of their squares. Beta1, Beta2 and Eps of 0 mean PyTorch's 0.9, 0.999 and
// 1e-8. It corresponds to torch.optim.Adam.
type Adam struct{ LR, Beta1, Beta2, Eps, WeightDecay float64 }

// Rate returns LR.
func (r Adam) Rate() float64 { return r.LR }

func (r Adam) check() error {
	if r.Beta1 < 0 || r.Beta1 >= 1 || r.Beta2 < 0 || r.Beta2 >= 1 {
		return badRule("invalid beta parameters: %v and %v", r.Beta1, r.Beta2)
	}
	return errors.Join(notNegative("learning rate", r.LR), notNegative("epsilon value", r.Eps), notNegative("weight_decay value", r.WeightDecay))
}

func (r Adam) sparse() string { return "Adam does not support sparse gradients" }

func (r Adam) slots() slots {
	return slots{names: [3]string{"exp_avg", "exp_avg_sq"}, counted: true}
}

func (r Adam) step32(p *param, w, g []float32, lr float64) { adam(r, false, p, w, g, lr) }
func (r Adam) step64(p *param, w, g []float64, lr float64) { adam(r, false, p, w, g, lr) }

// AdamW is [Adam] with weight decay apart from the gradient (PyTorch's default is a WeightDecay of 0.01; 0 means none
// here). It corresponds to torch.optim.AdamW.
type AdamW struct{ LR, Beta1, Beta2, Eps, WeightDecay float64 }

// Rate returns LR.
func (r AdamW) Rate() float64 { return r.LR }

func (r AdamW) check() error   { return Adam(r).check() }
func (r AdamW) sparse() string { return "AdamW does not support sparse gradients" }
func (r AdamW) slots() slots   { return Adam(r).slots() }

func (r AdamW) step32(p *param, w, g []float32, lr float64) { adam(Adam(r), true, p, w, g, lr) }
func (r AdamW) step64(p *param, w, g []float64, lr float64) { adam(Adam(r), true, p, w, g, lr) }

func adam[T blas.Float](r Adam, apart bool, p *param, w, g []T, lr float64) {
	b1, b2, eps := or(r.Beta1, 0.9), or(r.Beta2, 0.999), or(r.Eps, 1e-8)
	mean, square := slot[T](p, 0), slot[T](p, 1)
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
		mean[i] += m1 * (d - mean[i])
		square[i] = square[i]*v1 + v2*d*d
		w[i] = x - size*mean[i]/(sqrt(square[i])/root+e)
	}
}

// SparseAdam is [Adam] for sparse gradients: the running means change only where a gradient has values, and so does the parameter.
// Beta1, Beta2 and Eps of 0 mean PyTorch's 0.9, 0.999 and 1e-8. It corresponds to torch.optim.SparseAdam.
type SparseAdam struct{ LR, Beta1, Beta2, Eps float64 }

// Rate returns LR.
func (r SparseAdam) Rate() float64 { return r.LR }

func (r SparseAdam) check() error {
	if r.LR == 0 {
		return badRule("invalid learning rate: 0")
	}
	return r.adam().check()
}

func (r SparseAdam) adam() Adam { return Adam{LR: r.LR, Beta1: r.Beta1, Beta2: r.Beta2, Eps: r.Eps} }

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

// Adagrad divides by the root of the sum of all squares. Eps of 0 means PyTorch's 1e-10. It corresponds to
// torch.optim.Adagrad.
type Adagrad struct {
	LR                 float64 `json:"lr"`
	LRDecay            float64 `json:"lr_decay"`
	WeightDecay        float64 `json:"weight_decay"`
	InitialAccumulator float64 `json:"initial_accumulator_value"`
	Eps                float64 `json:"eps"`
}

// Rate returns LR.
func (r Adagrad) Rate() float64 { return r.LR }

func (r Adagrad) check() error {
	return errors.Join(notNegative("learning rate", r.LR), notNegative("lr_decay value", r.LRDecay), notNegative("weight_decay value", r.WeightDecay),
		notNegative("initial_accumulator_value value", r.InitialAccumulator), notNegative("epsilon value", r.Eps))
}

func (r Adagrad) sparse() string { return noDecay(r.WeightDecay) }

func (r Adagrad) slots() slots {
	return slots{names: [3]string{"sum"}, counted: true, initial: r.InitialAccumulator}
}

func (r Adagrad) step32(p *param, w, g []float32, lr float64) { adagrad(r, p, w, g, lr) }
func (r Adagrad) step64(p *param, w, g []float64, lr float64) { adagrad(r, p, w, g, lr) }

func adagrad[T blas.Float](r Adagrad, p *param, w, g []T, lr float64) {
	sum := slot[T](p, 0)
	rate, decay, eps := T(lr/(1+float64(p.steps-1)*r.LRDecay)), T(r.WeightDecay), T(or(r.Eps, 1e-10))
	for i, d := range g {
		if decay != 0 {
			d += decay * w[i]
		}
		sum[i] += d * d
		w[i] -= rate * d / (sqrt(sum[i]) + eps)
	}
}

// RMSprop divides by a running root mean square. Alpha and Eps of 0 mean PyTorch's 0.99 and 1e-8. It corresponds to
// torch.optim.RMSprop.
type RMSprop struct {
	LR          float64 `json:"lr"`
	Alpha       float64 `json:"alpha"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
	Momentum    float64 `json:"momentum"`
	Centered    bool    `json:"centered"`
}

// Rate returns LR.
func (r RMSprop) Rate() float64 { return r.LR }

func (r RMSprop) check() error {
	return errors.Join(notNegative("learning rate", r.LR), notNegative("epsilon value", r.Eps), notNegative("momentum value", r.Momentum),
		notNegative("weight_decay value", r.WeightDecay), notNegative("alpha value", r.Alpha))
}

func (r RMSprop) sparse() string { return "RMSprop does not support sparse gradients" }

func (r RMSprop) slots() slots {
	s := slots{names: [3]string{"square_avg"}, counted: true}
	if r.Momentum > 0 {
		s.names[1] = "momentum_buffer"
	}
	if r.Centered {
		s.names[2] = "grad_avg"
	}
	return s
}

func (r RMSprop) step32(p *param, w, g []float32, lr float64) { rmsprop(r, p, w, g, lr) }
func (r RMSprop) step64(p *param, w, g []float64, lr float64) { rmsprop(r, p, w, g, lr) }

func rmsprop[T blas.Float](r RMSprop, p *param, w, g []T, lr float64) {
	square, buf, mean := slot[T](p, 0), slot[T](p, 1), slot[T](p, 2)
	alpha := or(r.Alpha, 0.99)
	keep, rest, decay, eps, momentum, rate := T(alpha), T(1-alpha), T(r.WeightDecay), T(or(r.Eps, 1e-8)), T(r.Momentum), T(lr)
	for i, d := range g {
		if decay != 0 {
			d += decay * w[i]
		}
		square[i] = square[i]*keep + rest*d*d
		v := square[i]
		if r.Centered {
			mean[i] += rest * (d - mean[i])
			v -= mean[i] * mean[i]
		}
		d /= sqrt(v) + eps
		if momentum > 0 {
			buf[i] = buf[i]*momentum + d
			d = buf[i]
		}
		w[i] -= rate * d
	}
}

func or(v, instead float64) float64 {
	if v == 0 {
		return instead
	}
	return v
}

func sqrt[T blas.Float](x T) T { return T(math.Sqrt(float64(x))) }

// noDecay is why a rule that pulls all of a parameter towards zero takes no sparse gradients.
func noDecay(decay float64) string {
	if decay != 0 {
		return "weight_decay option is not compatible with sparse gradients"
	}
	return ""
}

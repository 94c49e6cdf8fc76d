// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"errors"
	"math"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
)

// SGD is gradient descent, with momentum when that is not 0. It corresponds to torch.optim.SGD.
type SGD struct {
	LR          float64 `json:"lr"`
	Momentum    float64 `json:"momentum"`
	Dampening   float64 `json:"dampening"`
	WeightDecay float64 `json:"weight_decay"`
	Nesterov    bool    `json:"nesterov"`
	Maximize    bool    `json:"maximize"`
}

// Rate returns LR.
func (r SGD) Rate() float64 { return r.LR }

func (r SGD) maximize() bool { return r.Maximize }

func (r SGD) check() error {
	if r.Nesterov && (r.Momentum <= 0 || r.Dampening != 0) {
		return badRule("Nesterov momentum requires a momentum and zero dampening")
	}
	return errors.Join(notNegative("learning rate", r.LR), notNegative("momentum value", r.Momentum),
		notNegative("weight_decay value", r.WeightDecay))
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

// Adagrad divides by the root of the sum of all squares. Eps of 0 means PyTorch's 1e-10. It corresponds to
// torch.optim.Adagrad.
type Adagrad struct {
	LR                 float64 `json:"lr"`
	LRDecay            float64 `json:"lr_decay"`
	WeightDecay        float64 `json:"weight_decay"`
	InitialAccumulator float64 `json:"initial_accumulator_value"`
	Eps                float64 `json:"eps"`
	Maximize           bool    `json:"maximize"`
}

// Rate returns LR.
func (r Adagrad) Rate() float64 { return r.LR }

func (r Adagrad) maximize() bool { return r.Maximize }

func (r Adagrad) check() error {
	return errors.Join(notNegative("learning rate", r.LR), notNegative("lr_decay value", r.LRDecay),
		notNegative("weight_decay value", r.WeightDecay),
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
	Maximize    bool    `json:"maximize"`
}

// Rate returns LR.
func (r RMSprop) Rate() float64 { return r.LR }

func (r RMSprop) maximize() bool { return r.Maximize }

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
			mean[i] = lerp(mean[i], d, rest)
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

// Adadelta divides by a running root mean square of gradients and multiplies by that of former steps. Rho and Eps of 0 mean PyTorch's
// 0.9 and 1e-6; its learning rate is usually 1. It corresponds to torch.optim.Adadelta.
type Adadelta struct {
	LR          float64 `json:"lr"`
	Rho         float64 `json:"rho"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
	Maximize    bool    `json:"maximize"`
}

// Rate returns LR.
func (r Adadelta) Rate() float64 { return r.LR }

func (r Adadelta) maximize() bool { return r.Maximize }

func (r Adadelta) check() error {
	if !(r.Rho >= 0 && r.Rho <= 1) { // NaN is refused too
		return badRule("invalid rho value: %v", r.Rho)
	}
	return errors.Join(notNegative("learning rate", r.LR), notNegative("epsilon value", r.Eps),
		notNegative("weight_decay value", r.WeightDecay))
}

func (r Adadelta) sparse() string { return "Adadelta does not support sparse gradients" }

func (r Adadelta) slots() slots {
	return slots{names: [3]string{"square_avg", "acc_delta"}, counted: true}
}

func (r Adadelta) step32(p *param, w, g []float32, lr float64) { adadelta(r, p, w, g, lr) }
func (r Adadelta) step64(p *param, w, g []float64, lr float64) { adadelta(r, p, w, g, lr) }

func adadelta[T blas.Float](r Adadelta, p *param, w, g []T, lr float64) {
	square, moved := slot[T](p, 0), slot[T](p, 1)
	rho := or(r.Rho, 0.9)
	keep, rest, decay, eps, rate := T(rho), T(1-rho), T(r.WeightDecay), T(or(r.Eps, 1e-6)), T(lr)
	for i, d := range g {
		if decay != 0 {
			d += decay * w[i]
		}
		square[i] = square[i]*keep + rest*d*d
		d *= sqrt(moved[i]+eps) / sqrt(square[i]+eps)
		moved[i] = moved[i]*keep + rest*d*d
		w[i] -= rate * d
	}
}

// Rprop looks only at the signs of gradients: a step grows while the sign stays, and shrinks when it changes. LR is the first step.
// EtaMinus, EtaPlus, StepMin and StepMax of 0 mean PyTorch's 0.5, 1.2, 1e-6 and 50. It corresponds to torch.optim.Rprop.
type Rprop struct {
	LR, EtaMinus, EtaPlus, StepMin, StepMax float64
	Maximize                                bool
}

// Rate returns LR.
func (r Rprop) Rate() float64 { return r.LR }

func (r Rprop) maximize() bool { return r.Maximize }

func (r Rprop) check() error {
	if minus, plus := or(r.EtaMinus, 0.5), or(r.EtaPlus, 1.2); !(0 < minus && minus < 1 && 1 < plus) { // NaN is refused too
		return badRule("invalid eta values: %v, %v", minus, plus)
	}
	return errors.Join(notNegative("learning rate", r.LR), notNegative("smallest step", r.StepMin), notNegative("largest step", r.StepMax))
}

func (r Rprop) sparse() string { return "Rprop does not support sparse gradients" }

func (r Rprop) slots() slots { return slots{names: [3]string{"prev", "step_size"}, counted: true} }

func (r Rprop) step32(p *param, w, g []float32, lr float64) { rprop(r, p, w, g, lr) }
func (r Rprop) step64(p *param, w, g []float64, lr float64) { rprop(r, p, w, g, lr) }

func rprop[T blas.Float](r Rprop, p *param, w, g []T, lr float64) {
	before, size := slot[T](p, 0), slot[T](p, 1)
	minus, plus, least, most := T(or(r.EtaMinus, 0.5)), T(or(r.EtaPlus, 1.2)), T(or(r.StepMin, 1e-6)), T(or(r.StepMax, 50))
	for i, d := range g {
		if p.steps == 1 {
			size[i] = T(lr)
		}
		switch same := d * before[i]; {
		case same > 0:
			size[i] *= plus
		case same < 0: // it was too far: wait for the next gradient
			size[i] *= minus
			d = 0
		}
		size[i] = min(max(size[i], least), most)
		switch {
		case d > 0:
			w[i] -= size[i]
		case d < 0:
			w[i] += size[i]
		}
		before[i] = d
	}
}

// Zero is an explicit zero, for fields in which 0 means PyTorch's default: Adam{LR: 0.1, Beta1: optim.Zero} is Adam without
// momentum. It is the smallest positive number, which no such field needs to have.
const Zero = math.SmallestNonzeroFloat64

func or(v, instead float64) float64 {
	switch v {
	case 0:
		return instead
	case Zero:
		return 0
	}
	return v
}

// lerp goes from one number towards another, as PyTorch's: exactly to the second one if the weight is 1.
func lerp[T blas.Float](from, to, weight T) T {
	if weight < 0.5 {
		return from + weight*(to-from)
	}
	return to - (to-from)*(1-weight)
}

func sqrt[T blas.Float](x T) T { return T(math.Sqrt(float64(x))) }

// noDecay is why a rule that pulls all of a parameter towards zero takes no sparse gradients.
func noDecay(decay float64) string {
	if decay != 0 {
		return "weight_decay option is not compatible with sparse gradients"
	}
	return ""
}

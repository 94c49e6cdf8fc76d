// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/rand/v2"
)

// parameter is a tensor of the model with its gradient.
type parameter struct {
	shape        []int
	values, grad []float32
}

func newParameter(random *rand.Rand, fan int, shape ...int) *parameter {
	n := 1
	for _, d := range shape {
		n *= d
	}
	p := &parameter{shape: shape, values: make([]float32, n), grad: make([]float32, n)}
	bound := float32(1 / math.Sqrt(float64(fan)))
	for i := range p.values {
		p.values[i] = (2*random.Float32() - 1) * bound
	}
	return p
}

// perceptron is Linear(inputs, hidden), Tanh, Linear(hidden, 1), with PyTorch's layout: a weight is outputs x inputs.
type perceptron struct {
	inputs, hidden int
	w1, b1, w2, b2 *parameter
}

func newModel(inputs, hidden int, random *rand.Rand) *perceptron {
	return &perceptron{
		inputs: inputs, hidden: hidden,
		w1: newParameter(random, inputs, hidden, inputs), b1: newParameter(random, inputs, hidden),
		w2: newParameter(random, hidden, 1, hidden), b2: newParameter(random, hidden, 1),
	}
}

// parameters are in the order of PyTorch's model.parameters().
func (m *perceptron) parameters() []*parameter { return []*parameter{m.w1, m.b1, m.w2, m.b2} }

// backward sets the gradients of the mean squared error over a batch and returns the error.
func (m *perceptron) backward(xs [][]float32, ys []float32) float64 {
	for _, p := range m.parameters() {
		clear(p.grad)
	}
	var loss float64
	activation := make([]float32, m.hidden)
	for n, x := range xs {
		out := m.b2.values[0]
		for h := range activation {
			sum := m.b1.values[h]
			for i, v := range x {
				sum += m.w1.values[h*m.inputs+i] * v
			}
			activation[h] = float32(math.Tanh(float64(sum)))
			out += m.w2.values[h] * activation[h]
		}
		diff := out - ys[n]
		loss += float64(diff) * float64(diff) / float64(len(xs))
		d := 2 * diff / float32(len(xs))
		m.b2.grad[0] += d
		for h, a := range activation {
			m.w2.grad[h] += d * a
			dh := d * m.w2.values[h] * (1 - a*a)
			m.b1.grad[h] += dh
			for i, v := range x {
				m.w1.grad[h*m.inputs+i] += dh * v
			}
		}
	}
	return loss
}

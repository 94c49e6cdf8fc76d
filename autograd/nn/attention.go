// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"
	"math/rand/v2"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

// Attention is self-attention with several heads over sequences (batch x length x width). It corresponds to
// torch.nn.MultiheadAttention with batch_first=True and the same input for query, key and value.
type Attention struct {
	Heads  int
	Causal bool // a position sees only itself and those before it

	InWeight, InBias *autograd.Variable // of query, key and value, one below the other
	Out              *Linear
}

// NewAttention returns a float32 layer with PyTorch's initial distribution. width must be a multiple of heads.
func NewAttention(r *rand.Rand, width, heads int, causal bool) *Attention {
	a := &Attention{
		Heads: heads, Causal: causal, InWeight: parameter(3*width, width), InBias: parameter(3 * width),
		Out: NewLinear(r, width, width),
	}
	if heads < 1 || width%heads != 0 {
		a.InWeight = autograd.Failed(cohort.Newf("nn: attention", cohort.InvalidArgument,
			"embed_dim %d must be divisible by num_heads %d", width, heads))
	}
	XavierUniform(r, a.InWeight)
	Fill(a.Out.Bias, 0)
	return a
}

// Forward computes what every position takes from the others.
func (a *Attention) Forward(x *autograd.Variable) *autograd.Variable {
	if err := a.InWeight.Err(); err != nil {
		return a.InWeight
	}
	if x.Err() != nil {
		return x
	}
	s := x.Shape()
	if len(s) != 3 {
		return autograd.Failed(cohort.Newf("nn: attention", cohort.InvalidArgument, "an input of shape %v: want batch x length x width", s))
	}
	batch, length, width := s[0], s[1], s[2]
	size := width / a.Heads
	// (batch, length, 3, heads, size) -> (3, batch, heads, length, size)
	qkv := autograd.Linear(x, a.InWeight, a.InBias).Reshape(batch, length, 3, a.Heads, size).Permute(2, 0, 3, 1, 4)
	q, k, v := qkv.Select(0, 0), qkv.Select(0, 1), qkv.Select(0, 2)
	scores := q.Scale(1 / math.Sqrt(float64(size))).MatMul(k.Transpose(-2, -1))
	if a.Causal {
		scores = scores.MaskedFill(future(length), math.Inf(-1))
	}
	out := scores.Softmax(-1).MatMul(v).Transpose(1, 2).Reshape(batch, length, width)
	return a.Out.Forward(out)
}

// future marks, for each position, those behind it.
func future(length int) *tensor.Tensor {
	mask := make([]bool, length*length)
	for i := range length {
		for j := i + 1; j < length; j++ {
			mask[i*length+j] = true
		}
	}
	return tensor.Must(tensor.From(mask, length, length)) // the sizes agree
}

// Params returns the parameters with PyTorch's names.
func (a *Attention) Params() []Param {
	params := []Param{{Name: "in_proj_weight", Value: a.InWeight}, {Name: "in_proj_bias", Value: a.InBias}}
	if a.Out != nil {
		params = append(params, Prefix("out_proj", a.Out.Params())...)
	}
	return params
}

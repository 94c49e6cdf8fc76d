// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"math"
	"math/rand/v2"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// BatchNorm normalises every feature of a batch of vectors by its mean and deviation in the batch, and keeps running ones
// for evaluation. It corresponds to torch.nn.BatchNorm1d for inputs of two dimensions.
type BatchNorm struct {
	Weight, Bias *autograd.Variable
	Eps          float64
	Momentum     float64 // of the running statistics
	// Evaluation has Forward use the running statistics and leave them alone. It corresponds to Module.eval.
	Evaluation bool

	mean, variance, batches *tensor.Tensor
}

// NewBatchNorm returns a float32 layer with weight 1, bias 0, and PyTorch's eps and momentum.
func NewBatchNorm(features int) *BatchNorm {
	l := &BatchNorm{Weight: parameter(features), Bias: parameter(features), Eps: 1e-5, Momentum: 0.1}
	if l.Weight.Err() != nil {
		return l
	}
	Fill(l.Weight, 1)
	l.mean = tensor.Must(tensor.New(tensor.Float32, features)) // the parameters could be made, so these can
	l.variance = tensor.Must(tensor.Full(tensor.Float32, 1, features))
	l.batches = tensor.Must(tensor.New(tensor.Int64))
	return l
}

// Forward normalises x, a batch of vectors.
func (l *BatchNorm) Forward(x *autograd.Variable) *autograd.Variable {
	const op = "nn: batch norm"
	switch {
	case l.Weight.Err() != nil:
		return l.Weight
	case x.Err() != nil:
		return x
	case x.Dims() != 2 || x.Shape()[1] != l.mean.Dim(0):
		return autograd.Failed(cohort.Newf(op, cohort.InvalidArgument, "input of shape %v: want (N, %d)", x.Shape(), l.mean.Dim(0)))
	case l.Evaluation:
		return l.normal(x.Sub(autograd.Constant(l.mean)), autograd.Constant(l.variance))
	case x.Shape()[0] < 2:
		return autograd.Failed(cohort.Newf(op, cohort.InvalidArgument,
			"expected more than 1 value per channel when training, got input size %v", x.Shape()))
	}
	mean := x.Mean(0)
	centred := x.Sub(mean)
	variance := centred.Pow(2).Mean(0)
	out := l.normal(centred, variance)
	if out.Err() != nil {
		return out
	}
	n := float64(x.Shape()[0])
	if err := l.track(mean.Data(), variance.Data(), n/(n-1)); err != nil {
		return autograd.Failed(err)
	}
	return out
}

func (l *BatchNorm) normal(centred, variance *autograd.Variable) *autograd.Variable {
	return centred.Div(variance.Shift(l.Eps).Sqrt()).Mul(l.Weight).Add(l.Bias)
}

// track moves the running statistics towards those of a batch. The running variance is that of a sample.
func (l *BatchNorm) track(mean, variance *tensor.Tensor, sample float64) error {
	for _, s := range []struct {
		running, batch *tensor.Tensor
		factor         float64
	}{{l.mean, mean, l.Momentum}, {l.variance, variance, l.Momentum * sample}} {
		if err := tensorops.Scale(s.running, 1-l.Momentum); err != nil {
			return err
		}
		if err := tensorops.AXPY(s.factor, s.batch, s.running); err != nil {
			return err
		}
	}
	count, err := tensor.Data[int64](l.batches)
	if err != nil {
		return err
	}
	count[0]++
	return nil
}

// Params returns weight and bias.
func (l *BatchNorm) Params() []Param {
	return []Param{{Name: "weight", Value: l.Weight}, {Name: "bias", Value: l.Bias}}
}

// Buffers returns the running statistics and the number of batches that they come from.
func (l *BatchNorm) Buffers() []Buffer {
	if l.mean == nil {
		return nil
	}
	return []Buffer{{"running_mean", l.mean}, {"running_var", l.variance}, {"num_batches_tracked", l.batches}}
}

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

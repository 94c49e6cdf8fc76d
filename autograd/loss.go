// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/tensor"
)

// Reduction describes what a loss does with the losses of the samples.
type Reduction uint8

// The reductions of PyTorch's losses.
const (
	ReduceMean Reduction = iota
	ReduceSum
	ReduceNone
)

// IgnoreIndex is the target class that [CrossEntropy] leaves out, PyTorch's default.
const IgnoreIndex = -100

// CrossEntropy is the loss of logits (N x C, or C) against classes (int64: N, or none). The mean is over the targets that
// are not [IgnoreIndex]. It corresponds to torch.nn.functional.cross_entropy without class weights, label smoothing and targets that are
// probabilities.
func CrossEntropy(logits *Variable, target *tensor.Tensor, r Reduction) *Variable {
	return apply(&crossEntropy{target: target, reduction: r}, logits)
}

type crossEntropy struct {
	target    *tensor.Tensor
	reduction Reduction
	nll       *tensorops.NLL
}

func (f *crossEntropy) fresh() {}

func (f *crossEntropy) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f.target == nil {
		return nil, cohort.New("autograd: cross entropy", cohort.InvalidArgument, "no targets")
	}
	logp, err := tensorops.Softmax(in[0], -1, true)
	if err != nil {
		return nil, err
	}
	if f.nll, err = tensorops.NewNLL(logp, f.target, IgnoreIndex); err != nil {
		return nil, err
	}
	c.Save(logp)
	rows, err := f.nll.Loss(logp)
	if err != nil || f.reduction == ReduceNone {
		return one(rows, err)
	}
	total, err := tensorops.Sum(rows, nil, false)
	if err != nil || f.reduction == ReduceSum {
		return one(total, err)
	}
	return one(tensorops.Binary(tensorops.Div, tensorops.Of(total), tensorops.Num(float64(f.nll.Counted()))))
}

func (f *crossEntropy) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	rows, logp := g[0], c.Saved()[0]
	var err error
	if f.reduction == ReduceMean {
		if rows, err = tensorops.Binary(tensorops.Div, tensorops.Of(rows), tensorops.Num(float64(f.nll.Counted()))); err != nil {
			return nil, err
		}
	}
	if f.reduction != ReduceNone {
		if rows, err = tensorops.Expand(rows, f.target.Shape()); err != nil {
			return nil, err
		}
	}
	return one(f.nll.CrossEntropyGrad(logp, rows))
}

// MSE is the squared difference of two variables. If their shapes differ they are broadcast, which is likely a mistake: when a
// line of the program does so for the first time, a warning is logged to [slog.Default]. It corresponds to
// torch.nn.functional.mse_loss, which warns, too.
func MSE(v, target *Variable, r Reduction) *Variable {
	d := v.Sub(target)
	if d.Err() == nil && !v.data.SameShape(target.data) {
		warnOfShapes(v.Shape(), target.Shape())
	}
	square := d.Mul(d)
	switch r {
	case ReduceSum:
		return square.Sum()
	case ReduceNone:
		return square
	default:
		return square.Mean()
	}
}

// warned has the lines of the program that have called MSE with two shapes.
var warned sync.Map

// warnOfShapes is called by MSE.
func warnOfShapes(input, target []int) {
	_, file, line, _ := runtime.Caller(2)
	at := file + ":" + strconv.Itoa(line)
	if _, before := warned.LoadOrStore(at, true); !before {
		slog.Warn("autograd: the target of an MSE has another shape than the input: they are broadcast, which is likely a mistake",
			slog.Any("input", input), slog.Any("target", target), slog.String("at", at))
	}
}

// Embedding returns the rows of weight that ids (int64 or int32, any shape) name. The row padding, when not negative, gets
// no gradient. It corresponds to torch.nn.functional.embedding.
func Embedding(weight, ids *Variable, padding int) *Variable {
	return apply(&embedding{padding: padding}, weight, ids)
}

// SparseEmbedding is [Embedding] with a sparse gradient, which has one row per id instead of all rows of weight. It corresponds to
// torch.nn.functional.embedding with sparse=True.
func SparseEmbedding(weight, ids *Variable, padding int) *Variable {
	return apply(&embedding{padding: padding, sparse: true}, weight, ids)
}

type embedding struct {
	padding int
	sparse  bool
}

func (f *embedding) Name() string { return "embedding" }
func (f *embedding) fresh()       {}

func (f *embedding) Forward(c *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	c.Save(in...)
	if f.sparse {
		c.SparseGrads()
	}
	return one(tensorops.Embedding(in[0], in[1]))
}

func (f *embedding) Backward(c *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(tensorops.EmbeddingGrad(g[0], c.Saved()[0], c.Saved()[1], f.padding))
}

// ForwardValues refuses sparse tensors: the table and the ids are dense.
func (f *embedding) ForwardValues(*Context, []Value) ([]Value, error) {
	return nil, cohort.New("sparse", cohort.NotSupported, "the table and the ids of an embedding are dense tensors")
}

func (f *embedding) BackwardValues(c *Context, g []Value) ([]Value, error) {
	grad, err := g[0].ToDense()
	if err != nil {
		return nil, err
	}
	if !f.sparse {
		out, err := f.Backward(c, []*tensor.Tensor{grad})
		return values(out), err
	}
	weight, ids := c.Saved()[0], c.Saved()[1]
	return oneSparse(sparseops.Rows(grad, ids, weight.Dim(0), f.padding))
}

// LayerNorm normalises over the last dims dimensions, and scales and shifts by weight and bias, which have their shape or are nil. It
// corresponds to torch.nn.functional.layer_norm.
func LayerNorm(x, weight, bias *Variable, dims int, eps float64) *Variable {
	out := apply(&layerNorm{dims: dims, eps: eps}, x)
	if out.Err() != nil {
		return out
	}
	normal := x.Shape()[x.Dims()-dims:]
	for _, v := range []*Variable{weight, bias} {
		if v != nil && v.Err() == nil && !slices.Equal(v.Shape(), normal) {
			return Failed(cohort.Newf("autograd: layer norm", cohort.InvalidArgument,
				"expected weight and bias to be of same shape as the normalised dimensions, but got one of shape %v for %v",
				v.Shape(), normal))
		}
	}
	if weight != nil {
		out = out.Mul(weight)
	}
	if bias != nil {
		out = out.Add(bias)
	}
	return out
}

type layerNorm struct {
	dims  int
	eps   float64
	stats *tensorops.NormStats
}

func (f *layerNorm) fresh() {}

func (f *layerNorm) Forward(_ *Context, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	var err error
	if f.stats, err = tensorops.LayerNorm(in[0], f.dims, f.eps); err != nil {
		return nil, err
	}
	return tensors{f.stats.Normal}, nil
}

func (f *layerNorm) Backward(_ *Context, g []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return one(f.stats.Grad(g[0], f.dims))
}

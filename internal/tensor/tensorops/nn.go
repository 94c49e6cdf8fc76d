// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorops

import (
	"math"
	"slices"

	"github.com/cohort-dist/cohort/internal/tensor/blas"
	"github.com/cohort-dist/cohort/tensor"
)

// Softmax normalises exponentials along a dimension; with log it returns the logarithm of that. It corresponds to
// torch.softmax and torch.log_softmax.
func Softmax(t *tensor.Tensor, dim int, log bool) (*tensor.Tensor, error) {
	return alongDim("softmax", t, t, dim, func(x, _, out []float64, _ float64) { softmaxRow(x, out, log) })
}

func softmaxRow(x, out []float64, log bool) {
	top := math.Inf(-1)
	for _, v := range x {
		if v > top || v != v {
			top = v
		}
	}
	total := 0.0
	for i, v := range x {
		out[i] = math.Exp(v - top)
		total += out[i]
	}
	for i, v := range x {
		if log {
			out[i] = v - top - math.Log(total)
		} else {
			out[i] /= total
		}
	}
}

// SoftmaxGrad is the gradient of Softmax, given its result.
func SoftmaxGrad(grad, result *tensor.Tensor, dim int, log bool) (*tensor.Tensor, error) {
	return alongDim("softmax", grad, result, dim, func(g, y, out []float64, largest float64) {
		total, size := 0.0, 0.0
		for i, v := range g {
			size += math.Abs(v)
			if log {
				total += v
			} else {
				total += v * y[i]
			}
		}
		if size > largest/2 {
			largeSoftmaxGrad(g, y, out, log)
			return
		}
		for i, v := range g {
			if log {
				out[i] = v - math.Exp(y[i])*total
			} else {
				out[i] = y[i] * (v - total)
			}
		}
	})
}

// largeSoftmaxGrad is for float32 gradients so large that torch's sums or differences of them may overflow.
func largeSoftmaxGrad(g, y, out []float64, log bool) {
	total := 0.0
	for i, v := range g {
		if !log {
			v *= y[i]
		}
		total = overflow32(total + v)
	}
	for i, v := range g {
		if log {
			out[i] = v - math.Exp(y[i])*total
		} else {
			out[i] = y[i] * overflow32(v-total)
		}
	}
}

// alongDim calls f with the lines of two floating tensors of one shape along a dimension, and with the largest number of the type that
// torch computes in.
func alongDim(op string, a, b *tensor.Tensor, dim int, f func(x, y, out []float64, largest float64)) (*tensor.Tensor, error) {
	shape := a.Shape()
	d, err := Axis(op, dim, len(shape))
	if err != nil {
		return nil, err
	}
	if KindOf(a.DType()) != Real || !Computes(a.DType()) {
		return nil, unsupported(op, a.DType(), realOnly)
	}
	if a.DType() != b.DType() || !a.SameShape(b) {
		return nil, bad(op, "the gradient is %v%v, the result %v%v: want one type and shape", a.DType(), shape, b.DType(), b.Shape())
	}
	if ComputeType(a.DType()) == tensor.Float64 {
		return lines[float64](op, a, b, shape, d, func(x, y, out []float64) { f(x, y, out, math.Inf(1)) })
	}
	return lines[float32](op, a, b, shape, d, func(x, y, out []float64) { f(x, y, out, math.MaxFloat32) })
}

func lines[T blas.Float](op string, a, b *tensor.Tensor, shape []int, d int, f func(x, y, out []float64)) (*tensor.Tensor, error) {
	x, err := floats[T](op, a)
	if err != nil {
		return nil, err
	}
	y, err := floats[T](op, b)
	if err != nil {
		return nil, err
	}
	outer, n, inner := split(shape, d)
	out := make([]T, len(x))
	u, v, w := make([]float64, n), make([]float64, n), make([]float64, n)
	for o := range outer {
		for i := range inner {
			base := o*n*inner + i
			for j := range n {
				u[j], v[j] = float64(x[base+j*inner]), float64(y[base+j*inner])
			}
			f(u, v, w)
			for j := range n {
				out[base+j*inner] = T(w[j])
			}
		}
	}
	return finishFloats(op, out, shape, a.DType())
}

// NLL picks, from each row of n log-probabilities, minus the one that the target names, and writes the sum of the rows
// that are not ignored and their number; with grad it returns the gradient by the log-probabilities, each row times
// scale(row). It is the kernel of torch.nn.functional.nll_loss.
type NLL struct {
	Targets []int64
	Classes int
	Ignore  int64
}

// NewNLL checks the targets of rows of log-probabilities.
func NewNLL(logp, target *tensor.Tensor, ignore int64) (*NLL, error) {
	const op = "cross entropy"
	if target.DType() != tensor.Int64 {
		return nil, bad(op, "targets are class indices of int64, not %v", target.DType())
	}
	if logp.Dims() < 1 || logp.Dims() > 2 || target.Dims() != logp.Dims()-1 || logp.Dims() == 2 && logp.Dim(0) != target.Dim(0) {
		return nil, bad(op, "input of shape %v with targets of shape %v: want (N, C) with (N), or (C) with ()", logp.Shape(),
			target.Shape())
	}
	ids, err := dense[int64](target)
	if err != nil {
		return nil, err
	}
	classes := logp.Dim(-1)
	for i, id := range ids {
		if id != ignore && (id < 0 || id >= int64(classes)) {
			return nil, bad(op, "Target %d is out of bounds: element %d of the targets, %d classes.", id, i, classes)
		}
	}
	return &NLL{slices.Clone(ids), classes, ignore}, nil
}

// Counted is the number of targets that are not ignored.
func (l *NLL) Counted() int {
	n := 0
	for _, id := range l.Targets {
		if id != l.Ignore {
			n++
		}
	}
	return n
}

// Loss returns the loss of every row.
func (l *NLL) Loss(logp *tensor.Tensor) (*tensor.Tensor, error) {
	if ComputeType(logp.DType()) == tensor.Float64 {
		return nll[float64](l, logp)
	}
	return nll[float32](l, logp)
}

func nll[T blas.Float](l *NLL, logp *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := floats[T]("cross entropy", logp)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(l.Targets))
	for i, id := range l.Targets {
		if id != l.Ignore {
			out[i] = -x[i*l.Classes+int(id)]
		}
	}
	return finishFloats("cross entropy", out, logp.Shape()[:logp.Dims()-1], logp.DType())
}

// CrossEntropyGrad returns the gradient by the logits: (softmax - one-hot) times the gradient of the row's loss.
func (l *NLL) CrossEntropyGrad(logp, rows *tensor.Tensor) (*tensor.Tensor, error) {
	if ComputeType(logp.DType()) == tensor.Float64 {
		return crossGrad[float64](l, logp, rows)
	}
	return crossGrad[float32](l, logp, rows)
}

func crossGrad[T blas.Float](l *NLL, logp, rows *tensor.Tensor) (*tensor.Tensor, error) {
	x, err := floats[T]("cross entropy", logp)
	if err != nil {
		return nil, err
	}
	g, err := floats[T]("cross entropy", rows)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(x))
	for i, id := range l.Targets {
		if id == l.Ignore {
			continue
		}
		row := out[i*l.Classes:][:l.Classes]
		for j := range row {
			p := math.Exp(float64(x[i*l.Classes+j]))
			if j == int(id) {
				p--
			}
			row[j] = T(p * float64(g[i]))
		}
	}
	return finishFloats("cross entropy", out, logp.Shape(), logp.DType())
}

// Embedding returns the rows of a matrix that ids name. It corresponds to torch.nn.functional.embedding.
func Embedding(weight, ids *tensor.Tensor) (*tensor.Tensor, error) {
	at, err := rowsOf(weight, ids)
	if err != nil {
		return nil, err
	}
	weight, err = weight.Contiguous()
	if err != nil {
		return nil, err
	}
	out, err := tensor.New(weight.DType(), append(ids.Shape(), weight.Dim(1))...)
	if err != nil {
		return nil, err
	}
	src, err := weight.Bytes()
	if err != nil {
		return nil, err
	}
	dst, err := out.Bytes()
	if err != nil {
		return nil, err
	}
	n := weight.Dim(1) * weight.DType().Size()
	for i, id := range at {
		copy(dst[i*n:][:n], src[id*n:])
	}
	return out, nil
}

func rowsOf(weight, ids *tensor.Tensor) ([]int, error) {
	const op = "embedding"
	if weight.Dims() != 2 {
		return nil, bad(op, "'weight' must be 2-D, not %v", weight.Shape())
	}
	if ids.DType() != tensor.Int64 && ids.DType() != tensor.Int32 {
		return nil, bad(op, "indices are int64 or int32, not %v", ids.DType())
	}
	list, err := numbers[int64](op, ids)
	if err != nil {
		return nil, err
	}
	out := make([]int, len(list))
	for i, id := range list {
		if id < 0 || id >= int64(weight.Dim(0)) {
			return nil, bad(op, "index %d is out of range: the table has %d rows", id, weight.Dim(0))
		}
		out[i] = int(id)
	}
	return out, nil
}

// WrapIndices returns indices into n elements, with those that count from the end made positive.
func WrapIndices(ids *tensor.Tensor, n int) (*tensor.Tensor, error) {
	if ids.DType() != tensor.Int64 && ids.DType() != tensor.Int32 {
		return ids, nil // refused by the function that uses them
	}
	list, err := numbers[int64]("index", ids)
	if err != nil || !slices.ContainsFunc(list, func(id int64) bool { return id < 0 }) {
		return ids, err
	}
	list = slices.Clone(list)
	for i, id := range list {
		if id < -int64(n) {
			return nil, bad("index", "index %d is out of bounds for dimension 0 with size %d", id, n)
		}
		if id < 0 {
			list[i] += int64(n)
		}
	}
	out, err := tensor.From(list)
	if err != nil {
		return nil, err
	}
	return out.Reshape(ids.Shape()...)
}

// EmbeddingGrad adds the rows of grad up by the ids that they belong to; padding, when not negative, is the id whose row
// gets no gradient.
func EmbeddingGrad(grad, weight, ids *tensor.Tensor, padding int) (*tensor.Tensor, error) {
	if ComputeType(grad.DType()) == tensor.Float64 {
		return embeddingGrad[float64](grad, weight, ids, padding)
	}
	return embeddingGrad[float32](grad, weight, ids, padding)
}

func embeddingGrad[T blas.Float](grad, weight, ids *tensor.Tensor, padding int) (*tensor.Tensor, error) {
	at, err := rowsOf(weight, ids)
	if err != nil {
		return nil, err
	}
	g, err := floats[T]("embedding", grad)
	if err != nil {
		return nil, err
	}
	n := weight.Dim(1)
	out := make([]T, weight.Numel())
	for i, id := range at {
		if id != padding {
			row := out[id*n:][:n]
			blas.Add(row, row, g[i*n:][:n])
		}
	}
	return finishFloats("embedding", out, weight.Shape(), grad.DType())
}

// NormStats is what the gradient of a layer norm needs: the normalised input and the inverse deviation of every row.
type NormStats struct {
	Normal *tensor.Tensor
	exact  *tensor.Tensor // Normal before it is rounded to a half type: the gradient subtracts numbers that are nearly equal
	rstd   []float64
}

// LayerNorm subtracts the mean of the last dims dimensions and divides by the deviation. It is the kernel of
// torch.nn.functional.layer_norm without weight and bias.
func LayerNorm(t *tensor.Tensor, dims int, eps float64) (*NormStats, error) {
	const op = "layer norm"
	if KindOf(t.DType()) != Real || !Computes(t.DType()) {
		return nil, unsupported(op, t.DType(), realOnly)
	}
	if dims < 1 || dims > t.Dims() {
		return nil, bad(op, "%d normalised dimensions of a tensor with %d", dims, t.Dims())
	}
	if ComputeType(t.DType()) == tensor.Float64 {
		return layerNorm[float64](t, dims, eps)
	}
	return layerNorm[float32](t, dims, eps)
}

func layerNorm[T blas.Float](t *tensor.Tensor, dims int, eps float64) (*NormStats, error) {
	x, err := floats[T]("layer norm", t)
	if err != nil {
		return nil, err
	}
	shape := t.Shape()
	n := elements(shape[len(shape)-dims:])
	s := &NormStats{}
	out := make([]T, len(x))
	for at := 0; at < len(x); at += n {
		row := x[at:][:n]
		// The mean is taken from the first element on, so that it is exact where all are equal, however large: its
		// error would be the deviation.
		first := float64(row[0])
		mean, square := 0.0, 0.0
		for _, v := range row {
			mean += float64(v) - first
		}
		mean = first + mean/float64(n)
		for _, v := range row {
			square += (float64(v) - mean) * (float64(v) - mean)
		}
		r := 1 / math.Sqrt(square/float64(n)+eps)
		if ComputeType(t.DType()) == tensor.Float32 && max(square, mean*mean) > math.MaxFloat32 {
			r = largeDeviation(mean, row)
		}
		for i, v := range row {
			out[at+i] = T((float64(v) - mean) * r)
		}
		s.rstd = append(s.rstd, r)
	}
	if s.Normal, err = finishFloats("layer norm", out, shape, t.DType()); err != nil {
		return nil, err
	}
	if s.exact = s.Normal; t.DType() != ComputeType(t.DType()) {
		s.exact, err = finishFloats("layer norm", out, shape, ComputeType(t.DType()))
	}
	return s, err
}

// largeDeviation is the inverse deviation of a row of float32 whose squares overflow. That of torch is 0, and NaN where it squares a mean
// or a difference of means that is too large.
func largeDeviation[T blas.Float](mean float64, row []T) float64 {
	if mean*mean > math.MaxFloat32 || float64(slices.Max(row))-float64(slices.Min(row)) > math.MaxFloat32 {
		return math.NaN()
	}
	return 0
}

// Grad is the gradient by the input, given the gradient by the normalised input.
func (s *NormStats) Grad(grad *tensor.Tensor, dims int) (*tensor.Tensor, error) {
	if ComputeType(grad.DType()) == tensor.Float64 {
		return normGrad[float64](s, grad, dims)
	}
	return normGrad[float32](s, grad, dims)
}

func normGrad[T blas.Float](s *NormStats, grad *tensor.Tensor, dims int) (*tensor.Tensor, error) {
	g, err := floats[T]("layer norm", grad)
	if err != nil {
		return nil, err
	}
	y, err := floats[T]("layer norm", s.exact)
	if err != nil {
		return nil, err
	}
	shape := grad.Shape()
	n := elements(shape[len(shape)-dims:])
	out := make([]T, len(g))
	for row, r := range s.rstd {
		at := row * n
		sum, dot := 0.0, 0.0
		for i := range n {
			sum += float64(g[at+i])
			dot += float64(g[at+i]) * float64(y[at+i])
		}
		for i := range n {
			out[at+i] = T(r * (float64(g[at+i]) - sum/float64(n) - float64(y[at+i])*dot/float64(n)))
		}
	}
	return finishFloats("layer norm", out, shape, grad.DType())
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package nn has the building blocks of models: linear layers, embeddings, normalisation, attention and sequences of
// them, with their initialisers. It also saves and loads parameters. It corresponds to torch.nn; parameters have
// PyTorch's names, shapes and layouts, so either can read the other's files.
//
//	r := rand.New(rand.NewPCG(1, 2))
//	model := nn.Sequential{nn.NewLinear(r, 784, 256), nn.ReLU, nn.NewLinear(r, 256, 10)}
//	logits := model.Forward(autograd.Constant(images))
//	err := nn.Save("model.safetensors", model)
package nn

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/tensor"
)

// Param is a parameter with its name in a model.
type Param struct {
	Name   string
	Value  *autograd.Variable
	Sparse bool // its gradients are sparse: that of an [Embedding] with Sparse set
}

// Module is a part of a model. It corresponds to torch.nn.Module.
type Module interface {
	// Forward computes the output. An error travels in the result: see [autograd.Variable].
	Forward(x *autograd.Variable) *autograd.Variable
	// Params lists the parameters in PyTorch's order with PyTorch's names.
	Params() []Param
}

// Buffer is a tensor that belongs to a model's state but is not trained, with its name.
type Buffer struct {
	Name  string
	Value *tensor.Tensor
}

// Buffered is a module with buffers, such as running statistics. It corresponds to Module.register_buffer.
type Buffered interface {
	Module
	// Buffers lists the buffers in PyTorch's order with PyTorch's names. The tensors are always the same ones.
	Buffers() []Buffer
}

// Buffers returns the buffers of a module; most have none. It corresponds to Module.named_buffers.
func Buffers(m Module) []Buffer {
	if b, ok := m.(Buffered); ok {
		return b.Buffers()
	}
	return nil
}

// Variables returns the parameters of modules without their names, for an optimizer; one that several layers share is listed
// once. It corresponds to Module.parameters.
func Variables(modules ...Module) []*autograd.Variable {
	var out []*autograd.Variable
	seen := map[*autograd.Variable]bool{}
	for _, m := range modules {
		for _, p := range m.Params() {
			if !seen[p.Value] {
				seen[p.Value] = true
				out = append(out, p.Value)
			}
		}
	}
	return out
}

// Prefix returns params with "name." in front of their names, as those of a part called name.
func Prefix(name string, params []Param) []Param {
	out := make([]Param, len(params))
	for i, p := range params {
		out[i] = p
		out[i].Name = name + "." + p.Name
	}
	return out
}

// Func is a module without parameters.
type Func func(*autograd.Variable) *autograd.Variable

// Forward calls f.
func (f Func) Forward(x *autograd.Variable) *autograd.Variable {
	if f == nil {
		return autograd.Failed(cohort.New("nn: func", cohort.InvalidArgument, "no function"))
	}
	return f(x)
}

// Params returns nothing.
func (f Func) Params() []Param { return nil }

// The activations as modules.
var (
	ReLU    = Func((*autograd.Variable).ReLU)
	GELU    = Func((*autograd.Variable).GELU)
	Tanh    = Func((*autograd.Variable).Tanh)
	Sigmoid = Func((*autograd.Variable).Sigmoid)
)

// Sequential runs modules one after the other. It corresponds to torch.nn.Sequential.
type Sequential []Module

// Forward passes x through all modules.
func (s Sequential) Forward(x *autograd.Variable) *autograd.Variable {
	for i, m := range s {
		if m == nil {
			return autograd.Failed(cohort.Newf("nn: sequential", cohort.InvalidArgument, "module %d of %d is nil", i, len(s)))
		}
		x = m.Forward(x)
	}
	return x
}

// Params returns the parameters of the modules, named by their positions.
func (s Sequential) Params() []Param {
	var out []Param
	for i, m := range s {
		out = append(out, Prefix(strconv.Itoa(i), m.Params())...)
	}
	return out
}

// Buffers returns the buffers of the modules, named by their positions.
func (s Sequential) Buffers() []Buffer {
	var out []Buffer
	for i, m := range s {
		for _, b := range Buffers(m) {
			out = append(out, Buffer{strconv.Itoa(i) + "." + b.Name, b.Value})
		}
	}
	return out
}

// Linear is x times a matrix plus a bias. It corresponds to torch.nn.Linear.
type Linear struct {
	Weight *autograd.Variable // outputs x inputs
	Bias   *autograd.Variable // outputs; nil for none
}

// NewLinear returns a float32 layer with PyTorch's initial distribution.
func NewLinear(r *rand.Rand, inputs, outputs int) *Linear {
	l := &Linear{Weight: parameter(outputs, inputs), Bias: parameter(outputs)}
	bound := 1 / sqrt(max(inputs, 1))
	Uniform(r, l.Weight, -bound, bound)
	Uniform(r, l.Bias, -bound, bound)
	return l
}

// Forward applies the layer to the last dimension of x.
func (l *Linear) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Linear(x, l.Weight, l.Bias)
}

// Params returns weight and bias.
func (l *Linear) Params() []Param {
	if l.Bias == nil {
		return []Param{{Name: "weight", Value: l.Weight}}
	}
	return []Param{{Name: "weight", Value: l.Weight}, {Name: "bias", Value: l.Bias}}
}

// Embedding is a table of rows. It corresponds to torch.nn.Embedding.
type Embedding struct {
	Weight *autograd.Variable // rows x width
	Sparse bool               // the gradient of the table is sparse: PyTorch's sparse=True
}

// NewEmbedding returns a float32 table with PyTorch's initial distribution, the standard normal one.
func NewEmbedding(r *rand.Rand, rows, width int) *Embedding {
	e := &Embedding{Weight: parameter(rows, width)}
	Normal(r, e.Weight, 0, 1)
	return e
}

// Forward returns the rows that ids (int64 or int32) name.
func (e *Embedding) Forward(ids *autograd.Variable) *autograd.Variable {
	if e.Sparse {
		return autograd.SparseEmbedding(e.Weight, ids, -1)
	}
	return autograd.Embedding(e.Weight, ids, -1)
}

// Params returns the table.
func (e *Embedding) Params() []Param {
	return []Param{{Name: "weight", Value: e.Weight, Sparse: e.Sparse}}
}

// LayerNorm normalises the last dimensions. It corresponds to torch.nn.LayerNorm.
type LayerNorm struct {
	Weight, Bias *autograd.Variable // of the normalised shape
	Eps          float64
}

// NewLayerNorm returns a float32 layer for the given last dimensions, with weight 1, bias 0 and PyTorch's eps.
func NewLayerNorm(shape ...int) *LayerNorm {
	l := &LayerNorm{Weight: parameter(shape...), Bias: parameter(shape...), Eps: 1e-5}
	Fill(l.Weight, 1)
	return l
}

// Forward normalises x.
func (l *LayerNorm) Forward(x *autograd.Variable) *autograd.Variable {
	if err := l.Weight.Err(); err != nil {
		return autograd.Failed(err)
	}
	return autograd.LayerNorm(x, l.Weight, l.Bias, l.Weight.Dims(), l.Eps)
}

// Params returns weight and bias.
func (l *LayerNorm) Params() []Param {
	return []Param{{Name: "weight", Value: l.Weight}, {Name: "bias", Value: l.Bias}}
}

// parameter makes a float32 parameter of zeros; shapes that cannot be made give a parameter that carries the error.
func parameter(shape ...int) *autograd.Variable {
	t, err := tensor.New(tensor.Float32, shape...)
	if err != nil {
		return autograd.Failed(err)
	}
	return autograd.Parameter(t)
}

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

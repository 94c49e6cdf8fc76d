// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// sparseLayers is the module of both sides: every worker has a layer with a sparse weight, and a table whose gradient is sparse.
const sparseLayers = `
import torch
import torch.distributed.rpc as rpc
import torch.distributed.autograd as dist_autograd

def matrix():
    return torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.2, 4.1, 5.3], (3, 3), dtype=torch.float64, requires_grad=True)

# initial has an index more than matrix does, and one twice.
def initial(name):
    n = float(name[-1])
    return torch.sparse_coo_tensor([[2, 0, 1, 1, 0], [1, 2, 0, 2, 2]], [9.0, 0.5 + n / 4, -0.25 * (n + 1), 0.75, 0.125],
        (3, 3), dtype=torch.float64, requires_grad=True)

def table_of(name): return torch.full((6, 2), float(name[-1]) + 0.5, dtype=torch.float64, requires_grad=True)

class Here: weight = table = None

def weight():
    if Here.weight is None:
        Here.weight = initial(rpc.get_worker_info().name)
    return Here.weight

def table():
    if Here.table is None:
        Here.table = table_of(rpc.get_worker_info().name)
    return Here.table

def layer(x, w): return x * w + x

def forward(path, x):
    y = layer(x, weight())
    if path:
        return rpc.rpc_sync(path[0], forward, args=(path[1:], y))
    return y

def look_up(ids): return torch.nn.functional.embedding(ids, table(), sparse=True)

def gradient(context_id): return dist_autograd.get_gradients(context_id).get(weight())
def table_gradient(context_id): return dist_autograd.get_gradients(context_id).get(table())

def near(got, want):
    assert got.is_sparse and got.dtype == want.dtype, got
    assert torch.allclose(got.to_dense(), want.to_dense(), atol=1e-12), (got, want)

# check runs a chain through the path and compares all gradients with those of one worker.
def check(me, path):
    x = matrix()
    ws = {name: initial(name) for name in [me] + path}
    y = x
    for name in [me] + path:
        y = layer(y, ws[name])
    torch.sparse.sum(y * y).backward()
    with dist_autograd.context() as cid:
        y = forward(path, x)
        assert y.is_sparse
        for i in range(2):
            dist_autograd.backward(cid, [torch.sparse.sum(y * y)], retain_graph=i == 0)
        near(dist_autograd.get_gradients(cid)[x], x.grad * 2)
        for name in set(ws):
            near(gradient(cid) if name == me else rpc.rpc_sync(name, gradient, args=(cid,)), ws[name].grad * 2)

# check_operators calls builtin operators with sparse tensors, and looks up rows, at another worker.
def check_operators(to):
    x, y = matrix(), matrix()
    torch.sparse.sum((x + 3 * y) * y).backward()
    with dist_autograd.context() as cid:
        z = rpc.rpc_sync(to, torch.mul, args=(rpc.remote(to, torch.add, args=(x, y), kwargs={"alpha": 3}).to_here(), y))
        dist_autograd.backward(cid, [torch.sparse.sum(z)])
        near(dist_autograd.get_gradients(cid)[x], x.grad)
        near(dist_autograd.get_gradients(cid)[y], y.grad)
    w = table_of(to)
    ids = torch.tensor([[1, 4], [4, 2]])
    (torch.nn.functional.embedding(ids, w, sparse=True) ** 2).sum().backward()
    with dist_autograd.context() as cid:
        rows = rpc.rpc_sync(to, look_up, args=(ids,))
        for i in range(2):
            dist_autograd.backward(cid, [(rows ** 2).sum()], retain_graph=i == 0)
        near(rpc.rpc_sync(to, table_gradient, args=(cid,)), w.grad * 2)
`

// sparseOf is a Go worker's side of the module.
type sparseOf struct {
	*layerOf

	weight, table *autograd.Variable
}

func sparseMatrix() *autograd.Variable {
	return autograd.SparseParameter(&tensor.Sparse{
		Shape: []int{3, 3}, Indices: tensor.Must(tensor.From([]int64{0, 1, 1, 2, 0, 2}, 2, 3)),
		Values: tensor.Must(tensor.From([]float64{3.2, 4.1, 5.3})),
	})
}

func sparseWeight(name string) *autograd.Variable {
	n := float64(name[len(name)-1] - '0')
	return autograd.SparseParameter(&tensor.Sparse{
		Shape: []int{3, 3}, Indices: tensor.Must(tensor.From([]int64{2, 0, 1, 1, 0, 1, 2, 0, 2, 2}, 2, 5)),
		Values: tensor.Must(tensor.From([]float64{9, 0.5 + n/4, -0.25 * (n + 1), 0.75, 0.125})),
	})
}

func rowTable(name string) *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.Full(tensor.Float64, float64(name[len(name)-1]-'0')+0.5, 6, 2)))
}

func sparseLayer(x, w *autograd.Variable) *autograd.Variable { return x.Mul(w).Add(x) }

// goSparse returns a Go worker with a sparse layer.
func goSparse(name string) (member, *sparseOf) {
	l := &sparseOf{&layerOf{engine: distautograd.New(distautograd.WithTimeout(10 * time.Second))}, sparseWeight(name), rowTable(name)}
	gradient := func(v *autograd.Variable) any {
		return func(id int64) *tensor.Sparse {
			if c := l.engine.Context(distautograd.ID(id)); c != nil {
				return c.GradientValue(v).Sparse
			}
			return nil
		}
	}
	reg := rpc.NewRegistry().
		MustHandle("sparselayers.forward", func(ctx context.Context, path []string, x *autograd.Variable) (*autograd.Variable, error) {
			y := sparseLayer(x, l.weight)
			if len(path) == 0 {
				return y, nil
			}
			return rpc.Call[*autograd.Variable](ctx, rpc.AgentFrom(ctx), path[0], "sparselayers.forward", path[1:], y)
		}).
		MustHandle("sparselayers.look_up", func(ids *autograd.Variable) *autograd.Variable {
			return autograd.SparseEmbedding(l.table, ids, -1)
		}).
		MustHandle("sparselayers.gradient", gradient(l.weight)).
		MustHandle("sparselayers.table_gradient", gradient(l.table)).
		MustHandle("layers.contexts", func() int { return l.engine.Stats().Contexts })
	return goWorker(name, reg, l.engine.Join()), l
}

// sameDense compares two sparse tensors by their elements.
func sameDense(t *testing.T, what string, got, want *tensor.Sparse, times float64) {
	t.Helper()
	if got == nil || want == nil {
		t.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	g, err := autograd.Value{Sparse: got}.ToDense()
	if err != nil {
		t.Fatal(err)
	}
	w, err := autograd.SparseConstant(want).Scale(times).Value().ToDense()
	if err != nil {
		t.Fatal(err)
	}
	if !tensor.AllClose(g, w, 1e-12, 1e-12, false) {
		t.Errorf("%s: %v, want %v", what, g, w)
	}
}

// chain begins at a Go worker what check begins at a PyTorch worker.
func (l *sparseOf) chain(ctx context.Context, t *testing.T, a *rpc.Agent, path []string) {
	t.Helper()
	names := append([]string{a.Name()}, path...)
	weights := map[string]*autograd.Variable{}
	x := sparseMatrix()
	near := x
	for _, name := range names {
		if weights[name] == nil {
			weights[name] = sparseWeight(name)
		}
		near = sparseLayer(near, weights[name])
	}
	if err := near.Mul(near).SparseSum().Backward(ctx); err != nil {
		t.Fatal(err)
	}
	gctx, c, err := l.engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	y, err := rpc.Call[*autograd.Variable](gctx, a, path[0], "sparselayers.forward", path[1:], sparseLayer(x, l.weight))
	if err != nil {
		t.Fatal(err)
	}
	loss := y.Mul(y).SparseSum()
	for _, opts := range [][]distautograd.PassOption{{distautograd.RetainGraph()}, nil} {
		if err := c.Backward(gctx, []*autograd.Variable{loss}, opts...); err != nil {
			t.Fatalf("%v: %v", names, err)
		}
	}
	sameDense(t, fmt.Sprint(names, ": x"), c.GradientValue(x).Sparse, x.GradValue().Sparse, 2)
	for name, w := range weights {
		far, err := rpc.Call[*tensor.Sparse](gctx, a, name, "sparselayers.gradient", int64(c.ID()))
		if err != nil {
			t.Fatal(err)
		}
		sameDense(t, fmt.Sprint(names, ": the weight of ", name), far, w.GradValue().Sparse, 2)
	}
}

// operators does at another worker what check_operators does.
func (l *sparseOf) operators(ctx context.Context, t *testing.T, a *rpc.Agent, to string) {
	t.Helper()
	x, y := sparseMatrix(), sparseMatrix()
	if err := x.Add(y.Scale(3)).Mul(y).SparseSum().Backward(ctx); err != nil {
		t.Fatal(err)
	}
	gctx, c, err := l.engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	sum, err := rpc.Call[*autograd.Variable](gctx, a, to,
		"aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", x, y, 3)
	if err != nil {
		t.Fatal(err)
	}
	product, err := rpc.Call[*autograd.Variable](gctx, a, to, "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", sum, y)
	if err != nil {
		t.Fatal(err)
	}
	if err = c.Backward(gctx, []*autograd.Variable{product.SparseSum()}); err != nil {
		t.Fatal(err)
	}
	sameDense(t, "x", c.GradientValue(x).Sparse, x.GradValue().Sparse, 1)
	sameDense(t, "y", c.GradientValue(y).Sparse, y.GradValue().Sparse, 1)

	ids := tensor.Must(tensor.From([]int64{1, 4, 4, 2}, 2, 2))
	table := rowTable(to)
	rows := autograd.SparseEmbedding(table, autograd.Constant(ids), -1)
	if err = rows.Mul(rows).Sum().Backward(ctx); err != nil {
		t.Fatal(err)
	}
	gctx, second, err := l.engine.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	if rows, err = rpc.Call[*autograd.Variable](gctx, a, to, "sparselayers.look_up", ids); err != nil {
		t.Fatal(err)
	}
	if err = second.Backward(gctx, []*autograd.Variable{rows.Mul(rows).Sum()}); err != nil {
		t.Fatal(err)
	}
	far, err := rpc.Call[*tensor.Sparse](gctx, a, to, "sparselayers.table_gradient", int64(second.ID()))
	if err != nil {
		t.Fatal(err)
	}
	sameDense(t, "the table", far, table.GradValue().Sparse, 1)
}

// TestSparseAutograd runs chains of three workers whose values and gradients are sparse, Go and PyTorch in every place and
// beginning everywhere, and back; and operators and tables with sparse gradients at the other side.
func TestSparseAutograd(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for _, kinds := range []string{"pgp", "gpg"} {
			t.Run(kinds, func(t *testing.T) {
				names := make([]string, len(kinds))
				for i, k := range kinds {
					names[i] = map[rune]string{'p': "py", 'g': "go"}[k] + strconv.Itoa(i)
				}
				var members []member
				engines := map[string]*sparseOf{}
				others := map[string][]string{}
				for _, name := range names {
					others[name] = slices.DeleteFunc(slices.Clone(names), func(o string) bool { return o == name })
					if strings.HasPrefix(name, "go") {
						m, l := goSparse(name)
						engines[name] = l
						members = append(members, m)
						continue
					}
					var script strings.Builder
					script.WriteString("import sparselayers as s\n")
					for _, path := range sparsePaths(name, others[name]) {
						fmt.Fprintf(&script, "s.check(%q, %s)\n", name, pyList(path))
					}
					for _, to := range others[name] {
						fmt.Fprintf(&script, "s.check_operators(%q)\n", to)
					}
					members = append(members, torchWorker(name, script.String()))
				}
				w := start(t, tr, settings{modules: map[string]string{"layers": layers, "sparselayers": sparseLayers}}, members...)
				ctx := testContext(t)
				w.run()
				var last *rpc.Agent
				for name, l := range engines {
					last = w.agents[name]
					for _, path := range sparsePaths(name, others[name]) {
						l.chain(ctx, t, last, path)
					}
					for _, to := range others[name] {
						l.operators(ctx, t, last, to)
					}
				}
				w.freed(ctx, last)
				w.stop()
			})
		}
	})
}

// sparsePaths go there and on, and back to where they began.
func sparsePaths(name string, others []string) [][]string {
	return [][]string{others, {others[1], others[0]}, {others[0], name, others[1]}}
}

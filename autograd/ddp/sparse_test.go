// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/tensor"
)

// tables has a table of rows with sparse gradients, and a layer behind it.
func tables(seed uint64) nn.Sequential {
	r := rand.New(rand.NewPCG(seed, seed))
	table := nn.NewEmbedding(r, 10, 3)
	table.Sparse = true
	return nn.Sequential{table, nn.NewLinear(r, 3, 2)}
}

func ids(list ...int64) *autograd.Variable {
	return autograd.Constant(tensor.Must(tensor.From(list, len(list))))
}

// rowsOf are the ids of a rank: some of its own, one that all have, and one twice.
func rowsOf(rank cohort.Rank) []int64 { return []int64{int64(rank), int64(rank), 7, int64(rank + 2)} }

// tableGrads are the gradients of both layers, the table's in dense form; it must be sparse.
func tableGrads(m nn.Module) ([][]float32, error) {
	var out [][]float32
	for i, v := range nn.Variables(m) {
		g := v.GradValue()
		if (g.Sparse != nil) != (i == 0) {
			return nil, fmt.Errorf("parameter %d has the gradient %v", i, g)
		}
		t, err := g.ToDense()
		if err != nil {
			return nil, err
		}
		data, err := tensor.Copy[float32](t)
		if err != nil {
			return nil, err
		}
		out = append(out, data)
	}
	return out, nil
}

// TestSparseGradients: the gradient of a table stays sparse and is the mean over all ranks, in the first pass, after the
// buckets were made again, and when gradients are accumulated; so it is with a hook that reduces.
func TestSparseGradients(t *testing.T) {
	t.Parallel()
	hook := func(ctx context.Context, g *group.Group, b ddp.Bucket) func(context.Context) error {
		if b.Sparse == nil {
			w := g.AllReduce(ctx, b.Data, group.Avg)
			return w.Wait
		}
		data, err := tensor.Data[float32](b.Sparse.Values)
		if err != nil {
			return func(context.Context) error { return err }
		}
		for i := range data {
			data[i] /= float32(g.Size())
		}
		return g.AllReduceSparse(ctx, b.Sparse, group.Sum).Wait
	}
	for name, opts := range map[string][]ddp.Option{
		"plain": nil, "hook": {ddp.WithCommHook(hook)}, "static": {ddp.WithStaticGraph()}, "find unused": {ddp.WithFindUnused()},
		"small buckets": {ddp.WithBuckets(1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world(t, 2, func(ctx context.Context, g *group.Group) error {
				m, reference := tables(1), tables(1)
				model, err := ddp.New(ctx, g, m, opts...)
				if err != nil {
					return err
				}
				defer model.Close()
				if b := model.Buckets(); !slices.ContainsFunc(b,
					func(names []string) bool { return slices.Equal(names, []string{"0.weight"}) }) {
					return fmt.Errorf("the table has no bucket of its own: %v", b)
				}
				for pass := range 4 {
					zero(m)
					zero(reference)
					micro := 1 + pass%2
					if name == "static" {
						micro = 1
					}
					for k := range micro {
						model.SetSync(k == micro-1)
						if err := model.Forward(ctx, ids(rowsOf(g.Rank())...)).Sum().Backward(ctx); err != nil {
							return fmt.Errorf("pass %d: %w", pass, err)
						}
						for rank := range cohort.Rank(g.Size()) {
							out := reference.Forward(ids(rowsOf(rank)...)).Sum().Scale(1 / float64(g.Size()))
							if err := out.Backward(ctx); err != nil {
								return err
							}
						}
					}
					got, err := tableGrads(m)
					if err != nil {
						return fmt.Errorf("pass %d: %w", pass, err)
					}
					want, err := tableGrads(reference)
					if err != nil {
						return err
					}
					if !near(got, want) {
						return fmt.Errorf("pass %d: %v, want %v", pass, got, want)
					}
					s := nn.Variables(m)[0].GradValue().Sparse
					if whole, err := sparseops.Coalesce(s); err != nil || whole != s {
						return fmt.Errorf("the gradient is not coalesced: %v, %w", s, err)
					}
				}
				return nil
			})
		})
	}
}

// TestSparseJoin: a rank that has no more data takes part with a gradient without rows.
func TestSparseJoin(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, tables, nil, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
		return model.Join(ctx, func() error {
			for range 2 + 2*g.Rank() {
				zero(m)
				if err := model.Forward(ctx, ids(rowsOf(g.Rank())...)).Sum().Backward(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// TestSparseRefused: what the module says of its gradients must be true, and a table must be used.
func TestSparseRefused(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		forward func(m nn.Sequential) *autograd.Variable
		opts    []ddp.Option
	}{
		"Expected variable to have sparse gradient": {func(m nn.Sequential) *autograd.Variable {
			table, _ := m[0].(*nn.Embedding)
			return m[1].Forward(table.Weight)
		}, nil},
		"Expected sparse gradient to be defined": {func(m nn.Sequential) *autograd.Variable {
			return m[1].Forward(autograd.Constant(tensor.Must(tensor.New(tensor.Float32, 1, 3))))
		}, []ddp.Option{ddp.WithFindUnused()}},
	} {
		wrapped(t, 2, tables, c.opts, func(ctx context.Context, g *group.Group, m nn.Sequential, model *ddp.Model) error {
			if err := model.Prepare(ctx); err != nil {
				return err
			}
			out := c.forward(m)
			model.Announce(out)
			if err := out.Sum().Backward(ctx); !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), says) {
				return fmt.Errorf("%s: %w", says, err)
			}
			return nil
		})
	}
}

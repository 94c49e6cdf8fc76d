// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ddp trains one model on several ranks: each computes gradients of its own data, and every rank gets their
// mean. Gradients are reduced in buckets while the backward pass still runs. It corresponds to
// torch.nn.parallel.DistributedDataParallel, and a rank of this package can take part in a job whose other ranks are
// PyTorch's.
//
//	model, err := ddp.New(ctx, g, net)            // all ranks have rank 0's parameters now
//	for batch := range batches {
//		loss := autograd.CrossEntropy(model.Forward(ctx, batch.X), batch.Y, autograd.ReduceMean)
//		err = loss.Backward(ctx)                  // returns when all gradients are means
//		err = opt.Step()
//	}
//
// As in PyTorch, the first pass reduces in a guessed order; before the second one, the buckets are made again in the
// order in which gradients became ready on rank 0.
package ddp

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/invariants"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/tensor"
)

// Model is a module whose gradients are means over all ranks of a group. It is for one goroutine at a time, its backward
// passes included.
type Model struct {
	module  nn.Module
	g       *group.Group
	params  []nn.Param
	pieces  []piece
	config  config
	removes []func()

	buckets  []*bucket
	places   []place // by parameter
	noSync   bool
	armed    bool // a forward has been announced whose gradients are to be reduced
	running  bool // a pass has begun to reduce
	next     int  // the next bucket to be reduced: all ranks reduce in the same order
	ready    []bool
	order    []int // parameters in the order in which they became ready, in the first pass
	rebuilt  bool
	unused   []int // parameters that the announced forward did not use
	used     *tensor.Tensor
	usedWork *group.Work
	err      error
}

// bucket is the gradients that are reduced together.
type bucket struct {
	params  []int
	data    *tensor.Tensor
	views   []*tensor.Tensor // by position in params
	pending int
	work    *group.Work
}

// place says where the gradient of a parameter lies.
type place struct{ bucket, position int }

type config struct {
	first, rest int
	findUnused  bool
}

// Option changes how gradients are reduced.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithBuckets sets the size of the first bucket and of the others in bytes. All ranks must use the same. It corresponds
// to bucket_cap_mb.
func WithBuckets(first, rest int) Option {
	return optionFunc(func(c *config) { c.first, c.rest = first, rest })
}

// WithFindUnused allows passes that do not reach all parameters: those that no rank used keep their gradients. It costs a
// walk through the graph and one more reduction per pass, and all ranks must use it. It corresponds to
// find_unused_parameters=True.
func WithFindUnused() Option { return optionFunc(func(c *config) { c.findUnused = true }) }

// New compares the parameters of all ranks, gives every rank those of rank 0, and prepares the reduction of their
// gradients. It is collective. A parameter that is frozen later must be frozen before New, on all ranks.
func New(ctx context.Context, g *group.Group, module nn.Module, opts ...Option) (*Model, error) {
	const op = "ddp: new"
	m := &Model{module: module, g: g, config: config{first: DefaultFirstBucket, rest: DefaultBucket}}
	for _, o := range opts {
		o.apply(&m.config)
	}
	if m.config.first < 1 || m.config.rest < 1 {
		return nil, dist.Newf(op, dist.InvalidArgument, "buckets of %d and %d bytes", m.config.first, m.config.rest)
	}
	var all []*tensor.Tensor
	seen := map[*autograd.Variable]bool{}
	for _, p := range module.Params() {
		if err := p.Value.Err(); err != nil {
			return nil, err
		}
		if seen[p.Value] {
			continue // shared between layers: PyTorch, too, counts it once
		}
		seen[p.Value] = true
		all = append(all, p.Value.Data())
		if !p.Value.RequiresGrad() {
			continue
		}
		if !p.Value.Data().IsContiguous() {
			return nil, dist.Newf(op, dist.InvalidArgument, "parameter %s has strides %v: want a dense one", p.Name, p.Value.Data().Strides())
		}
		m.params = append(m.params, p)
		m.pieces = append(m.pieces, piece{p.Value.DType(), p.Value.Data().Size()})
	}
	if len(m.params) == 0 {
		return nil, dist.New(op, dist.InvalidArgument, "DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient.")
	}
	if err := m.compare(ctx); err != nil {
		return nil, err
	}
	if err := m.takeFromRankZero(ctx, all); err != nil {
		return nil, err
	}
	limits := []int{unlimited}
	if m.config.findUnused {
		limits = []int{m.config.first, m.config.rest}
	}
	buckets := assign(m.pieces, limits, nil)
	slices.Reverse(buckets) // the last layers' gradients come first
	if err := m.install(buckets); err != nil {
		return nil, err
	}
	for i, p := range m.params {
		remove, err := p.Value.OnAccumulated(func(ctx context.Context, pass *autograd.Pass, _ *autograd.Variable) error {
			return m.onReady(ctx, pass, i)
		})
		if err != nil {
			m.Close()
			return nil, err
		}
		m.removes = append(m.removes, remove)
	}
	return m, nil
}

// Close takes the model's hooks off the parameters: gradients are not reduced any more. The group stays open.
func (m *Model) Close() {
	for _, remove := range m.removes {
		remove()
	}
	m.removes = nil
	if m.err == nil && !m.running { // else a reduction may still be writing
		for _, b := range m.buckets {
			b.data.Storage().Release()
		}
	}
	m.buckets = nil
}

// Module returns the module that was given to New.
func (m *Model) Module() nn.Module { return m.module }

// Params returns the parameters of the module.
func (m *Model) Params() []nn.Param { return m.module.Params() }

// Forward computes the module's output and announces that gradients of it will be reduced. It is collective before the
// second pass, when the buckets are made again. It corresponds to calling a DistributedDataParallel.
func (m *Model) Forward(ctx context.Context, x *autograd.Variable) *autograd.Variable {
	if err := m.Prepare(ctx); err != nil {
		return autograd.Failed(err)
	}
	out := m.module.Forward(x)
	m.Announce(out)
	return out
}

// Prepare begins a pass, for a module whose forward is called in another way than by [Model.Forward]. Call
// [Model.Announce] with the outputs behind it.
func (m *Model) Prepare(ctx context.Context) error {
	if err := m.err; err != nil {
		return err
	}
	if m.running {
		return m.fail(dist.Newf("ddp: forward", dist.InvalidArgument,
			"Expected to have finished reduction in the prior iteration before starting a new one: no gradients came for %v; use WithFindUnused", m.missing()))
	}
	if m.noSync || m.config.findUnused || m.rebuilt || len(m.order) == 0 {
		return nil
	}
	m.rebuilt = true
	buckets := assign(m.pieces, []int{m.config.first, m.config.rest}, m.order)
	buckets, err := m.agree(ctx, buckets)
	if err == nil {
		err = m.install(buckets)
	}
	if err != nil {
		return m.fail(err)
	}
	return nil
}

// Announce says which outputs the next backward pass begins at.
func (m *Model) Announce(outputs ...*autograd.Variable) {
	if m.noSync || !slices.ContainsFunc(outputs, (*autograd.Variable).RequiresGrad) {
		return
	}
	m.armed = true
	m.unused = nil
	if !m.config.findUnused {
		return
	}
	reached := map[*autograd.Node]bool{}
	var stack []*autograd.Node
	for _, v := range outputs {
		stack = append(stack, v.Edge().Node)
	}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n == nil || reached[n] {
			continue
		}
		reached[n] = true
		for _, e := range n.Edges() {
			stack = append(stack, e.Node)
		}
	}
	for i, p := range m.params {
		if !reached[p.Value.Edge().Node] {
			m.unused = append(m.unused, i)
		}
	}
}

// SetSync switches reduction off and on again. While it is off, passes only accumulate on this rank; the next one with
// reduction reduces all that was accumulated. All ranks switch alike. It corresponds to DistributedDataParallel.no_sync.
func (m *Model) SetSync(on bool) {
	m.noSync = !on
}

// Buckets returns the names of the parameters by bucket, in the order of their reduction.
func (m *Model) Buckets() [][]string {
	out := make([][]string, len(m.buckets))
	for i, b := range m.buckets {
		for _, k := range b.params {
			out[i] = append(out[i], m.params[k].Name)
		}
	}
	return out
}

func (m *Model) fail(err error) error {
	m.err = err
	return err
}

func (m *Model) missing() []string {
	var names []string
	for i, ready := range m.ready {
		if !ready {
			names = append(names, m.params[i].Name)
		}
	}
	return names
}

// install makes the memory of buckets.
func (m *Model) install(buckets [][]int) error {
	places := make([]place, len(m.params))
	made := make([]*bucket, len(buckets))
	for i, params := range buckets {
		b := &bucket{params: params}
		n := 0
		for _, k := range params {
			n += m.params[k].Value.Data().Numel()
		}
		var err error
		if b.data, err = m.g.NewTensor(m.pieces[params[0]].dtype, n); err != nil { // the shared segment may be full
			if b.data, err = tensor.New(m.pieces[params[0]].dtype, n); err != nil {
				return err
			}
		}
		at := 0
		for j, k := range params {
			t := m.params[k].Value.Data()
			view, err := b.data.Narrow(0, at, t.Numel())
			if err != nil {
				return err
			}
			if view, err = view.View(t.Shape()...); err != nil {
				return err
			}
			b.views = append(b.views, view)
			places[k] = place{i, j}
			at += t.Numel()
		}
		made[i] = b
	}
	for _, b := range m.buckets {
		b.data.Storage().Release()
	}
	m.buckets, m.places = made, places
	m.reset()
	return nil
}

// reset forgets the pass that ended.
func (m *Model) reset() {
	m.next, m.running, m.armed = 0, false, false
	m.ready = make([]bool, len(m.params))
	m.unused, m.usedWork = nil, nil
	for _, b := range m.buckets {
		b.pending, b.work = len(b.params), nil
	}
}

// onReady is called when a pass has accumulated the gradient of a parameter.
func (m *Model) onReady(ctx context.Context, pass *autograd.Pass, i int) error {
	moment.At("ddp.reducer.ready")
	switch {
	case m.noSync:
		return nil
	case m.err != nil:
		return m.err
	case !m.armed:
		return dist.Newf("ddp: backward", dist.InvalidArgument, "a gradient of %s without a forward: call Forward before each backward pass", m.params[i].Name)
	case m.ready[i]:
		return m.fail(dist.Newf("ddp: backward", dist.InvalidArgument, "Expected to mark a variable ready only once: %s", m.params[i].Name))
	}
	if !m.running {
		m.running = true
		if err := m.begin(ctx, pass); err != nil {
			return m.fail(err)
		}
	}
	if !m.rebuilt {
		m.order = append(m.order, i)
	}
	if err := m.mark(ctx, i, m.params[i].Value.Grad()); err != nil {
		return m.fail(err)
	}
	return nil
}

func (m *Model) begin(ctx context.Context, pass *autograd.Pass) error {
	if !m.rebuilt {
		m.order = nil
	}
	pass.AtEnd(m.finish)
	if !m.config.findUnused {
		return nil
	}
	used := make([]int32, len(m.params))
	for i := range used {
		used[i] = 1
	}
	for _, i := range m.unused {
		used[i] = 0
	}
	var err error
	if m.used, err = tensor.From(used); err != nil {
		return err
	}
	for _, i := range m.unused {
		if err := m.mark(ctx, i, nil); err != nil {
			return err
		}
	}
	return nil
}

// mark copies a gradient, divided by the number of ranks, into its bucket, and reduces all buckets whose turn it is.
func (m *Model) mark(ctx context.Context, i int, grad *tensor.Tensor) error {
	m.ready[i] = true
	p := m.places[i]
	b := m.buckets[p.bucket]
	if err := scaleInto(b.views[p.position], grad, 1/float64(m.g.Size())); err != nil {
		return err
	}
	b.pending--
	invariants.Check(b.pending >= 0, "a bucket has no more gradients than parameters")
	for m.next < len(m.buckets) && m.buckets[m.next].pending == 0 {
		next := m.buckets[m.next]
		moment.At("ddp.reducer.reduce")
		next.work = m.g.AllReduce(ctx, next.data, group.Sum)
		m.next++
	}
	if m.next == len(m.buckets) && m.config.findUnused {
		m.usedWork = m.g.AllReduce(ctx, m.used, group.Sum)
	}
	return nil
}

// finish waits for the reductions at the end of a pass and puts the means in place.
func (m *Model) finish(ctx context.Context) error {
	if m.next < len(m.buckets) {
		return m.fail(dist.Newf("ddp: backward", dist.InvalidArgument,
			"the pass ended without gradients for %v: use WithFindUnused on all ranks when a forward does not use all parameters", m.missing()))
	}
	var used []int32
	for _, b := range m.buckets {
		moment.At("ddp.reducer.wait")
		if err := b.work.Wait(ctx); err != nil {
			return m.fail(err)
		}
	}
	if m.usedWork != nil {
		if err := m.usedWork.Wait(ctx); err != nil {
			return m.fail(err)
		}
		var err error
		if used, err = tensor.Data[int32](m.used); err != nil {
			return m.fail(err)
		}
	}
	for _, b := range m.buckets {
		for j, k := range b.params {
			if used != nil && used[k] == 0 {
				continue // no rank used it: its gradient stays what it was
			}
			if err := putGrad(m.params[k].Value, b.views[j]); err != nil {
				return m.fail(err)
			}
		}
	}
	m.reset()
	return nil
}

func putGrad(v *autograd.Variable, mean *tensor.Tensor) error {
	if g := v.Grad(); g != nil {
		return g.CopyFrom(mean)
	}
	g, err := mean.Clone()
	if err != nil {
		return err
	}
	return v.SetGrad(g)
}

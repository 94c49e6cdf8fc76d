// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package ddp trains one model on several ranks: each rank computes gradients from its own data, and every rank gets
// their mean. Gradients are reduced in buckets while the backward pass runs. It corresponds to
// torch.nn.parallel.DistributedDataParallel, and its ranks can take part in a PyTorch job.
//
//	model, err := ddp.New(ctx, g, net)            // all ranks have rank 0's parameters now
//	for batch := range batches {
//		loss := autograd.CrossEntropy(model.Forward(ctx, batch.X), batch.Y, autograd.ReduceMean)
//		err = loss.Backward(ctx)                  // returns when all gradients are means
//		err = opt.Step()
//	}
//
// As in PyTorch, the first pass guesses the order of the buckets. Before the second pass they are rebuilt in the order in
// which gradients became ready on rank 0.
//
// Gradients are memory of the buckets, as with PyTorch's gradient_as_bucket_view: they are computed there, and reduced in place. So the
// next pass overwrites a gradient, also after ZeroGrad. Copy one that you want to keep. [Model.Close] leaves every parameter a copy.
//
// A backward pass of a distributed autograd context (package autograd/distautograd) reduces the gradients in the context, as in PyTorch:
// the context has the means when it ends, in memory of their own.
package ddp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// Model is a module whose gradients are means over all ranks of a group. It is for one goroutine at a time, its backward passes
// included. If a gradient of one pass arrives while those of another are being reduced, both passes fail. Each forward allows one
// pass.
type Model struct {
	module  nn.Module
	g       *group.Group
	params  []nn.Param
	pieces  []piece
	config  config
	removes []func()

	all     []*tensor.Tensor // parameters, frozen ones included
	buffers []*tensor.Tensor // what the module keeps beside them

	mu struct {
		sync.Mutex
		stage  stage
		pass   *autograd.Pass // whose gradients are being reduced
		noSync bool
		err    error
	}

	// The fields below are for the forward or the pass that is under way, of which mu.stage allows one.

	pools   bucketPool
	arrival arrival
	usage   usage
	round   round
	sharing bool   // the buffers are taken from rank 0 before the next forward
	local   bool   // the last forward was announced without reduction
	divide  int    // what gradients are divided by
	joining *join  // within Join
	notices []wait // what was said to ranks that have joined
}

// stage is what a model is doing.
type stage int

const (
	idle     stage = iota
	forward        // a forward is being prepared
	backward       // gradients of a pass are being reduced
	hooked         // within that, a CommHook is running
)

// sharing says when ranks get the same buffers.
type sharing int

const (
	eachForward sharing = iota
	atEnds
	never
)

// wait ends when something that was begun has ended.
type wait = func(context.Context) error

type config struct {
	first, rest int
	findUnused  bool
	static      bool
	buffers     sharing
	comm        CommHook
	badComm     bool // no hook was given, or two
	hook        observe.Hook
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

// WithStaticGraph promises that every pass uses the same parameters, of which some may be unused. The first pass finds out
// which and reduces at its end; the others need no walk through the graph. All ranks must use it. It corresponds to
// static_graph=True.
func WithStaticGraph() Option { return optionFunc(func(c *config) { c.static = true }) }

// WithoutBuffers leaves every rank its own buffers (see [nn.Buffered]), which otherwise become rank 0's in [New] and before each
// forward. It corresponds to broadcast_buffers=False; for that of PyTorch 1.13 see [WithBuffersAtEnds].
func WithoutBuffers() Option { return optionFunc(func(c *config) { c.buffers = never }) }

// WithBuffersAtEnds shares the buffers in [New] and at the end of [Model.Join], and not before each forward. It corresponds to
// broadcast_buffers=False of PyTorch 1.13, with whose ranks [WithoutBuffers] does not work.
func WithBuffersAtEnds() Option { return optionFunc(func(c *config) { c.buffers = atEnds }) }

// WithHook sends events "ddp.backward" to h: the beginning of the first gradient and the end of the last of each pass. With
// the events of the group they show which reductions overlap with the pass.
func WithHook(h observe.Hook) Option {
	return optionFunc(func(c *config) { c.hook = safecall.Hook(nil, h) })
}

// New compares the parameters of all ranks, gives every rank those of rank 0, and prepares the reduction of their
// gradients. It is a collective operation. Freeze parameters before New, on all ranks, not after it.
func New(ctx context.Context, g *group.Group, module nn.Module, opts ...Option) (*Model, error) {
	const op = "ddp: new"
	if g == nil || module == nil {
		return nil, cohort.New(op, cohort.InvalidArgument, "no group, or no module")
	}
	m := &Model{module: module, g: g, config: config{first: DefaultFirstBucket, rest: DefaultBucket}, divide: g.Size(), sharing: true}
	for _, o := range opts {
		if o != nil {
			o.apply(&m.config)
		}
	}
	switch {
	case m.config.first < 1 || m.config.rest < 1:
		return nil, cohort.Newf(op, cohort.InvalidArgument, "buckets of %d and %d bytes", m.config.first, m.config.rest)
	case m.config.badComm:
		return nil, cohort.New(op, cohort.InvalidArgument, "WithCommHook can be given once, with a hook")
	case m.config.static && m.config.findUnused:
		return nil, cohort.New(op, cohort.InvalidArgument, "WithStaticGraph finds unused parameters by itself: leave out WithFindUnused")
	}
	seen := map[*autograd.Variable]bool{}
	for _, p := range module.Params() {
		if err := p.Value.Err(); err != nil {
			return nil, err
		}
		if seen[p.Value] {
			continue // shared between layers: PyTorch, too, counts it once
		}
		seen[p.Value] = true
		if p.Value.Data() == nil {
			return nil, cohort.Newf(op, cohort.InvalidArgument, "parameter %s is sparse: want a dense one", p.Name)
		}
		m.all = append(m.all, p.Value.Data())
		if !p.Value.RequiresGrad() {
			continue
		}
		if !p.Value.Data().IsContiguous() {
			return nil, cohort.Newf(op, cohort.InvalidArgument, "parameter %s has strides %v: want a dense one", p.Name,
				p.Value.Data().Strides())
		}
		m.params = append(m.params, p)
		m.pieces = append(m.pieces, piece{p.Value.DType(), p.Value.Data().NBytes(), p.Sparse})
	}
	m.usage.accumulated = make([]bool, len(m.params))
	if len(m.params) == 0 {
		return nil, cohort.New(op, cohort.InvalidArgument,
			"DistributedDataParallel is not needed when a module doesn't have any parameters that require a gradient.")
	}
	if err := m.compare(ctx); err != nil {
		return nil, err
	}
	for _, b := range nn.Buffers(module) {
		m.buffers = append(m.buffers, b.Value)
	}
	if err := m.takeFrom(ctx, 0, m.state()); err != nil {
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
			return nil, errors.Join(err, m.Close())
		}
		m.removes = append(m.removes, remove)
	}
	return m, nil
}

// Close removes the model's hooks from the parameters: gradients are no longer reduced. It is idempotent, and the group stays open.
// The error says which gradients are lost because there was no memory for a copy of them.
func (m *Model) Close() error {
	for _, remove := range m.removes {
		remove()
	}
	m.removes = nil
	failpoint.At("ddp.close")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.stage != idle {
		_ = m.fail(cohort.New("ddp: close", cohort.InvalidArgument, "the model was closed during a forward or a pass")) // which returns it
	}
	quiet := m.mu.err == nil // else a reduction may still be writing
	var errs []error
	for i, p := range m.params {
		_ = p.Value.SetGradMemory(nil)
		if !quiet {
			continue
		}
		if err := m.takeOut(i); err != nil {
			errs = append(errs, cohort.Newf("ddp: close", cohort.CodeOf(err), "the gradient of %s: %w", p.Name, err))
			p.Value.ZeroGrad()
		}
	}
	if quiet {
		m.pools.release()
	}
	if m.mu.stage == idle {
		m.pools.buckets, m.round.armed = nil, false
	}
	return errors.Join(errs...)
}

// Module returns the module that was given to New.
func (m *Model) Module() nn.Module { return m.module }

// Group returns the group that was given to New.
func (m *Model) Group() *group.Group { return m.g }

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

// Prepare begins a pass, for a module whose forward is not called through [Model.Forward]. Then call [Model.Announce]
// with the outputs.
func (m *Model) Prepare(ctx context.Context) error {
	if err := m.beginForward(); err != nil {
		return err
	}
	err := m.prepare(ctx)
	failpoint.At("ddp.prepared")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.stage = idle
	if err == nil {
		return m.mu.err // of a Close meanwhile
	}
	return m.failJoin(err)
}

// beginForward keeps passes out while a forward is prepared.
func (m *Model) beginForward() error {
	failpoint.At("ddp.forward")
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.err != nil:
		return m.mu.err
	case m.mu.stage == forward:
		return m.fail(tooMany("ddp: forward", "a forward has begun while another is being prepared"))
	case m.mu.stage == hooked:
		return m.fail(tooMany("ddp: forward", "a hook has begun a forward"))
	case m.mu.stage == backward:
		return m.fail(cohort.Newf("ddp: forward", cohort.InvalidArgument,
			"Expected to have finished reduction in the prior iteration before starting a new one: no gradients arrived for %v; %s, "+
				"and run one pass at a time", m.missing(), m.advice()))
	}
	m.mu.stage = forward
	return nil
}

func tooMany(op, what string) error {
	return cohort.Newf(op, cohort.InvalidArgument, "%s: run one pass at a time through a wrapped model", what)
}

// prepare does what ranks do together before a forward, in PyTorch's order.
func (m *Model) prepare(ctx context.Context) error {
	if err := m.notify(ctx, true); err != nil {
		return err
	}
	if err := m.rebuild(ctx); err != nil {
		return err
	}
	if err := m.shareBuffers(ctx, true); err != nil {
		return err
	}
	return m.notifySync(ctx)
}

// rebuild makes the buckets again, once, when it is known in which order gradients become ready.
func (m *Model) rebuild(ctx context.Context) error {
	if m.config.findUnused || !m.arrival.known() {
		return nil
	}
	m.arrival.rebuilt = true
	buckets, err := m.agree(ctx, assign(m.pieces, []int{m.config.first, m.config.rest}, m.arrival.order))
	if err != nil {
		return err
	}
	return m.install(buckets)
}

// state is what ranks share at the beginning, and at the end of Join.
func (m *Model) state() []*tensor.Tensor {
	if m.config.buffers == never {
		return m.all
	}
	return slices.Concat(m.all, m.buffers)
}

// shareBuffers gives all ranks the same buffers before a forward whose predecessor was synchronised, as PyTorch does.
// active is false on a rank that has joined.
func (m *Model) shareBuffers(ctx context.Context, active bool) error {
	if m.config.buffers != eachForward || len(m.buffers) == 0 || !m.sharing {
		return nil
	}
	from := cohort.Rank(0)
	if m.joining != nil { // rank 0's may be old
		var err error
		if from, err = m.commonRank(ctx, active); err != nil {
			return err
		}
	}
	return m.takeFrom(ctx, from, m.buffers)
}

// Announce says at which outputs the next backward pass starts.
func (m *Model) Announce(outputs ...*autograd.Variable) {
	failpoint.At("ddp.announce")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.stage != idle {
		_ = m.fail(tooMany("ddp: forward", "a backward pass has begun during a forward")) // which the pass, and the next one, return
		return
	}
	trains := slices.ContainsFunc(outputs, (*autograd.Variable).RequiresGrad)
	m.sharing = trains && !m.mu.noSync
	if trains {
		m.local = m.mu.noSync
	}
	if !m.sharing {
		return
	}
	m.round.armed = true
	m.round.unused = m.usage.never
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
			m.round.unused = append(m.round.unused, i)
		}
	}
}

// SetSync switches reduction off and on again, from the next forward on. While it is off, passes only accumulate on this rank; the next
// one with reduction reduces all that was accumulated. All ranks switch alike. It corresponds to DistributedDataParallel.no_sync.
func (m *Model) SetSync(on bool) {
	failpoint.At("ddp.set_sync")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.noSync = !on
}

// Buckets returns the names of the parameters by bucket, in the order of their reduction.
func (m *Model) Buckets() [][]string {
	out := make([][]string, len(m.pools.buckets))
	for i, b := range m.pools.buckets {
		for _, k := range b.params {
			out[i] = append(out[i], m.params[k].Name)
		}
	}
	return out
}

// fail ends all use of the model; the first error stays. The caller holds mu.
func (m *Model) fail(err error) error {
	if m.mu.err == nil {
		m.mu.err = err
	}
	return err
}

func (m *Model) missing() []string {
	var names []string
	for i, ready := range m.round.ready {
		if !ready {
			names = append(names, m.params[i].Name)
		}
	}
	return names
}

// String says how many parameters the model has, and which group averages them.
func (m *Model) String() string {
	return fmt.Sprintf("ddp model (%d parameters in %d buckets, %v)", len(m.params), len(m.pools.buckets), m.g)
}

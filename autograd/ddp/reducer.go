// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/tensor/sparseops"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/invariants"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/tensor"
)

// install puts gradients into new buckets.
func (m *Model) install(buckets [][]int) error {
	made, err := newBucketPool(m.g, m.params, m.pieces, buckets)
	if err != nil {
		return err
	}
	if err := m.moveGrads(&made); err != nil {
		return err
	}
	m.pools.release()
	m.pools = made
	m.reset()
	return nil
}

// moveGrads has gradients computed in new buckets, and puts those there that are in the old ones.
func (m *Model) moveGrads(made *bucketPool) error {
	for i, p := range m.params {
		to := made.view(i)
		if to == nil {
			continue
		}
		if err := p.Value.SetGradMemory(to); err != nil {
			return err
		}
		if !m.inBucket(i) {
			continue
		}
		if err := to.CopyFrom(p.Value.Grad()); err != nil {
			return err
		}
		if err := p.Value.SetGrad(to); err != nil {
			return err
		}
	}
	return nil
}

// inBucket reports whether the gradient of a parameter is memory of its bucket.
func (m *Model) inBucket(i int) bool {
	view := m.pools.view(i)
	return view != nil && m.params[i].Value.Grad() == view
}

// takeOut gives a parameter a copy of its gradient where that is memory of its bucket, which is about to change.
func (m *Model) takeOut(i int) error {
	if !m.inBucket(i) {
		return nil
	}
	v := m.params[i].Value
	g, err := v.Grad().Clone()
	if err != nil {
		return err
	}
	return v.SetGrad(g)
}

// reset forgets the round that ended.
func (m *Model) reset() {
	m.round = round{ready: make([]bool, len(m.params))}
	m.pools.reset()
}

// onReady is called when a pass has accumulated the gradient of a parameter.
func (m *Model) onReady(ctx context.Context, pass *autograd.Pass, i int) error {
	failpoint.At("ddp.reducer.ready")
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.stage == forward: // which writes what the other cases read
		return m.fail(tooMany("ddp: backward", "a backward pass has begun during a forward"))
	case !m.round.armed && (m.mu.noSync || m.local):
		m.usage.accumulated[i] = true
		return nil
	case m.mu.err != nil:
		return m.mu.err
	case m.mu.stage == hooked, m.mu.stage == backward && m.mu.pass != pass:
		return m.fail(tooMany("ddp: backward",
			fmt.Sprintf("a gradient of %s comes from another pass than the one that is being reduced", m.params[i].Name)))
	case !m.round.armed:
		return cohort.Newf("ddp: backward", cohort.InvalidArgument,
			"a gradient of %s without a forward: call Forward before each backward pass", m.params[i].Name)
	case m.round.ready[i]:
		return m.fail(m.twice(i))
	}
	if m.mu.stage == idle {
		m.mu.stage, m.mu.pass = backward, pass
		if err := m.begin(ctx, pass); err != nil {
			return m.fail(err)
		}
		if m.round.ready[i] { // begin has taken it for unused
			return m.fail(m.twice(i))
		}
	}
	if m.config.static && m.usage.used == nil {
		m.round.ready[i] = true // reduced at the end of the pass, which finds out what it uses
		return nil
	}
	m.arrival.note(i)
	if err := m.mark(ctx, i, m.grad(i)); err != nil {
		return m.fail(err)
	}
	return nil
}

// grad returns the gradient that the running pass has for a parameter.
func (m *Model) grad(i int) autograd.Value { return m.round.grads.Gradient(m.params[i].Value) }

// begin is called with the first gradient of a pass.
func (m *Model) begin(ctx context.Context, pass *autograd.Pass) error {
	m.round.began = time.Now()
	m.round.grads, m.round.elsewhere = pass.Gradients(), pass.AccumulatesElsewhere()
	if m.round.elsewhere { // the pass uses the buckets, and leaves the parameters' own gradients alone
		for i := range m.params {
			if err := m.takeOut(i); err != nil {
				return err
			}
		}
	}
	m.config.hook.Emit(observe.Event{Kind: "ddp.backward", Phase: observe.Begin, Rank: m.g.Rank(), Group: m.g.Name()})
	if err := m.divisor(ctx); err != nil {
		return err
	}
	m.arrival.begin(m.usage.never)
	if m.config.static && m.usage.used == nil {
		pass.AtEnd(m.finishFirst)
		return nil
	}
	pass.AtEnd(m.finish)
	if m.config.findUnused {
		if err := m.usage.set(func(i int) bool { return m.usage.accumulated[i] || !slices.Contains(m.round.unused, i) }); err != nil {
			return err
		}
		clear(m.usage.accumulated)
	}
	for _, i := range m.round.unused {
		// A gradient that it has from passes without reduction counts, as in PyTorch. It stays what it is if no rank used the parameter.
		if err := m.takeOut(i); err != nil {
			return err
		}
		if err := m.mark(ctx, i, m.grad(i)); err != nil {
			return err
		}
	}
	return nil
}

// twice is the error of a parameter whose gradient comes when it has been reduced already.
func (m *Model) twice(i int) error {
	if m.config.static && slices.Contains(m.usage.never, i) {
		return cohort.Newf("ddp: backward", cohort.InvalidArgument,
			"Your training graph has changed in this iteration: the first pass did not use %s; leave out WithStaticGraph, and use "+
				"WithFindUnused on all ranks", m.params[i].Name)
	}
	return cohort.Newf("ddp: backward", cohort.InvalidArgument, "Expected to mark a variable ready only once: %s", m.params[i].Name)
}

// advice is what to do about a pass that does not use all parameters.
func (m *Model) advice() string {
	if m.config.static {
		return "Your training graph has changed in this iteration: the first pass used them; leave out WithStaticGraph, and use " +
			"WithFindUnused on all ranks"
	}
	return "use WithFindUnused on all ranks when a forward does not use all parameters"
}

// finishFirst ends the first pass over a static graph: what it did not use will not be used by any later one. As in
// PyTorch, who used what is reduced first, then all buckets.
func (m *Model) finishFirst(ctx context.Context) error {
	if err := m.reduceFirst(ctx); err != nil {
		return err
	}
	return m.finish(ctx)
}

func (m *Model) reduceFirst(ctx context.Context) error {
	failpoint.At("ddp.reducer.first")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.err != nil {
		return m.mu.err
	}
	got := m.round.ready
	m.round.ready = make([]bool, len(m.params))
	err := m.usage.set(func(i int) bool { return got[i] })
	if err != nil {
		return m.fail(err)
	}
	m.round.waitUsed = m.g.AllReduce(ctx, m.usage.used, group.Sum).Wait
	for i := range m.params {
		var grad autograd.Value
		if got[i] {
			grad = m.grad(i)
		} else {
			m.usage.never = append(m.usage.never, i)
			if err := m.takeOut(i); err != nil {
				return m.fail(err)
			}
		}
		if err := m.mark(ctx, i, grad); err != nil {
			return m.fail(err)
		}
	}
	return nil
}

// mark puts a gradient into its bucket and reduces all buckets whose turn it is.
func (m *Model) mark(ctx context.Context, i int, grad autograd.Value) error {
	m.round.ready[i] = true
	b, position := m.pools.of(i)
	if err := m.fill(b, position, grad); err != nil {
		return err
	}
	b.pending--
	invariants.Check(b.pending >= 0, "a bucket has no more gradients than parameters")
	for m.round.next < len(m.pools.buckets) && m.pools.buckets[m.round.next].pending == 0 {
		failpoint.At("ddp.reducer.reduce")
		if err := m.reduceNext(ctx); err != nil {
			return err
		}
	}
	if m.round.next == len(m.pools.buckets) && m.config.findUnused {
		m.round.waitUsed = m.g.AllReduce(ctx, m.usage.used, group.Sum).Wait
	}
	return nil
}

// reduceNext begins the reduction of the next bucket. A hook that does it may call methods of the model, so it runs without mu; the
// stage keeps others out meanwhile.
func (m *Model) reduceNext(ctx context.Context) error {
	b := m.pools.buckets[m.round.next]
	m.round.next++
	if m.config.comm == nil {
		b.wait = m.reduce(ctx, b)
		return nil
	}
	m.mu.stage = hooked
	func() {
		m.mu.Unlock()
		defer m.mu.Lock()
		b.wait = m.reduce(ctx, b)
	}()
	m.mu.stage = backward
	return m.mu.err
}

// fill puts a gradient into its bucket, where most have been computed already, divided unless the reduction does that. PyTorch
// multiplies dense gradients by a fraction and divides sparse ones, and so must everybody who reduces with it.
func (m *Model) fill(b *bucket, position int, grad autograd.Value) error {
	const op = "ddp: backward"
	name := m.params[b.params[position]].Name
	if b.data != nil {
		if grad.Sparse != nil {
			return cohort.Newf(op, cohort.NotSupported,
				"the gradient of %s is sparse, and the module does not say so: set nn.Param.Sparse", name)
		}
		factor := 1 / float64(m.divide)
		if m.config.comm != nil || m.operator(b) == group.Avg {
			factor = 1
		}
		view := b.views[position]
		if grad.Dense == view && factor == 1 {
			return nil
		}
		return scaleInto(view, grad.Dense, factor)
	}
	switch {
	case grad.IsNone():
		return cohort.Newf(op, cohort.InvalidArgument, "Expected sparse gradient to be defined: the pass did not use %s", name)
	case grad.Sparse == nil:
		return cohort.Newf(op, cohort.InvalidArgument, "Expected variable to have sparse gradient: that of %s is dense", name)
	}
	var err error
	b.sparse, err = sparseops.Map(grad.Sparse, func(v *tensor.Tensor) (*tensor.Tensor, error) {
		if m.config.comm != nil {
			return v.Clone() // a hook may change it
		}
		return tensorops.Binary(tensorops.Div, tensorops.Of(v), tensorops.Num(float64(m.divide)))
	})
	return err
}

// clear makes a bucket that of a rank that has nothing to add.
func (m *Model) clear(b *bucket) (err error) {
	if b.data != nil {
		return b.data.Fill(0)
	}
	v := m.params[b.params[0]].Value
	b.sparse, err = sparseops.Empty(v.DType(), v.Shape(), 1) // as that of a table
	return err
}

// finish waits for the reductions at the end of a pass and puts the means in place.
func (m *Model) finish(ctx context.Context) error {
	waits, err := m.begun()
	if err != nil {
		return err
	}
	for _, wait := range waits {
		failpoint.At("ddp.reducer.wait")
		if err = wait(ctx); err != nil {
			break
		}
	}
	failpoint.At("ddp.reducer.finish")
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil:
		return m.fail(err)
	case m.mu.err != nil: // another pass has come meanwhile, or the model was closed
		return m.mu.err
	}
	if err := m.putGrads(); err != nil {
		return m.fail(err)
	}
	m.reset()
	m.mu.stage, m.mu.pass = idle, nil
	return nil
}

// begun returns what waits for the reductions of a pass that has had all its gradients.
func (m *Model) begun() ([]wait, error) {
	failpoint.At("ddp.reducer.begun")
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.mu.err != nil:
		return nil, m.mu.err
	case m.round.next < len(m.pools.buckets):
		return nil, m.fail(cohort.Newf("ddp: backward", cohort.InvalidArgument,
			"the pass ended without gradients for %v: %s", m.missing(), m.advice()))
	}
	m.config.hook.Emit(observe.Event{
		Kind: "ddp.backward", Phase: observe.End, Rank: m.g.Rank(), Group: m.g.Name(),
		Dur: time.Since(m.round.began),
	})
	waits := m.notices
	m.notices = nil
	for _, b := range m.pools.buckets {
		waits = append(waits, b.wait)
	}
	if m.round.waitUsed != nil {
		waits = append(waits, m.round.waitUsed)
	}
	return waits, nil
}

// putGrads puts the means of all buckets in place.
func (m *Model) putGrads() error {
	var used []int32
	if m.usage.used != nil {
		var err error
		if used, err = tensor.Data[int32](m.usage.used); err != nil {
			return err
		}
	}
	for _, b := range m.pools.buckets {
		for j, k := range b.params {
			if used != nil && used[k] == 0 {
				continue // no rank used it: its gradient stays what it was
			}
			if err := m.putGrad(b, k, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// putGrad makes a mean the gradient of parameter i: without a copy, unless it is for a context, which may live longer than the
// contents of the bucket.
func (m *Model) putGrad(b *bucket, i, position int) error {
	mean := autograd.Value{Sparse: b.sparse}
	if b.sparse == nil {
		mean.Dense = b.views[position]
		if m.round.elsewhere {
			var err error
			if mean.Dense, err = mean.Dense.Clone(); err != nil {
				return err
			}
		}
	}
	return m.round.grads.SetGradient(m.params[i].Value, mean)
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"errors"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// join is what a model knows within [Model.Join].
type join struct {
	effective bool           // divide by the ranks that still train
	active    *tensor.Tensor // how many do, when the notice of this forward has arrived
	together  bool           // all ranks fail when one has run out of data
	uneven    error          // one has
}

// ErrUneven is what a [Model.Join] with [FailUneven] ends with on all ranks when one of them has run out of data.
var ErrUneven = errors.New("the ranks do not have the same number of steps")

// JoinOption changes [Model.Join].
type JoinOption interface{ applyJoin(*join) }

type joinOption func(*join)

func (f joinOption) applyJoin(j *join) { f(j) }

// DivideByActive divides gradients by the number of ranks that still have data instead of by the size of the group. It
// corresponds to divide_by_initial_world_size=False.
func DivideByActive() JoinOption { return joinOption(func(j *join) { j.effective = true }) }

// FailUneven ends [Model.Join] on all ranks when one of them has run out of data while others have not: its Join, and the next
// [Model.Forward] of the others, fail with [ErrUneven]. The ranks stay in step, so the model can be used afterwards. All
// ranks must use it. It costs one more reduction per step, and corresponds to throw_on_early_termination=True.
func FailUneven() JoinOption { return joinOption(func(j *join) { j.together = true }) }

// Join runs train, a loop that may take more steps on some ranks than on others. A rank whose loop has ended takes part
// in the reductions of the others, with zero gradients, until all have ended; then all ranks get the parameters of the
// rank that ended last. All ranks must call it. If train returns an error, Join returns it at once; the ranks are then
// out of step. It corresponds to DistributedDataParallel.join.
func (m *Model) Join(ctx context.Context, train func() error, opts ...JoinOption) error {
	const op = "ddp: join"
	switch {
	case m.failure() != nil:
		return m.failure()
	case m.joining != nil:
		return cohort.New(op, cohort.InvalidArgument, "Join within Join")
	case m.config.static:
		return cohort.New(op, cohort.NotSupported, "a model with WithStaticGraph")
	}
	m.joining = &join{}
	for _, o := range opts {
		if o != nil {
			o.applyJoin(m.joining)
		}
	}
	defer func() { m.joining, m.divide = nil, m.g.Size() }()
	if err := train(); err != nil {
		return err
	}
	if m.joining.uneven != nil { // train has kept it to itself
		return m.joining.uneven
	}
	failpoint.At("ddp.join.trained")
	m.mu.Lock()
	unfinished := m.mu.stage != idle
	m.mu.Unlock()
	if unfinished {
		return m.Prepare(ctx) // which says what is missing
	}
	err := m.shadow(ctx)
	failpoint.At("ddp.join.ended")
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failJoin(err)
}

// failure is why the model cannot be used, or nil.
func (m *Model) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}

// failJoin makes the model fail for good unless all ranks stopped together. The caller holds mu.
func (m *Model) failJoin(err error) error {
	if err == nil || m.joining != nil && m.joining.uneven != nil {
		return err
	}
	return m.fail(err)
}

// shadow takes part in the passes of ranks that still train.
func (m *Model) shadow(ctx context.Context) error {
	if err := m.settle(ctx); err != nil {
		return err
	}
	for i := range m.params { // the passes of the others use the buckets
		if err := m.takeOut(i); err != nil {
			return err
		}
	}
	for last := true; ; last = false {
		if err := m.notify(ctx, false); err != nil {
			return err
		}
		n, err := m.activeRanks(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			from, err := m.commonRank(ctx, last)
			if err != nil {
				return err
			}
			return m.takeFrom(ctx, from, m.state())
		}
		if err := m.endTogether(ctx, true); err != nil {
			return err
		}
		if err := m.shadowPass(ctx); err != nil {
			return err
		}
	}
}

// shadowPass takes part in one forward and backward pass.
func (m *Model) shadowPass(ctx context.Context) error {
	failpoint.At("ddp.join.shadow")
	if err := m.rebuild(ctx); err != nil {
		return err
	}
	if err := m.shareBuffers(ctx, false); err != nil {
		return err
	}
	sync, err := tensor.New(tensor.Float32, 1)
	if err != nil {
		return err
	}
	if err = m.g.AllReduce(ctx, sync, group.Sum).Wait(ctx); err != nil {
		return err
	}
	count, err := tensor.Data[float32](sync)
	if err != nil {
		return err
	}
	m.sharing = count[0] != 0
	if !m.sharing { // the others only accumulate
		return nil
	}
	_ = m.enter(backward)
	defer func() { _ = m.enter(idle) }()
	var waits []wait
	for _, b := range m.pools.buckets {
		if err = m.clear(b); err != nil {
			return err
		}
		_ = m.enter(hooked)
		waits = append(waits, m.reduce(ctx, b))
		if err = m.enter(backward); err != nil { // of what the hook called
			return err
		}
	}
	if m.config.findUnused {
		none, err := tensor.New(tensor.Int32, len(m.params))
		if err != nil {
			return err
		}
		waits = append(waits, m.g.AllReduce(ctx, none, group.Sum).Wait)
	}
	for _, wait := range waits {
		failpoint.At("ddp.join.wait")
		if err := wait(ctx); err != nil {
			return err
		}
	}
	if !m.arrival.rebuilt && len(m.arrival.order) == 0 { // no pass of this rank's own has seen an order
		for i := range m.params {
			m.arrival.note(i)
		}
	}
	return nil
}

// enter sets what the model is doing, and returns why it cannot be used.
func (m *Model) enter(s stage) error {
	failpoint.At("ddp.enter")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.stage = s
	return m.mu.err
}

// notify counts the ranks that still train: before each forward, and before each pass of others.
func (m *Model) notify(ctx context.Context, active bool) error {
	if m.joining == nil {
		return nil
	}
	if m.joining.uneven != nil {
		return m.joining.uneven // the others have stopped, too
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	var err error
	if m.joining.active, err = m.count(ctx, active); err != nil || !active {
		return err
	}
	return m.endTogether(ctx, false)
}

// endTogether fails on all ranks if one of them has run out of data, and none may run out before the others.
func (m *Model) endTogether(ctx context.Context, ranOut bool) error {
	const op = "ddp: join"
	if !m.joining.together {
		return nil
	}
	failpoint.At("ddp.join.together")
	ended, err := m.count(ctx, ranOut)
	if err != nil {
		return err
	}
	n, err := m.counted(ctx, ended)
	switch {
	case err != nil:
		return err
	case ranOut:
		m.joining.uneven = cohort.Newf(op, cohort.Mismatch, "%w: rank %d exhausted all inputs before the others", ErrUneven, m.g.Rank())
	case n > 0:
		m.joining.uneven = cohort.Newf(op, cohort.Mismatch, "%w: %d of %d ranks exhausted their inputs, and this one has more",
			ErrUneven, n, m.g.Size())
	}
	return m.joining.uneven
}

// notifySync says whether this rank's next pass reduces.
func (m *Model) notifySync(ctx context.Context) error {
	if m.joining == nil {
		return nil
	}
	failpoint.At("ddp.join.sync")
	m.mu.Lock()
	reduces := !m.mu.noSync
	m.mu.Unlock()
	_, err := m.count(ctx, reduces)
	return err
}

// count begins a count of the ranks that say yes.
func (m *Model) count(ctx context.Context, yes bool) (*tensor.Tensor, error) {
	number := float32(0)
	if yes {
		number = 1
	}
	t, err := tensor.From([]float32{number})
	if err != nil {
		return nil, err
	}
	m.notices = append(m.notices, m.g.AllReduce(ctx, t, group.Sum).Wait)
	return t, nil
}

// settle waits for counts that were begun.
func (m *Model) settle(ctx context.Context) error {
	waits := m.notices
	m.notices = nil
	for _, wait := range waits {
		if err := wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) activeRanks(ctx context.Context) (int, error) {
	return m.counted(ctx, m.joining.active)
}

// counted waits for a count that was begun.
func (m *Model) counted(ctx context.Context, count *tensor.Tensor) (int, error) {
	if err := m.settle(ctx); err != nil {
		return 0, err
	}
	n, err := tensor.Data[float32](count)
	if err != nil {
		return 0, err
	}
	return int(n[0]), nil
}

// divisor sets what the gradients of the pass that begins are divided by.
func (m *Model) divisor(ctx context.Context) error {
	if m.joining == nil || !m.joining.effective {
		return nil
	}
	n, err := m.activeRanks(ctx)
	if err != nil {
		return err
	}
	m.divide = max(1, n)
	return nil
}

// commonRank agrees on one of the ranks that offer themselves: the highest.
func (m *Model) commonRank(ctx context.Context, offer bool) (cohort.Rank, error) {
	own := int64(-1)
	if offer {
		own = int64(m.g.Rank())
	}
	highest := []int64{own}
	if err := group.AllReduceSlice(ctx, m.g, highest, group.Max); err != nil {
		return 0, err
	}
	if highest[0] < 0 || highest[0] >= int64(m.g.Size()) {
		return 0, cohort.Newf("ddp: join", cohort.Protocol, "no rank to take the model from: %d", highest[0])
	}
	return cohort.Rank(highest[0]), nil
}

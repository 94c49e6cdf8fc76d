// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	"slices"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/tensor"
)

// join is what a model knows within [Model.Join].
type join struct {
	effective bool           // divide by the ranks that still train
	active    *tensor.Tensor // how many do, when the notice of this forward has arrived
}

// JoinOption changes [Model.Join].
type JoinOption interface{ applyJoin(*join) }

type joinOption func(*join)

func (f joinOption) applyJoin(j *join) { f(j) }

// DivideByActive divides gradients by the number of ranks that still have data instead of by the size of the group. It
// corresponds to divide_by_initial_world_size=False.
func DivideByActive() JoinOption { return joinOption(func(j *join) { j.effective = true }) }

// Join runs train, a loop that may take more steps on some ranks than on others. A rank whose loop has ended takes part
// in the reductions of the others, with zero gradients, until all have ended; then all ranks get the parameters of the
// rank that ended last. All ranks must call it. If train returns an error, Join returns it at once; the ranks are then
// out of step. It corresponds to DistributedDataParallel.join.
func (m *Model) Join(ctx context.Context, train func() error, opts ...JoinOption) error {
	const op = "ddp: join"
	switch {
	case m.err != nil:
		return m.err
	case m.joining != nil:
		return dist.New(op, dist.InvalidArgument, "Join within Join")
	case m.config.static:
		return dist.New(op, dist.NotSupported, "a model with WithStaticGraph")
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
	if m.running {
		return m.Prepare(ctx) // which says what is missing
	}
	if err := m.shadow(ctx); err != nil {
		return m.fail(err)
	}
	return nil
}

// shadow takes part in the passes of ranks that still train.
func (m *Model) shadow(ctx context.Context) error {
	if err := m.settle(ctx); err != nil {
		return err
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
			if m.config.keepBuffers {
				return m.takeFrom(ctx, from, m.all)
			}
			return m.takeFrom(ctx, from, slices.Concat(m.all, m.buffers))
		}
		if err := m.shadowPass(ctx); err != nil {
			return err
		}
	}
}

// shadowPass takes part in one forward and backward pass.
func (m *Model) shadowPass(ctx context.Context) error {
	moment.At("ddp.join.shadow")
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
	var waits []wait
	for _, b := range m.buckets {
		if err = b.data.Fill(0); err != nil {
			return err
		}
		waits = append(waits, m.reduce(ctx, b))
	}
	if m.config.findUnused {
		none, err := tensor.New(tensor.Int32, len(m.params))
		if err != nil {
			return err
		}
		waits = append(waits, m.g.AllReduce(ctx, none, group.Sum).Wait)
	}
	for _, wait := range waits {
		moment.At("ddp.join.wait")
		if err := wait(ctx); err != nil {
			return err
		}
	}
	if !m.rebuilt && len(m.order) == 0 { // no pass of this rank's own has seen an order
		for i := range m.params {
			m.order = append(m.order, i)
		}
	}
	return nil
}

// notify counts the ranks that still train: before each forward, and before each pass of others.
func (m *Model) notify(ctx context.Context, active bool) error {
	if m.joining == nil {
		return nil
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	var err error
	m.joining.active, err = m.count(ctx, active)
	return err
}

// notifySync says whether this rank's next pass reduces.
func (m *Model) notifySync(ctx context.Context) error {
	if m.joining == nil {
		return nil
	}
	_, err := m.count(ctx, !m.noSync)
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
	if err := m.settle(ctx); err != nil {
		return 0, err
	}
	n, err := tensor.Data[float32](m.joining.active)
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
func (m *Model) commonRank(ctx context.Context, offer bool) (int, error) {
	own := int64(-1)
	if offer {
		own = int64(m.g.Rank())
	}
	highest := []int64{own}
	if err := group.AllReduceSlice(ctx, m.g, highest, group.Max); err != nil {
		return 0, err
	}
	if highest[0] < 0 || highest[0] >= int64(m.g.Size()) {
		return 0, dist.Newf("ddp: join", dist.Protocol, "no rank to take the model from: %d", highest[0])
	}
	return int(highest[0]), nil
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/bootstrap"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/group/opsched"
	"github.com/cohort-dist/cohort/internal/group/subgroup"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// membership is where a group stands in the series of groups that reconfigurations make.
type membership struct {
	stable int   // the rank that was given to New
	uuid   int64 // of the reconfiguration that made the group, -1 before the first
	addr   string
}

// Handle returns the string that identifies this rank in the list for [Group.Reconfigure], or "" for a group that was not
// made with [WithReconfigure]. It changes with every reconfiguration. The format is PyTorch's, so a list can hold handles
// of Go and PyTorch ranks.
//
// It corresponds to torch.distributed._get_reconfigure_handle.
func (g *Group) Handle() string {
	if g == nil {
		return ""
	}
	if g.lineage.membership == nil {
		return ""
	}
	return g.handle().String()
}

func (g *Group) handle() subgroup.GroupHandle {
	m := g.lineage.membership
	return subgroup.GroupHandle{Rank: g.rank, UUID: m.uuid, Stable: m.stable, Addr: m.addr}
}

// checkReconfigure refuses what does not go together with changing members, as PyTorch does.
func (c *config) checkReconfigure(op string) error {
	switch said := c.Said(); {
	case !said.None() && said.Low < torchcaps.V2_14:
		return cohort.Newf(op, cohort.NotSupported, "a group with %v ranks cannot be reconfigured: it needs PyTorch 2.14", said)
	case c.Detail:
		return cohort.New(op, cohort.NotSupported, "a group whose operations are checked beforehand ("+collective.DebugVariable+
			"=DETAIL or WithDetail) cannot be reconfigured, in PyTorch either")
	}
	return nil
}

// unconnected returns a group that waits for its first reconfiguration.
func unconnected(p *plan) *Group {
	p.membership = &membership{stable: p.form.Rank, uuid: -1, addr: bootstrap.AddrOf(p.form.Store)}
	p.complete()
	g := p.newGroup(bootstrap.Unconnected(&p.form))
	g.mu.failure = errUnconnected
	_, _ = g.mu.sched.Fail()
	g.start(p)
	return g
}

// errUnconnected is the failure of a group that was never connected.
var errUnconnected = cohort.New("group", cohort.Aborted,
	"the group has no members yet: it was made with WithReconfigure, so call Reconfigure first")

// Reconfigure makes the group that follows g, with other members: g's place in handles is the rank in it. All members call it with
// the same list and a uuid that was never used with this store. It returns when all of them are connected; then g is closed, and so are
// the sub-groups that were made from it. g may have failed before, by the death of a rank, say: that rank is left out of the list.
//
// When it fails, g does not work any more, but can be reconfigured again, with a new uuid: some of the ranks may have gone
// further than others. (An invalid list changes nothing, and g stays usable.)
//
// Members may be Go and PyTorch processes, and the transport is chosen anew each time, as in [New]. It corresponds to
// torch.distributed._reconfigure of PyTorch 2.14, which changes the group in place.
func (g *Group) Reconfigure(ctx context.Context, uuid int64, handles []string) (*Group, error) {
	if g == nil {
		return nil, errNil
	}
	const op = "group: reconfigure"
	rank, err := g.placeIn(op, uuid, handles)
	if err != nil {
		return nil, err
	}
	left, err := g.beginChange(op)
	if left {
		p := g.successorPlan(uuid, rank, handles)
		p.form.Decline(ctx, handles)
		p.family.close()
	}
	if err != nil {
		return nil, err
	}
	next, err := g.successor(ctx, g.successorPlan(uuid, rank, handles), handles)
	failpoint.At("group.reconfigure.made")
	g.mu.Lock()
	g.mu.changing = err == nil // then for ever: it has a successor
	closed := g.closedLocked()
	g.mu.followed = err == nil && !closed
	g.mu.Unlock()
	if err == nil && closed {
		_ = next.Close()
	}
	if closed && (err == nil || ctx.Err() == nil) {
		err = cohort.New(op, cohort.Closed, "the group was closed while it was reconfigured")
	}
	if err != nil {
		if !closed {
			e := cohort.Wrap(op, cohort.Unavailable, err)
			e.Detail = "reconfiguration " + strconv.FormatInt(uuid, 10) + " failed (" + err.Error() +
				"); reconfigure again, with another uuid"
			g.fail(e)
		}
		return nil, err
	}
	_ = g.Close()
	return next, nil
}

// placeIn checks the arguments of Reconfigure and returns the new rank.
func (g *Group) placeIn(op string, uuid int64, handles []string) (int, error) {
	if g.lineage.membership == nil {
		return 0, cohort.New(op, cohort.NotSupported, "the group was not made with WithReconfigure")
	}
	if uuid < 0 {
		return 0, cohort.Newf(op, cohort.InvalidArgument, "uuid %d: want one from 0 on", uuid)
	}
	return g.handle().PlaceIn(op, handles)
}

// closedLocked reports whether Close was called.
func (g *Group) closedLocked() bool { return g.mu.sched.State() == opsched.Closed }

// beginChange keeps others from reconfiguring the group at the same time. left says that it was closed without a successor.
func (g *Group) beginChange(op string) (left bool, err error) {
	failpoint.At("group.reconfigure.begin")
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closedLocked():
		return !g.mu.changing, cohort.New(op, cohort.Closed, "the group was closed: reconfigure the one that its last Reconfigure returned")
	case g.mu.changing:
		return false, cohort.New(op, cohort.InvalidArgument, "the group is being reconfigured already")
	}
	g.mu.changing = true
	return false, nil
}

// successor makes the next group.
func (g *Group) successor(ctx context.Context, p *plan, handles []string) (*Group, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(g.life.ctx, func() { cancel(context.Cause(g.life.ctx)) })
	defer stop()
	limited, end := context.WithTimeout(ctx, g.config.ConnectTimeout)
	defer end()
	p.family.answer(p.config.Logger)
	if err := p.form.Claim(limited, handles); err != nil {
		p.family.close()
		return nil, err
	}
	return p.makeFirst(limited)
}

// successorPlan plans the next group.
func (g *Group) successorPlan(uuid int64, rank int, handles []string) *plan {
	f := newFamily(g.lineage.store, len(handles))
	failpoint.At("group.reconfigure.family")
	g.lineage.family.mu.Lock()
	f.mu.names.Groups = g.lineage.family.mu.names.Groups
	g.lineage.family.mu.Unlock()
	m := *g.lineage.membership
	former := bootstrap.Former{Place: g.formed.Place, Ranks: subgroup.RanksIn(m.uuid, handles)}
	m.uuid = uuid
	p := &plan{
		config: g.config, family: f, membership: &m,
		form: bootstrap.Plan{
			Store: g.lineage.store, Rank: rank, Globals: f.world, TorchName: g.lineage.torchName,
			Origin: bootstrap.FromReconfigure, UUID: uuid, Former: former,
		},
	}
	p.config.timeout = g.Timeout()
	p.complete()
	return p
}

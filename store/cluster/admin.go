// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlink"
)

// Request answers a request of an administrator.
func (h peerHandler) Request(ctx context.Context, doc []byte) []byte {
	var r request
	if err := printable.Unmarshal(doc, &r); err != nil {
		return encode(failure(cohort.Newf("cluster", cohort.Protocol, "the request cannot be read: %w", err)))
	}
	return encode(h.member.request(ctx, r))
}

func failure(err error) answer { return answer{Error: err.Error(), Code: cohort.CodeOf(err).String()} }

func (m *Member) request(ctx context.Context, r request) answer {
	s := m.Status()
	switch r.Op {
	case opStatus:
		return answer{Status: &s, Leader: leaderAddr(s)}
	case opJoin:
		return m.joining(r.Name)
	}
	if !s.Leading {
		a := failure(ErrNotLeader)
		a.Leader = leaderAddr(s)
		return a
	}
	var err error
	switch r.Op {
	case opAdd:
		err = m.change(ctx, membercore.Change{
			Kind: membercore.Add, Member: membercore.Member{ID: random()>>1 | 1, Name: r.Name, Addr: r.Addr},
		})
	case opRemove:
		err = m.remove(ctx, r.Name)
	case opTransfer:
		err = m.transfer(ctx, r.Name)
	default:
		err = cohort.Newf("cluster", cohort.NotSupported, "this member does not know the request %q: upgrade it", r.Op)
	}
	if err != nil {
		return failure(err)
	}
	s = m.Status()
	return answer{Status: &s}
}

func leaderAddr(s Status) string {
	for _, member := range s.Members {
		if member.Name == s.Leader {
			return member.Addr
		}
	}
	return ""
}

// joining tells a new member who it is.
func (m *Member) joining(name string) answer {
	member, err := m.named(name)
	if err != nil {
		return failure(err)
	}
	return answer{ID: member.ID, Addr: member.Addr, Cluster: m.cluster[:], Members: *m.known.Load()}
}

func (m *Member) named(name string) (membercore.Member, error) {
	for _, member := range *m.known.Load() {
		if member.Name == name {
			return member, nil
		}
	}
	return membercore.Member{}, cohort.Newf("cluster", cohort.NotFound, "the cluster has no member %q", name)
}

// change changes the members. A second change waits until the first has happened.
func (m *Member) change(ctx context.Context, c membercore.Change) error {
	for {
		err := m.wait(ctx, "cluster: change members", func(done func(error)) {
			err := m.post(ctx, func(machine *membercore.Machine) {
				m.number++
				m.waiting[m.number] = done
				machine.Change(m.number, c)
			})
			if err != nil {
				done(err)
			}
		})
		if !errors.Is(err, ErrBusy) || ctx.Err() != nil {
			return err
		}
		pause(ctx, membercore.TickEvery)
	}
}

func (m *Member) remove(ctx context.Context, name string) error {
	member, err := m.named(name)
	if err != nil {
		return err
	}
	return m.change(ctx, membercore.Change{Kind: membercore.Remove, Member: member})
}

func (m *Member) transfer(ctx context.Context, name string) error {
	to := uint64(0)
	if name != "" {
		member, err := m.named(name)
		if err != nil {
			return err
		}
		to = member.ID
	}
	return m.post(ctx, func(machine *membercore.Machine) { machine.Transfer(to) })
}

// Describe asks members for the status of their cluster, the leader's if there is one.
func Describe(ctx context.Context, addrs []string, config *tls.Config) (Status, error) {
	var a answer
	if err := ask(ctx, addrs, config, request{Op: opStatus}, &a); err != nil {
		return Status{}, cohort.Wrap("cluster: describe", cohort.CodeOf(err), err)
	}
	if a.Leader != "" && !a.Status.Leading {
		var better answer
		if ask(ctx, []string{a.Leader}, config, request{Op: opStatus}, &better) == nil {
			a = better
		}
	}
	return *a.Status, nil
}

// Add tells a cluster of a new member. Start it then, with an empty folder and [Config].Join; when it has caught up it gets a vote.
func Add(ctx context.Context, addrs []string, config *tls.Config, peer Peer) error {
	return command(ctx, addrs, config, request{Op: opAdd, Name: peer.Name, Addr: peer.Addr})
}

// Remove removes a member. A leader hands over before.
func Remove(ctx context.Context, addrs []string, config *tls.Config, name string) error {
	return command(ctx, addrs, config, request{Op: opRemove, Name: name})
}

// Transfer hands the lead to a member, and returns when that leads.
func Transfer(ctx context.Context, addrs []string, config *tls.Config, name string) error {
	for {
		if err := command(ctx, addrs, config, request{Op: opTransfer, Name: name}); err != nil {
			return err
		}
		for range transferLooks {
			if s, err := Describe(ctx, addrs, config); err == nil && s.Leader == name && s.Leading {
				return nil
			}
			pause(ctx, askPause/5)
		}
	}
}

// transferLooks is how often Transfer looks before it asks again: raft gives up a transfer that takes longer than an election.
const transferLooks = 50

func command(ctx context.Context, addrs []string, config *tls.Config, r request) error {
	err := ask(ctx, addrs, config, r, &answer{})
	if err != nil {
		return cohort.Wrap("cluster: "+r.Op, cohort.CodeOf(err), err)
	}
	return nil
}

// askPause is between two rounds through the members when none of them leads.
const askPause = 100 * time.Millisecond

// ask asks the members in turn until one answers, and the leader if a member says that it has to be that one. It goes on as long as no
// member leads, and at least once through all of them.
func ask(ctx context.Context, addrs []string, config *tls.Config, r request, into *answer) (err error) {
	err = cohort.New("cluster", cohort.InvalidArgument, "name the address of a member to ask")
	for next := addrs; len(next) > 0; {
		addr := next[0]
		next = next[1:]
		*into = answer{}
		var doc []byte
		if doc, err = memberlink.Request(ctx, addr, config, encode(r)); err == nil {
			err = printable.Unmarshal(doc, into)
		}
		switch {
		case ctx.Err() != nil:
			return cohort.FromContext(ctx, "cluster: "+r.Op)
		case err != nil:
			err = cohort.Newf("cluster", cohort.Unavailable, "member at %s: %w", addr, err)
		case into.Error == "" && (into.Status != nil || r.Op == opJoin):
			return nil
		case into.Leader != "" && into.Leader != addr:
			next = append([]string{into.Leader}, next...)
			pause(ctx, askPause/10)
			continue
		default:
			err = refusedBy(addr, into)
		}
		if len(next) == 0 && into.Code == cohort.Unavailable.String() {
			pause(ctx, askPause)
			next = addrs
		}
	}
	return err
}

func refusedBy(addr string, a *answer) error {
	var code cohort.Code
	if code.UnmarshalText([]byte(a.Code)) != nil {
		code = cohort.Remote
	}
	return cohort.New("cluster", code, fmt.Sprintf("member at %s: %s", addr, a.Error))
}

// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store"
)

// ID identifies a member. Every process that joins gets another one, and IDs are not used again. It is not the member's
// rank, which changes from round to round.
type ID int64

// String returns the ID as a decimal number.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// Member is a process that takes part, or waits for its turn as a spare. Use its methods from one goroutine.
type Member struct {
	store  store.Store
	id     ID
	repeat time.Duration // of questions that are not answered
	round  atomic.Int64  // the last one, -1 before the first
	end    context.CancelFunc
	beats  sync.WaitGroup
	group  *group.Group // the present one; nil before the first call of Group
}

// Join announces this process as a member. From then on it gives signs of life to the [Coordinator], until
// [Member.Close]. ctx bounds only the call itself.
func Join(ctx context.Context, s store.Store, opts ...MemberOption) (*Member, error) {
	const op = "elastic: join"
	if s == nil {
		return nil, cohort.New(op, cohort.InvalidArgument, "no store")
	}
	c := newConfig(opts, MemberOption.applyMember)
	m := &Member{store: store.Prefix(c.prefix, s), repeat: c.silence}
	if m.id = c.id; c.id < 0 {
		n, err := m.store.Add(ctx, membersKey, 1)
		if err != nil {
			return nil, cohort.Wrap(op, cohort.Unavailable, err)
		}
		m.id = ID(n - 1)
	}
	m.round.Store(-1)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	m.end = end
	m.beats.Go(func() { m.beat(life, min(time.Second, c.silence/4)) })
	return m, nil
}

// beat gives signs of life.
func (m *Member) beat(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	for {
		failpoint.At("elastic.member.beat")
		_, _ = m.store.Add(ctx, aliveKey(m.id), 1) // a store that is back hears the next one
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ID returns the member's ID. [Member.Group] uses it as the rank for [group.New], so that handles differ; so does a program that calls that
// itself.
func (m *Member) ID() ID { return m.id }

// String names the member.
func (m *Member) String() string { return "elastic.Member(" + m.id.String() + ")" }

// Next asks for the round that this process takes part in, and waits for it; a spare waits until it is needed. [Member.Group] does that and
// makes the group. handle is
// the present one of its group. Call it at the start, after an operation or a reconfiguration has failed, and when
// [Member.Over] reports true.
//
// It returns [cohort.Aborted] when the coordinator has ended the job, and [cohort.Closed] when all members have finished.
func (m *Member) Next(ctx context.Context, handle string) (Round, error) {
	a, err := m.ask(ctx, question{Member: m.id, Handle: handle})
	switch {
	case err != nil:
		return Round{}, err
	case a.Error != "":
		return Round{}, cohort.New("elastic: next", cohort.Aborted, a.Error)
	case a.Round == nil:
		return Round{}, cohort.New("elastic: next", cohort.Closed, "all members have finished")
	}
	m.round.Store(a.UUID)
	return *a.Round, nil
}

// Done reports that this process has finished its work. It waits until all members of the round have finished too, or
// continue without it.
func (m *Member) Done(ctx context.Context) error {
	a, err := m.ask(ctx, question{Member: m.id, Done: true})
	if err == nil && a.Error != "" {
		err = cohort.New("elastic: done", cohort.Aborted, a.Error)
	}
	return err
}

// errAgain says that a question was not answered in time.
var errAgain = errors.New("no answer yet")

// ask repeats a question until it is answered: a coordinator that has received nothing from this process for a while,
// or that was started again, has forgotten the question. The last one counts.
func (m *Member) ask(ctx context.Context, q question) (a answer, err error) {
	for {
		if a, err = m.askOnce(ctx, q); !errors.Is(err, errAgain) {
			return a, err
		}
		// A question that crossed the end of the job is not answered.
		ended, err := m.store.Check(ctx, endKey)
		if err != nil {
			return a, m.failed(ctx, "elastic: ask", err)
		}
		if ended {
			return m.read(ctx, endKey)
		}
	}
}

func (m *Member) read(ctx context.Context, key string) (a answer, err error) {
	raw, err := m.store.Get(ctx, key)
	if err != nil {
		return a, m.failed(ctx, "elastic: ask", err)
	}
	if err = printable.Unmarshal(raw, &a); err != nil {
		return a, cohort.Wrap("elastic: ask", cohort.Protocol, err)
	}
	return a, nil
}

// askOnce asks under its own number. An answer that it has read it deletes, so that the coordinator knows which question is a repetition.
func (m *Member) askOnce(ctx context.Context, q question) (a answer, err error) {
	const op = "elastic: ask"
	data, err := json.Marshal(q)
	if err != nil {
		return a, cohort.Wrap(op, cohort.Internal, err)
	}
	failpoint.At("elastic.member.ask")
	n, err := m.store.Add(ctx, "asks", 1)
	if err != nil {
		return a, m.failed(ctx, op, err)
	}
	failpoint.At("elastic.member.set")
	if err = m.store.Set(ctx, askKey(n), data); err != nil {
		return a, m.failed(ctx, op, err)
	}
	limited, cancel := context.WithTimeout(ctx, m.repeat)
	defer cancel()
	err = m.store.Wait(limited, answerKey(n))
	if err != nil && ctx.Err() == nil && (limited.Err() != nil || errors.Is(err, store.ErrTimeout)) {
		return a, errAgain
	}
	if err != nil {
		return a, m.failed(ctx, op, err)
	}
	if a, err = m.read(ctx, answerKey(n)); err != nil {
		return a, err
	}
	_, err = m.store.Delete(ctx, answerKey(n))
	if err != nil {
		return a, m.failed(ctx, op, err)
	}
	return a, nil
}

func (m *Member) failed(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		e := cohort.Ended(ctx, op)
		e.Detail = "the coordinator has not answered"
		return e
	}
	return cohort.Wrap(op, cohort.Unavailable, err)
}

// Over reports whether the round has ended, because another member has failed or a new one is to be taken in. Members
// call it at different moments, and if one of them leaves alone, the others wait for it in their next operation until
// that times out. So let all of them leave after the same step: put the answer into something that they reduce anyway, as
// examples/reconfigure does. A member that does not call it notices the end when its operations fail.
func (m *Member) Over(ctx context.Context) (bool, error) {
	round := m.round.Load()
	if round < 0 {
		return false, nil
	}
	over, err := m.store.Check(ctx, overKey(round))
	if err != nil {
		return false, m.failed(ctx, "elastic: over", err)
	}
	return over, nil
}

// Close ends the heartbeats, and closes the group that [Member.Group] has made. A member that has not called [Member.Done] is then
// declared dead.
func (m *Member) Close() error {
	m.end()
	m.beats.Wait()
	if m.group == nil {
		return nil
	}
	return m.group.Close()
}

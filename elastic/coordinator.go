// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/store"
)

// Limits on what members may ask.
const (
	maxQuestion = 4 << 10
	maxMembers  = 1 << 14
	// holeLimit is how long a question that was numbered may take to appear: its member may have died in between.
	holeLimit = time.Minute
)

// Coordinator decides which members are in the group. Run it in one process.
type Coordinator struct {
	store  store.Store
	config config
	desk   *desk

	seen   int64               // questions that were looked at
	holes  map[int64]time.Time // questions that were numbered and are not there yet
	signs  map[int64]sign      // by member
	timers map[int]time.Time
	over   []int64 // rounds whose end is still noted in the store
	ended  bool
	why    string // the job ended, "" if all members finished
}

// sign is the last sign of life of a member.
type sign struct {
	count int64
	at    time.Time
}

// New returns a coordinator for groups of low to high members, which find it through s. Start it with [Coordinator.Run].
func New(s store.Store, low, high int, opts ...Option) (*Coordinator, error) {
	const op = "elastic: new"
	c := newConfig(opts)
	switch {
	case s == nil:
		return nil, dist.New(op, dist.InvalidArgument, "no store")
	case low < 1 || high < low || high > maxMembers:
		return nil, dist.Newf(op, dist.InvalidArgument, "%d to %d members: the first must be at least 1, and at most the second, which may be %d at most", low, high, maxMembers)
	case c.silence <= 0 || c.patience <= 0 || c.join <= 0 || c.lastCall < 0 || c.failures < 0:
		return nil, dist.New(op, dist.InvalidArgument, "silence, patience and join timeout must be positive, last call and failures not negative")
	}
	c.low, c.high = low, high
	c.poll = min(c.poll, c.silence/10)
	return &Coordinator{
		store: store.Prefix(c.prefix, s), config: c, holes: map[int64]time.Time{}, signs: map[int64]sign{}, timers: map[int]time.Time{},
	}, nil
}

// String says what the coordinator is for.
func (c *Coordinator) String() string {
	return fmt.Sprintf("elastic.Coordinator(%d to %d members)", c.config.low, c.config.high)
}

// Run answers members until all of them have finished, which is nil, until too many rounds have failed or too few members are left, or
// until ctx ends. Members that still wait are told.
func (c *Coordinator) Run(ctx context.Context) error {
	const op = "elastic: coordinator"
	epoch, err := c.store.Add(ctx, "epochs", 1)
	if err != nil {
		return dist.Wrap(op, dist.Unavailable, err)
	}
	if _, err = c.store.Delete(ctx, endKey); err != nil { // of an earlier job
		return dist.Wrap(op, dist.Unavailable, err)
	}
	// What an earlier coordinator has not answered is this one's.
	c.desk = newDesk(epoch, c.config)
	err = c.perform(ctx, c.desk.start())
	tick := time.NewTicker(c.config.poll)
	defer tick.Stop()
	for err == nil && !c.ended {
		moment.At("elastic.coordinator.look")
		if err = c.look(ctx); err != nil || c.ended {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return dist.Ended(op, ctx)
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return dist.Ended(op, ctx)
	case err != nil:
		return dist.Wrap(op, dist.Unavailable, err)
	case c.why != "":
		return dist.New(op, dist.Aborted, c.why)
	}
	return nil
}

// look finds out what has happened.
func (c *Coordinator) look(ctx context.Context) error {
	if err := c.lookForQuestions(ctx); err != nil || c.ended {
		return err
	}
	if err := c.lookForSigns(ctx); err != nil || c.ended {
		return err
	}
	now := time.Now()
	for _, id := range slices.Sorted(maps.Keys(c.timers)) {
		if now.Before(c.timers[id]) {
			continue
		}
		delete(c.timers, id)
		if err := c.perform(ctx, c.desk.fired(id)); err != nil || c.ended {
			return err
		}
	}
	return nil
}

func (c *Coordinator) lookForQuestions(ctx context.Context) error {
	numbered, err := c.store.Add(ctx, "asks", 0)
	if err != nil {
		return err
	}
	now := time.Now()
	for c.seen < numbered && len(c.holes) < maxMembers {
		c.seen++
		c.holes[c.seen] = now
	}
	for _, n := range slices.Sorted(maps.Keys(c.holes)) {
		q, there, err := c.read(ctx, n)
		if err != nil {
			return err
		}
		if there || now.Sub(c.holes[n]) > holeLimit {
			delete(c.holes, n)
		}
		if q == nil {
			continue
		}
		if _, known := c.signs[q.Member]; !known {
			c.signs[q.Member] = sign{at: now}
		}
		if err := c.perform(ctx, c.desk.asked(n, *q)); err != nil || c.ended {
			return err
		}
	}
	return nil
}

func (c *Coordinator) lookForSigns(ctx context.Context) error {
	for _, member := range slices.Sorted(maps.Keys(c.signs)) {
		count, err := c.store.Add(ctx, "alive/"+strconv.FormatInt(member, 10), 0)
		if err != nil {
			return err
		}
		last := c.signs[member]
		if count != last.count {
			c.signs[member] = sign{count: count, at: time.Now()}
			continue
		}
		if time.Since(last.at) <= c.config.silence {
			continue
		}
		delete(c.signs, member)
		c.config.logger.Warn("a member has not been heard of", slog.Int64("member", member), slog.Duration("silence", time.Since(last.at)))
		if err := c.perform(ctx, c.desk.silent(member)); err != nil || c.ended {
			return err
		}
	}
	return nil
}

// read returns a question. nil means that there is one that nobody can read.
func (c *Coordinator) read(ctx context.Context, n int64) (q *question, there bool, err error) {
	key := "ask/" + strconv.FormatInt(n, 10)
	if there, err = c.store.Check(ctx, key); err != nil || !there {
		return nil, false, err
	}
	raw, err := c.store.Get(ctx, key)
	if err != nil {
		return nil, false, err
	}
	if _, err = c.store.Delete(ctx, key); err != nil {
		return nil, false, err
	}
	q = new(question)
	if len(raw) > maxQuestion || json.Unmarshal(raw, q) != nil || q.Member < 0 || q.Handle == "" && !q.Done {
		c.config.logger.Warn("a question cannot be read", slog.Int64("number", n))
		return nil, true, c.write(ctx, n, answer{Error: "the question cannot be read: want {\"member\": 0, \"handle\": \"gloo:...\"}"})
	}
	return q, true, nil
}

func (c *Coordinator) write(ctx context.Context, n int64, a answer) error {
	return c.set(ctx, "answer/"+strconv.FormatInt(n, 10), a)
}

func (c *Coordinator) set(ctx context.Context, key string, a answer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return c.store.Set(ctx, key, data)
}

// overKept is how many ends of rounds stay in the store: a member looks for that of its own.
const overKept = 16

func (c *Coordinator) perform(ctx context.Context, e effects) error {
	for _, uuid := range e.over {
		moment.At("elastic.coordinator.over")
		if err := c.store.Set(ctx, overKey(uuid), []byte("1")); err != nil {
			return err
		}
		c.over = append(c.over, uuid)
		if len(c.over) > overKept {
			if _, err := c.store.Delete(ctx, overKey(c.over[0])); err != nil {
				return err
			}
			c.over = c.over[1:]
		}
		c.config.logger.Info("round over", slog.Int64("uuid", uuid))
	}
	for _, n := range slices.Sorted(maps.Keys(e.answers)) {
		moment.At("elastic.coordinator.answer")
		a := e.answers[n]
		if err := c.write(ctx, n, a); err != nil {
			return err
		}
		if a.Round != nil {
			c.config.logger.Info("round begins", slog.Int64("uuid", a.UUID), slog.Int("members", len(a.Handles)))
		}
	}
	for _, t := range e.timers {
		c.timers[t.ID] = time.Now().Add(t.After)
	}
	c.ended, c.why = e.ended, e.why
	if !e.ended {
		return nil
	}
	return c.set(ctx, endKey, answer{Done: e.why == "", Error: e.why})
}

// endKey holds the answer to questions that come after the end.
const endKey = "end"

func overKey(uuid int64) string { return "over/" + strconv.FormatInt(uuid, 10) }

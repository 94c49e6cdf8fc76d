// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
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

	epoch  int64
	kept   []byte              // the record as it is in the store
	seen   int64               // questions that were numbered
	looked int64               // questions up to this one were answered, as it is in the store
	open   map[ID]int64        // the question of a member that is not answered
	holes  map[int64]time.Time // questions that were numbered and are not there yet
	signs  map[ID]sign
	timers map[int]time.Time
	clock  time.Time // of the times above; see tick
	ticked time.Time // when it was set
	over   []int64   // rounds whose end is still noted in the store
	ended  bool
	why    string // the job ended, "" if all members finished

	wake chan struct{} // something was put into mu
	mu   struct {
		sync.Mutex
		lost   []ID // members whose process has died
		silent []ID // members that have sent nothing since
	}
}

// sign is the last heartbeat of a member.
type sign struct {
	count int64
	at    time.Time
}

// New returns a coordinator for groups of low to high members that find it through s. Start it with [Coordinator.Run].
func New(s store.Store, low, high int, opts ...CoordinatorOption) (*Coordinator, error) {
	const op = "elastic: new"
	c := newConfig(opts, CoordinatorOption.applyCoordinator)
	switch {
	case s == nil:
		return nil, cohort.New(op, cohort.InvalidArgument, "no store")
	case low < 1 || high < low || high > maxMembers:
		return nil, cohort.Newf(op, cohort.InvalidArgument,
			"%d to %d members: the first must be at least 1, and at most the second, which may be %d at most", low, high, maxMembers)
	case c.silence <= 0 || c.patience <= 0 || c.join <= 0 || c.lastCall < 0 || c.failures < 0:
		return nil, cohort.New(op, cohort.InvalidArgument,
			"silence, patience and join timeout must be positive, last call and failures not negative")
	}
	c.low, c.high = low, high
	c.poll = min(c.poll, c.silence/10)
	return &Coordinator{
		store: store.Prefix(c.prefix, s), config: c, holes: map[int64]time.Time{}, open: map[ID]int64{}, signs: map[ID]sign{},
		timers: map[int]time.Time{}, wake: make(chan struct{}, 1),
	}, nil
}

// Reserve returns the first of n consecutive IDs for members that the caller starts: they join with [WithID]. Report the end
// of their processes with [Coordinator.Lost].
func (c *Coordinator) Reserve(ctx context.Context, n int) (ID, error) {
	return reserve(ctx, c.store, n)
}

func reserve(ctx context.Context, s store.Store, n int) (ID, error) {
	if n < 1 || n > maxMembers {
		return 0, cohort.Newf("elastic: reserve", cohort.InvalidArgument, "%d members: want 1 to %d", n, maxMembers)
	}
	last, err := s.Add(ctx, membersKey, int64(n))
	if err != nil {
		return 0, cohort.Wrap("elastic: reserve", cohort.Unavailable, err)
	}
	return ID(last - int64(n)), nil
}

// Lost reports that the process of a member has ended: the member is left out at once, without waiting for [WithSilence].
// It may be called from any goroutine.
func (c *Coordinator) Lost(member ID) {
	c.mu.Lock()
	c.mu.lost = append(c.mu.lost, member)
	c.mu.Unlock()
	failpoint.At("elastic.coordinator.lost")
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// String returns the sizes that the group may have.
func (c *Coordinator) String() string {
	return fmt.Sprintf("elastic.Coordinator(%d to %d members)", c.config.low, c.config.high)
}

// Silent returns the members that were left out because they sent no heartbeat and have not asked since. Their processes
// may be dead or hanging. It may be called from any goroutine.
func (c *Coordinator) Silent() []ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.mu.silent)
}

// setSilent notes that a member is silent, or responds again.
func (c *Coordinator) setSilent(member ID, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.silent = slices.DeleteFunc(c.mu.silent, func(m ID) bool { return m == member })
	if silent {
		c.mu.silent = append(c.mu.silent, member)
	}
}

// Run answers members until all of them have finished, or some have and the others are lost, and then returns nil. It returns an
// error when too many rounds have failed, when too few members are left, or when ctx ends; members that still wait are notified.
//
// A coordinator that has died can be started again over the same store, also by another process: the present group
// continues, and its members keep their order. If the earlier coordinator is alive after all, it ends with
// [cohort.Aborted].
func (c *Coordinator) Run(ctx context.Context) error {
	const op = "elastic: coordinator"
	c.ticked = time.Now()
	c.clock = c.ticked
	err := c.takeOver(ctx)
	tick := time.NewTicker(c.config.poll)
	defer tick.Stop()
	for err == nil && !c.ended {
		failpoint.At("elastic.coordinator.look")
		if err = c.poll(ctx); err != nil || c.ended {
			break
		}
		select {
		case <-tick.C:
		case <-c.wake:
		case <-ctx.Done():
			return cohort.Ended(ctx, op)
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return cohort.Ended(ctx, op)
	case errors.Is(err, errReplaced):
		return err
	case err != nil:
		return cohort.Wrap(op, cohort.Unavailable, err)
	case c.why != "":
		return cohort.New(op, cohort.Aborted, c.why)
	}
	return nil
}

// tick sets the clock by which members are silent and timers fire. It nearly stands still while the store does not
// answer: the signs of life and questions of that time arrive with the answers, in any order, and a member that sent
// nothing had no chance.
func (c *Coordinator) tick() {
	now := time.Now()
	c.clock = c.clock.Add(min(now.Sub(c.ticked), c.config.silence/4))
	c.ticked = now
}

// poll reads what has happened from the store.
func (c *Coordinator) poll(ctx context.Context) error {
	c.tick()
	if err := c.stillMine(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	lost := c.mu.lost
	c.mu.lost = nil
	c.mu.Unlock()
	if err := c.readQuestions(ctx); err != nil || c.ended {
		return err
	}
	for _, member := range c.spareFirst(lost) { // after the last questions that they asked
		if err := c.lose(ctx, member); err != nil || c.ended {
			return err
		}
	}
	if err := c.readHeartbeats(ctx); err != nil || c.ended {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(c.timers)) {
		if c.clock.Before(c.timers[id]) {
			continue
		}
		delete(c.timers, id)
		if err := c.perform(ctx, c.desk.fired(id)); err != nil || c.ended {
			return err
		}
	}
	return nil
}

func (c *Coordinator) readQuestions(ctx context.Context) error {
	numbered, err := c.store.Add(ctx, "asks", 0)
	if err != nil {
		return err
	}
	for c.seen < numbered && len(c.holes) < maxMembers {
		c.seen++
		c.holes[c.seen] = c.clock
	}
	asked := map[int64]question{}
	latest := map[ID]int64{} // question by member; a member that asks again has given up its earlier question
	for _, n := range slices.Sorted(maps.Keys(c.holes)) {
		q, there, failed := c.read(ctx, n)
		if failed != nil {
			return failed
		}
		if there || c.clock.Sub(c.holes[n]) > holeLimit {
			delete(c.holes, n)
		}
		if q == nil {
			continue
		}
		if !q.Lost && n <= max(c.desk.latest(q.Member), c.open[q.Member]) {
			// It arrived late: the member has asked again since. A next coordinator must not find it, with a handle of long ago.
			if _, err = c.store.Delete(ctx, askKey(n)); err != nil {
				return err
			}
			continue
		}
		if err = c.forget(ctx, q.Member); err != nil {
			return err
		}
		asked[n], latest[q.Member], c.open[q.Member] = *q, n, n
	}
	for _, n := range slices.Sorted(maps.Values(latest)) {
		q := asked[n]
		if q.Lost {
			if err = c.lose(ctx, q.Member); err != nil || c.ended {
				return err
			}
			continue
		}
		if _, known := c.signs[q.Member]; !known {
			c.signs[q.Member] = sign{at: c.clock}
			c.setSilent(q.Member, false)
		}
		if q.untaken, err = c.store.Check(ctx, answerKey(c.desk.latest(q.Member))); err != nil {
			return err
		}
		if err = c.perform(ctx, c.desk.asked(n, q)); err != nil || c.ended {
			return err
		}
	}
	return c.noteLooked(ctx)
}

// forget removes the question of a member that has asked again, or is lost.
func (c *Coordinator) forget(ctx context.Context, member ID) error {
	n, asked := c.open[member]
	if !asked {
		return nil
	}
	delete(c.open, member)
	_, err := c.store.Delete(ctx, askKey(n))
	return err
}

// lose removes a member whose process has ended.
func (c *Coordinator) lose(ctx context.Context, member ID) error {
	c.setSilent(member, false)
	return c.leaveOut(ctx, member)
}

// leaveOut takes out a lost member.
func (c *Coordinator) leaveOut(ctx context.Context, member ID) error {
	delete(c.signs, member)
	if err := c.forget(ctx, member); err != nil {
		return err
	}
	return c.perform(ctx, c.desk.silent(member))
}

// spareFirst puts those that wait for an answer before the members of the last round: without the last of these the next round
// begins, and must not begin with another lost member.
func (c *Coordinator) spareFirst(gone []ID) []ID {
	slices.SortStableFunc(gone, func(a, b ID) int {
		_, aWaits := c.open[a]
		_, bWaits := c.open[b]
		switch {
		case aWaits == bWaits:
			return 0
		case aWaits:
			return -1
		}
		return 1
	})
	return gone
}

func (c *Coordinator) readHeartbeats(ctx context.Context) error {
	var silent []ID
	for _, member := range slices.Sorted(maps.Keys(c.signs)) {
		count, err := c.store.Add(ctx, aliveKey(member), 0)
		if err != nil {
			return err
		}
		last := c.signs[member]
		if count != last.count {
			c.signs[member] = sign{count: count, at: c.clock}
			continue
		}
		if c.clock.Sub(last.at) > c.config.silence {
			silent = append(silent, member)
		}
	}
	for _, member := range c.spareFirst(silent) {
		c.setSilent(member, true)
		c.config.logger.Warn("a member has not responded", slog.Any("member", member),
			slog.Duration("silence", c.clock.Sub(c.signs[member].at)))
		if err := c.leaveOut(ctx, member); err != nil || c.ended {
			return err
		}
	}
	return nil
}

// read returns a question. nil means that there is one that cannot be read.
func (c *Coordinator) read(ctx context.Context, n int64) (q *question, there bool, err error) {
	key := askKey(n)
	if there, err = c.store.Check(ctx, key); err != nil || !there {
		return nil, false, err
	}
	raw, err := c.store.Get(ctx, key)
	if err != nil {
		return nil, false, err
	}
	q = new(question)
	if len(raw) > maxQuestion || printable.Unmarshal(raw, q) != nil || q.Member < 0 || q.Handle == "" && !q.Done && !q.Lost {
		c.config.logger.Warn("a question cannot be read", slog.Int64("number", n))
		return nil, true, c.answer(ctx, n, answer{Error: "malformed request: want {\"member\": 0, \"handle\": \"gloo:...\"}"})
	}
	return q, true, nil
}

// answer writes the answer and then removes the question, so that a coordinator that takes over answers the questions that are
// left.
func (c *Coordinator) answer(ctx context.Context, n int64, a answer) error {
	failpoint.At("elastic.coordinator.answer")
	if err := c.set(ctx, answerKey(n), a); err != nil {
		return err
	}
	failpoint.At("elastic.coordinator.answered")
	for member, open := range c.open {
		if open != n {
			continue
		}
		delete(c.open, member)
		if a.Done { // it leaves, and the others need no notice
			delete(c.signs, member)
		}
	}
	_, err := c.store.Delete(ctx, askKey(n))
	return err
}

func (c *Coordinator) set(ctx context.Context, key string, a answer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return c.store.Set(ctx, key, data)
}

// overKept is how many ends of rounds stay in the store: a member reads that of its own round.
const overKept = 16

func (c *Coordinator) perform(ctx context.Context, e effects) error {
	for _, uuid := range e.over {
		failpoint.At("elastic.coordinator.over")
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
	switch { // before any member is notified
	case e.ended:
		if err := c.keep(ctx, record{Ended: true, Why: e.why}); err != nil {
			return err
		}
		if err := c.set(ctx, endKey, answer{Done: e.why == "", Error: e.why, Silent: c.Silent()}); err != nil {
			return err
		}
	case e.record != nil:
		if err := c.keep(ctx, *e.record); err != nil {
			return err
		}
	}
	if e.stale != 0 {
		failpoint.At("elastic.coordinator.stale")
		if _, err := c.store.Delete(ctx, answerKey(e.stale)); err != nil {
			return err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(e.answers)) {
		a := e.answers[n]
		if err := c.answer(ctx, n, a); err != nil {
			return err
		}
		if a.Round != nil {
			c.config.logger.Info("round begins", slog.Int64("uuid", a.UUID), slog.Int("members", len(a.Handles)))
		}
	}
	for _, t := range e.timers {
		c.timers[t.ID] = c.clock.Add(t.After)
	}
	c.ended, c.why = e.ended, e.why
	if !e.ended {
		return nil
	}
	return c.keep(ctx, record{})
}

const (
	// endKey holds the answer to questions that arrive after the end.
	endKey = "end"
	// membersKey counts the numbers that were given out.
	membersKey = "members"
)

func aliveKey(member ID) string { return "alive/" + member.String() }

func askKey(n int64) string { return "ask/" + strconv.FormatInt(n, 10) }

func answerKey(n int64) string { return "answer/" + strconv.FormatInt(n, 10) }

func overKey(uuid int64) string { return "over/" + strconv.FormatInt(uuid, 10) }

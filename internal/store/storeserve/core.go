// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeserve

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/observe"
)

const (
	// unfinishedCheck is how often requests that are not all there are looked at, and maxChecks how often one may be found where it
	// was: a client has ten minutes. Where memory is short it has seconds, see internal/store/storecore.
	unfinishedCheck = 30 * time.Second
	maxChecks       = 20
	// retryPause is how often what waits for memory or descriptors is tried again when nothing else happens.
	retryPause = 100 * time.Millisecond
)

// Core is what every driver has: the machine, and the events that the hook has not been called with. A driver calls it
// from one goroutine at a time; outside of this package it is used inside [Server.Do] only.
type Core struct {
	// Machine is the store.
	Machine *storecore.Machine

	config  Config
	journal Journal // nil: changes are done at once
	users   *peeruid.Policy
	report  *reporter
	hook    observe.Hook
	events  []observe.Event
	clock   clock
}

// tick begins a turn.
func (c *Core) tick() (now int64) {
	now = c.clock.now()
	c.Machine.Tick(now)
	return now
}

// clock is the time that the machine is given: monotonic, so that a wall clock that is set neither cuts clients nor keeps
// silent ones alive.
type clock struct{ start time.Time }

// now returns the nanoseconds since the server's start, never zero.
func (c clock) now() int64 { return int64(time.Since(c.start)) + 1 }

// Wall returns the wall time of moments that the machine returns, the same for equal ones.
func (c *Core) Wall() func(moment int64) time.Time {
	wall, now := time.Now(), c.clock.now()
	return func(moment int64) time.Time { return wall.Add(time.Duration(moment - now)) }
}

func newCore(config Config, report *reporter) *Core {
	c := &Core{config: config, report: report, hook: config.Hook, clock: clock{time.Now()}}
	say := config.OnOtherUser
	if say == nil {
		say = func(text string) { report.warn(text, "") }
	}
	c.users = peeruid.Default(config.AllowUIDs, say)
	c.journal = config.Journal
	mc := config.Machine
	mc.Loops = config.Loops
	mc.Logged = config.Journal != nil
	if config.Stats != nil {
		mc.Stats = func() []byte { return config.Stats(c) }
	}
	if c.hook != nil {
		mc.Observe = c.observe
	}
	if c.Machine = config.Restored; c.Machine == nil {
		c.Machine = storecore.New(mc)
	} else {
		c.Machine.Serve(mc)
	}
	c.tick()
	return c
}

// observe notes one request for the hook, which is called later: never inside the machine or under a lock.
func (c *Core) observe(conn *storecore.Conn, r *wire.Request, err error) {
	key := string(r.Key)
	if r.List.Count > 0 {
		list := r.List
		key = string(list.Next())
	}
	c.events = append(c.events, observe.Event{
		Time: time.Now(), Kind: observe.Kind("store." + r.Op.String()), Rank: cohort.NoRank, Peer: conn.Peer, Key: key,
		Bytes: int64(len(r.Value)), Err: err,
	})
}

func (c *Core) point(kind, peer, detail string, err error) {
	if c.hook != nil {
		c.events = append(c.events, observe.Event{
			Time: time.Now(), Kind: observe.Kind(kind), Rank: cohort.NoRank, Peer: peer, Detail: detail, Err: err,
		})
	}
}

// takeEvents returns what is owed to the hook.
func (c *Core) takeEvents() []observe.Event {
	e := c.events
	c.events = nil
	return e
}

func (c *Core) emit(events []observe.Event) {
	for _, e := range events {
		c.hook.Emit(e)
	}
}

// opened, gone and cut note what happened to a connection.
func (c *Core) opened(peer string) { c.point("store.connect", peer, "", nil) }

func (c *Core) gone(conn *storecore.Conn) {
	c.point("store.disconnect", conn.Peer, conn.Dialect().String(), nil)
}

func (c *Core) cut(conn *storecore.Conn) {
	c.point("store.cut", conn.Peer, conn.Dialect().String(), conn.Cut())
	c.report.warn("client cut", cohort.CodeOf(conn.Cut()).String(), slog.String("peer", conn.Peer),
		slog.String("dialect", conn.Dialect().String()),
		slog.String("reason", conn.Cut().Error()))
}

// Clear empties the store at the wish of this process and returns how many keys and queues there were.
func (c *Core) Clear() int {
	n := c.Machine.Clear()
	c.cleared(n)
	return n
}

func (c *Core) cleared(keys int) { c.point("store.clear", "", strconv.Itoa(keys)+" keys", nil) }

func (c *Core) refused(peer, reason string) {
	c.point("store.refuse", peer, reason, nil)
	c.report.warn("connection refused", "", slog.String("peer", peer), slog.String("reason", reason))
}

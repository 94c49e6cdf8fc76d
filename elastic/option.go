// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"log/slog"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
)

// DefaultPrefix is the prefix of the keys in the store.
const DefaultPrefix = "cohort/elastic"

// CoordinatorOption configures a [Coordinator].
type CoordinatorOption interface{ applyCoordinator(c *config) }

// MemberOption configures a [Member].
type MemberOption interface{ applyMember(c *config) }

// Option is a setting that a coordinator, its members and their [Starter] share.
type Option interface {
	CoordinatorOption
	MemberOption
}

type (
	coordinatorOption func(*config)
	memberOption      func(*config)
	option            func(*config)
)

func (o coordinatorOption) applyCoordinator(c *config) { o(c) }
func (o memberOption) applyMember(c *config)           { o(c) }
func (o option) applyCoordinator(c *config)            { o(c) }
func (o option) applyMember(c *config)                 { o(c) }

type config struct {
	prefix    string
	low, high int
	join      time.Duration
	lastCall  time.Duration
	silence   time.Duration
	patience  time.Duration
	poll      time.Duration
	failures  int
	id        ID // -1: the store gives one
	logger    *slog.Logger
}

// newConfig returns the defaults as opts change them; nil options are left out.
func newConfig[O comparable](opts []O, apply func(O, *config)) config {
	c := config{
		prefix: DefaultPrefix, join: 10 * time.Minute, lastCall: 5 * time.Second, silence: 10 * time.Second, patience: 5 * time.Minute,
		poll: 50 * time.Millisecond, failures: math.MaxInt, id: -1,
	}
	for _, o := range opts {
		var none O
		if o != none {
			apply(o, &c)
		}
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// WithPrefix sets the prefix of all keys, which must be the same for the coordinator and its members. The default is
// [DefaultPrefix].
func WithPrefix(prefix string) Option { return option(func(c *config) { c.prefix = prefix }) }

// WithJoinTimeout sets how long the coordinator waits for the smallest number of members. The default is ten minutes.
func WithJoinTimeout(d time.Duration) CoordinatorOption {
	return coordinatorOption(func(c *config) { c.join = d })
}

// WithLastCall sets how long a coordinator that has enough members, but not the largest number, waits for more before a
// round begins, for example for the replacement of a dead process. The default is five seconds.
func WithLastCall(d time.Duration) CoordinatorOption {
	return coordinatorOption(func(c *config) { c.lastCall = d })
}

// WithSilence sets how long a member may send no heartbeat before it is declared dead. The default is ten seconds.
// Members give a sign every second, or four times in this period if that is more often.
func WithSilence(d time.Duration) Option { return option(func(c *config) { c.silence = d }) }

// WithPatience sets how long members that are alive may take to ask again after the end of a round before they are left
// out. The default is five minutes.
func WithPatience(d time.Duration) CoordinatorOption {
	return coordinatorOption(func(c *config) { c.patience = d })
}

// WithMaxFailures sets how many rounds may end with a failure. By default the number is not limited.
func WithMaxFailures(n int) CoordinatorOption {
	return coordinatorOption(func(c *config) { c.failures = n })
}

// WithID gives a member an ID that the process that started it has reserved ([Coordinator.Reserve], [Starter.Reserve]).
// Without it, or with a negative ID, the store assigns the next one.
func WithID(id ID) MemberOption { return memberOption(func(c *config) { c.id = max(id, -1) }) }

// WithEnvID gives a member the ID in [EnvMember], which "cohort run --members" has reserved for this process, so that the
// launcher can report its death at once. Without the variable the store assigns an ID. If a process joins as several members,
// only one of them can use it.
func WithEnvID() MemberOption {
	id, err := strconv.ParseInt(os.Getenv(EnvMember), 10, 64)
	if err != nil {
		id = -1
	}
	return WithID(ID(id))
}

// EnvMember is the environment variable in which "cohort run --members" passes a process its ID.
const EnvMember = "COHORT_MEMBER"

// WithLogger sets the logger for the coordinator's decisions.
func WithLogger(l *slog.Logger) CoordinatorOption {
	return coordinatorOption(func(c *config) { c.logger = safecall.Logger(l) })
}

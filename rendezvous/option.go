// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// DefaultTimeout bounds the join and, in a TCP store, every later wait whose context has no deadline. It is PyTorch's
// default for process groups.
const DefaultTimeout = 30 * time.Minute

// Option changes how [Join] works.
type Option interface{ apply(*settings) }

type settings struct {
	request  Request
	registry *Registry
	timeout  time.Duration
	timeSet  bool
	hook     observe.Hook
	logger   *slog.Logger
	logging  bool // the logger is the user's
	bind     string
	shared   *tcpstore.Shared
	prefix   AttemptPrefix
	server   []tcpstore.ServerOption
	client   []tcpstore.ClientOption
}

func newSettings(url string, opts []Option) settings {
	s := settings{
		request: Request{URL: url, Rank: cohort.NoRank, WorldSize: NoWorldSize, Env: os.LookupEnv},
		timeout: DefaultTimeout,
		logger:  slog.New(slog.DiscardHandler),
	}
	for _, o := range opts {
		if o != nil {
			o.apply(&s)
		}
	}
	if s.registry == nil {
		s.registry = NewRegistry()
	}
	return s
}

type optionFunc func(*settings)

func (f optionFunc) apply(s *settings) { f(s) }

// WithRank sets the rank; the URL must then not contain rank or world_size.
func WithRank(rank cohort.Rank) Option {
	return optionFunc(func(s *settings) { s.request.Rank = rank })
}

// WithWorldSize sets the number of ranks; the URL must then not contain rank or world_size.
func WithWorldSize(size int) Option {
	return optionFunc(func(s *settings) { s.request.WorldSize = size })
}

// WithOpenWorld allows a world without a fixed size, as torch.distributed.rpc does when no world size is given.
func WithOpenWorld() Option { return optionFunc(func(s *settings) { s.request.Open = true }) }

// WithTimeout bounds the join and later waits on the store; see [DefaultTimeout]. A deadline of a context wins over it.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(s *settings) { s.timeout, s.timeSet = d, true })
}

// WithRegistry uses the schemes of r instead of only the built-in ones.
func WithRegistry(r *Registry) Option { return optionFunc(func(s *settings) { s.registry = r }) }

// WithEnv reads environment variables through lookup instead of os.LookupEnv.
func WithEnv(lookup func(name string) (string, bool)) Option {
	return optionFunc(func(s *settings) { s.request.Env = lookup })
}

// WithHook sends the progress of the join to hook: [EventJoin], [EventHost] and [EventWait].
func WithHook(hook observe.Hook) Option {
	return optionFunc(func(s *settings) {
		s.hook = observe.Tee(s.hook, func(e observe.Event) { safecall.Hook(s.logger, hook).Emit(e) }) // the logger may come later
	})
}

// WithLogger sets the logger of a hosted server and of the client; while rank 0 waits, it also gets who is missing. By
// default nothing is logged except warnings about probable mistakes, which go to slog's default logger.
func WithLogger(logger *slog.Logger) Option {
	return optionFunc(func(s *settings) {
		if logger != nil {
			s.logger, s.logging = safecall.Logger(logger), true
		}
	})
}

// WithBindHost makes the rank that hosts the store listen on this address, "0.0.0.0" or "::" for all. By default it is the one that the
// ranks were told, in the URL or in MASTER_ADDR, if that is an address of this host or localhost. Of a name, and of an address that a
// service or a router has, it is not known by which address the others come, so the store listens on all of them, as PyTorch's does always.
func WithBindHost(host string) Option { return optionFunc(func(s *settings) { s.bind = host }) }

// WithSharedServers lets several joins of one process that host on the same port use one server, as PyTorch does with
// its multi-tenant stores: a process group and an RPC agent on one MASTER_PORT, for instance.
func WithSharedServers(shared *tcpstore.Shared) Option {
	return optionFunc(func(s *settings) { s.shared = shared })
}

// WithServerOptions passes limits and other options to a hosted server.
func WithServerOptions(opts ...tcpstore.ServerOption) Option {
	return optionFunc(func(s *settings) { s.server = append(s.server, opts...) })
}

// WithDialOptions passes options to the client of a TCP store.
func WithDialOptions(opts ...tcpstore.ClientOption) Option {
	return optionFunc(func(s *settings) { s.client = append(s.client, opts...) })
}

// AttemptPrefix says whether keys get the prefix "/worker/attempt_N" when a launcher hosts the store. PyTorch 1.13 does
// so, later versions do not, and all ranks of a job must agree.
type AttemptPrefix uint8

// The choices.
const (
	// AttemptPrefixAuto adds the prefix if the store is one of PyTorch 1.13.
	AttemptPrefixAuto AttemptPrefix = iota
	// AttemptPrefixAlways is for a job of PyTorch 1.13 workers on another store.
	AttemptPrefixAlways
	// AttemptPrefixNever is for jobs of later versions.
	AttemptPrefixNever
)

// WithAttemptPrefix overrides the choice of [AttemptPrefixAuto].
func WithAttemptPrefix(p AttemptPrefix) Option {
	return optionFunc(func(s *settings) { s.prefix = p })
}

// String says when the prefix is added.
func (p AttemptPrefix) String() string {
	switch p {
	case AttemptPrefixAuto:
		return "auto"
	case AttemptPrefixAlways:
		return "always"
	case AttemptPrefixNever:
		return "never"
	}
	return "attempt prefix " + strconv.Itoa(int(p))
}

// String says which rank of how many this process is.
func (m *Member) String() string { return fmt.Sprintf("member: rank %d of %d", m.rank, m.size) }

// String lists the schemes.
func (r *Registry) String() string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	schemes := make([]string, 0, len(r.handlers))
	for s := range r.handlers {
		schemes = append(schemes, s)
	}
	slices.Sort(schemes)
	return "rendezvous schemes: " + strings.Join(schemes, ", ")
}
